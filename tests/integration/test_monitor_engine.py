"""The monitor on the real engine: under load, hung, killed, stopped, with a key, idle."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from llama_ai.cli.monitor import _sampler
from llama_ai.monitor.feed import LiveFeed
from tests.integration.serve.conftest import SMALL, Cli, Server

if TYPE_CHECKING:
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.monitor.sampler import Look

PATIENCE_S = 120


@pytest.fixture
def cli(tmp_path: Path, engine: EngineInfo, monkeypatch: pytest.MonkeyPatch) -> Cli:
    made = Cli(tmp_path, engine.server)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, made.env[name])
    return made


@pytest.fixture
def serve(cli: Cli, demo_model: Path) -> Iterator[Callable[..., Server]]:
    started: list[Server] = []

    def start(*words: str, **options: Any) -> Server:
        server = Server(cli, demo_model, *SMALL, *words, **options)
        started.append(server)
        return server

    yield start
    for server in started:
        server.close()


class Watching:
    """A live feed, as the screen uses it."""

    def __init__(self, name: str | None = None, url: str | None = None) -> None:
        self.feed = LiveFeed(_sampler(name, url, None, 0.2), 0.2)
        self.looks: list[Look] = []
        self.feed.start()

    def until(self, seen: Callable[[Look], bool]) -> Look:
        """The first look of which ``seen`` is true."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            new = self.feed.take()
            self.looks += new
            for look in new:
                if seen(look):
                    return look
            assert time.monotonic() < deadline_s, self.looks[-1:]
            time.sleep(0.05)

    def state(self, state: str) -> Look:
        return self.until(lambda look: look.sample.engine.state == state)


@pytest.fixture
def watching() -> Iterator[Callable[..., Watching]]:
    opened: list[Watching] = []

    def open_one(**options: Any) -> Watching:
        opened.append(Watching(**options))
        return opened[-1]

    yield open_one
    for one in opened:
        one.feed.close()


def generate(server: Server, tokens: int, prompt: str = "Tell a long story.") -> dict[str, Any]:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "ignore_eos": True,
        },
        timeout=PATIENCE_S,
    )
    result: dict[str, Any] = answer.raise_for_status().json()
    return result


def test_a_turn_as_the_engine_itself_reports_it(
    serve: Callable[..., Server], watching: Callable[..., Watching]
) -> None:
    """Tokens, cache hits and speed agree with the timings that the client gets."""
    server = serve()
    server.wait_ready()
    monitor = watching(name=str(server.port))
    monitor.state("ready")
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(generate(server, 150)))
    thread.start()
    monitor.until(lambda look: any(s.state == "generating" for s in look.sample.engine.slots))
    look = monitor.until(
        lambda look: (
            look.sample.engine.generated_tokens_total == 150
            and look.sample.engine.slots[0].state == "idle"
        )
    )
    thread.join()
    timings = answers[0]["timings"]
    assert look.sample.engine.prompt_tokens_total == timings["prompt_n"]
    slot = look.sample.engine.slots[0]
    assert slot.read_tokens == timings["prompt_n"]
    assert slot.ctx_used_tokens is not None
    assert slot.ctx_used_tokens >= timings["prompt_n"] + 149
    # The area under the speed is about the number of tokens. How near depends on how often a busy
    # machine lets the sampler look, so only a wrong scale is caught here.
    looks = [*monitor.looks, monitor.until(lambda look: look.sample.engine.gen_tps == 0)]
    looks = sorted({look.sample.at_s: look for look in looks}.values(), key=lambda x: x.sample.at_s)
    area = sum(
        (look.sample.engine.gen_tps or 0.0) * (look.sample.at_s - before.sample.at_s)
        for before, look in pairwise(looks)
    )
    assert 30 < area < 300
    # The second turn finds the first one in its slot.
    again = generate(server, 100)
    look = monitor.until(lambda look: look.sample.engine.generated_tokens_total == 250)
    slot = monitor.until(
        lambda look: look.sample.engine.slots[0].state == "idle"
    ).sample.engine.slots[0]
    assert slot.cached_tokens == again["timings"]["cache_n"]
    assert slot.cache_hit_ratio is not None
    assert slot.cache_hit_ratio > 0.5
    # The engine's process and its log are followed.
    assert any(look.sample.engine.cpu_percent for look in monitor.looks)
    assert look.sample.engine.rss_bytes
    assert any("print_timing" in line for look in monitor.looks for line in look.log)


def test_a_hung_engine_comes_back(
    serve: Callable[..., Server], watching: Callable[..., Watching]
) -> None:
    server = serve()
    record = server.wait_ready()
    monitor = watching(name=str(server.port))
    monitor.until(lambda look: look.sample.engine.slots != ())
    os.kill(record["engine_pid"], signal.SIGSTOP)
    try:
        look = monitor.until(lambda look: look.sample.engine.state in ("hung", "degraded"))
        assert look.sample.memory.ram_total_bytes  # the machine is still looked at
        late = monitor.until(lambda look: look.sample.late != ())
        assert late.sample.engine.slots != ()
    finally:
        os.kill(record["engine_pid"], signal.SIGCONT)
    look = monitor.state("ready")
    monitor.until(lambda look: look.sample.late == ())


def test_a_killed_engine_is_restarted_and_a_stop_is_a_stop(
    serve: Callable[..., Server], watching: Callable[..., Watching]
) -> None:
    server = serve()
    record = server.wait_ready()
    monitor = watching(name=str(server.port))
    monitor.until(lambda look: look.sample.engine.slots != ())
    os.kill(record["engine_pid"], signal.SIGKILL)
    monitor.until(lambda look: look.sample.engine.state in ("restarting", "unreachable", "loading"))
    look = monitor.until(
        lambda look: (
            look.sample.engine.state == "ready"
            and look.sample.instance is not None
            and look.sample.instance.restarts == 1
        )
    )
    assert look.sample.instance is not None
    assert look.sample.instance.last_failure
    server.process.terminate()
    look = monitor.state("stopped")
    assert look.sample.engine.slots == ()
    assert look.sample.engine.rss_bytes is None


def test_a_key_and_routes_that_are_off(serve: Callable[..., Server], cli: Cli) -> None:
    server = serve("--", "--no-slots", env={"LLAMA_AI_API_KEY": "sk-of-this-test"})
    server.wait_ready()
    done = cli.run("monitor", "--once", "--json")
    assert json.loads(done.stdout)["engine"]["state"] == "unauthorised"
    cli.env["LLAMA_AI_API_KEY"] = "sk-of-this-test"
    sample = json.loads(cli.run("monitor", "--once", "--json").stdout)
    assert sample["engine"]["state"] == "ready"
    missing = {item["what"]: item["why"] for item in sample["missing"]}
    assert "slots" in missing["slots"]
    assert sample["engine"]["slots"] == []
    assert sample["engine"]["prompt_tokens_total"] == 0


def test_a_server_that_is_not_ours(serve: Callable[..., Server], cli: Cli) -> None:
    """By --url only: no supervisor's word, no log, the rest is there."""
    server = serve()
    server.wait_ready()
    sample = json.loads(cli.run("monitor", "--once", "--json", "--url", server.url).stdout)
    assert sample["engine"]["state"] == "ready"
    assert sample["instance"] is None
    assert sample["engine"]["model"] == "SmolLM2-135M-Instruct-Q4_1"
    assert len(sample["engine"]["slots"]) == 1


def test_watching_does_not_keep_an_engine_awake(
    serve: Callable[..., Server], watching: Callable[..., Watching]
) -> None:
    """It falls asleep while it is watched, stays asleep, and a request still wakes it."""
    server = serve("--", "--sleep-idle-seconds", "2")
    server.wait_ready()
    monitor = watching(name=str(server.port))
    monitor.state("ready")
    monitor.state("sleeping")
    asleep_s = time.monotonic()
    while time.monotonic() - asleep_s < 4:
        assert httpx.get(f"{server.url}/props").json()["is_sleeping"]
        time.sleep(0.5)
    generate(server, 3)
    monitor.until(lambda look: look.sample.engine.generated_tokens_total == 3)
