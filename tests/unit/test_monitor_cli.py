"""``llama-ai monitor`` as a command: --once, --json, --replay, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cli import llama_ai, private_env
from tests.unit.monitored_server import MonitoredServer, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDING = Path(__file__).parents[1] / "tui" / "recordings" / "generating.jsonl"


@pytest.fixture
def server() -> Iterator[MonitoredServer]:
    with MonitoredServer() as running:
        yield running


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return private_env(tmp_path)


def once(*words: str, env: dict[str, str]) -> dict[str, Any]:
    done = llama_ai("monitor", "--once", "--json", *words, env=env)
    assert done.returncode == 0, done.stderr
    sample: dict[str, Any] = json.loads(done.stdout)
    return sample


def test_one_sample_as_json(server: MonitoredServer, env: dict[str, str]) -> None:
    sample = once("--url", server.url, env=env)
    assert sample["schema"] == "llama-ai.monitor/1"
    engine = sample["engine"]
    assert engine["state"] == "ready"
    assert engine["slots"][0]["ctx_tokens"] == 512
    for key in (
        "prompt_tps",
        "gen_tps",
        "cache_hit_ratio",
        "draft_acceptance",
        "kv_disk_bytes",
        "expert_hit_ratio",
    ):
        assert key in engine
    assert sample["cpu"]["percent"] is not None
    assert sample["memory"]["ram_total_bytes"] > 0
    assert "gpu" in sample


def test_one_sample_as_text(server: MonitoredServer, env: dict[str, str]) -> None:
    done = llama_ai("monitor", "--once", "--url", server.url, env=env)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split()[1:] == ["ready", "stub", server.url]
    assert "slot 0" in done.stdout
    assert "missing" in done.stdout
    assert "\x1b" not in done.stdout


def test_nothing_runs(env: dict[str, str]) -> None:
    sample = once(env=env)
    assert sample["engine"]["state"] == "absent"
    assert sample["instance"] is None
    assert sample["engine"]["gen_tps"] is None


def test_nobody_listens(env: dict[str, str]) -> None:
    sample = once("--url", f"http://127.0.0.1:{free_port()}", env=env)
    assert sample["engine"]["state"] == "unreachable"


def test_keys(server: MonitoredServer, env: dict[str, str], tmp_path: Path) -> None:
    server.key = "secret-of-this-test"
    assert once("--url", server.url, env=env)["engine"]["state"] == "unauthorised"
    keyed = {**env, "LLAMA_AI_API_KEY": server.key}
    assert once("--url", server.url, env=keyed)["engine"]["state"] == "ready"
    file = tmp_path / "key"
    file.write_text(f"\n{server.key}\nother\n")
    assert (
        once("--url", server.url, "--api-key-file", str(file), env=env)["engine"]["state"]
        == "ready"
    )
    # A file that is named wins over the environment.
    wrong = {**env, "LLAMA_AI_API_KEY": "wrong"}
    done = llama_ai(
        "monitor", "--once", "--url", server.url, "--api-key-file", str(file), env=wrong
    )
    assert " ready " in done.stdout
    done = llama_ai("monitor", "--once", "--url", server.url, "--api-key", server.key, env=env)
    assert " ready " in done.stdout
    assert server.key not in done.stdout + done.stderr


def test_the_key_of_our_own_server_is_not_sent_to_another(
    server: MonitoredServer, env: dict[str, str], tmp_path: Path
) -> None:
    server.key = "configured"
    file = tmp_path / "key"
    file.write_text("configured\n")
    config = tmp_path / "config" / "llama-ai"
    config.mkdir(parents=True)
    (config / "config.toml").write_text(f'api_key_file = "{file}"\n')
    assert once("--url", server.url, env=env)["engine"]["state"] == "unauthorised"
    named = {**env, "LLAMA_AI_API_KEY_FILE": str(file)}
    assert once("--url", server.url, env=named)["engine"]["state"] == "unauthorised"


def test_the_last_sample_of_a_recording(env: dict[str, str]) -> None:
    done = llama_ai("monitor", "--once", "--json", "--replay", str(RECORDING), env=env)
    last = json.loads(RECORDING.read_text().splitlines()[-1])["sample"]
    shown = json.loads(done.stdout)
    assert shown.pop("schema") == "llama-ai.monitor/1"
    assert shown["engine"]["gen_tps"] == last["engine"]["gen_tps"]
    assert shown["at_s"] == last["at_s"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("name", "--url", "http://x"), "exclude"),
        (("--replay", "x", "--record", "y"), "--replay shows a recording"),
        (("--interval", "0"), "--interval"),
        (("--json",), "--once"),
        (("--once", "--record", "x"), "--record"),
        (("--url", "ftp://x", "--once"), "not the address"),
        (("--url", "http://u:pw@x", "--once"), "everybody here could read"),
        (("--replay", "/nonexistent", "--once"), "cannot read"),
        (("--once", "--api-key-file", "/nonexistent", "--url", "http://x"), "key file"),
        ((), "needs a terminal"),
    ],
)
def test_what_is_refused(env: dict[str, str], words: tuple[str, ...], says: str) -> None:
    done = llama_ai("monitor", *words, env=env)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "pw" not in done.stderr


def test_an_instance_that_is_not_there(env: dict[str, str]) -> None:
    done = llama_ai("monitor", "nobody", "--once", env=env)
    assert done.returncode == 1
    assert "no instance 'nobody'" in done.stderr
