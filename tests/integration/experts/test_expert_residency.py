"""With experts on disk a model says bit for bit what it says with all of them in memory."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.integration.experts.conftest import PLAIN, RESIDENT, answers
from tests.integration.kv.conftest import dumped, numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.kv.conftest import Server

    Serve = Callable[..., Server]
    Zoo = Callable[[str], tuple[Path, tuple[str, ...]]]

pytestmark = pytest.mark.engine


def test_any_budget(tiny: Path, serve: Serve) -> None:
    """Law: what is computed does not depend on what is in memory."""
    expected = {}
    for threads in ("1", "2"):  # attention is cut up by threads, which rounds differently
        plain = serve(tiny, *PLAIN, "--threads", threads)
        expected[threads] = answers(plain)
        plain.stop()
    for threads, *words in (
        ("1", "--expert-budget-mib", "1", "--expert-prefetch-threads", "2"),  # 3 %
        ("1", "--expert-budget-mib", "8"),
        ("2", "--expert-budget-mib", "8"),
        ("2", "--expert-budget-mib", "64", "--expert-prewarm"),  # all of them
        ("1", "--expert-budget-mib", "0"),  # the page cache
    ):
        server = serve(tiny, *RESIDENT, "--threads", threads, *words)
        assert answers(server) == expected[threads], words
        state = server.http.get("/residency").json()
        assert state["enabled"] is True
        assert state["hits"] + state["misses"] > 0
        assert state["failed_reads"] == 0
        if "1" in words or "8" in words:
            assert state["evictions"] > 0, dumped(state)
            assert state["memory_bytes"] <= state["budget_bytes"]
            assert state["resident_bytes"] <= state["memory_bytes"]
            assert state["read_bytes"] > state["experts_bytes"]
        server.stop()


@pytest.mark.parametrize("kind", ["mla", "window", "hybrid-moe"])
def test_other_architectures(zoo: Zoo, serve: Serve, kind: str) -> None:
    """Gate and up in one matrix, experts with biases, shared experts, recurrent layers."""
    model, words = zoo(kind)
    plain = serve(model, *words, *PLAIN)
    expected = answers(plain)
    plain.stop()
    server = serve(model, *words, *RESIDENT, "--expert-budget-mib", "1")
    assert answers(server) == expected
    state = server.http.get("/residency").json()
    assert state["misses"] > 0, dumped(state)
    server.stop()


def test_four_slots(tiny: Path, serve: Serve) -> None:
    plain = serve(tiny, *PLAIN, "--parallel", "4")
    expected = answers(plain, slots=4)
    plain.stop()
    server = serve(tiny, *RESIDENT, "--expert-budget-mib", "4", "--parallel", "4")
    assert answers(server, slots=4) == expected
    # All at once: batches are mixed as they come, so only that they end well can be told.
    failed: list[str] = []

    def ask(seed: int) -> None:
        try:
            server.answer(numbers(200, seed), 16)
        except AssertionError as error:
            failed.append(str(error))

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert answers(server, slots=4) == expected
    server.stop()


def test_a_model_that_sleeps_and_wakes(tiny: Path, serve: Serve) -> None:
    """Its cache goes with it and comes back."""
    server = serve(tiny, *RESIDENT, "--expert-budget-mib", "4", "--sleep-idle-seconds", "1")
    first = server.answer(numbers(40, 1), 8)[0]
    server._wait(lambda: server.http.get("/residency").json()["models"] == 0)
    assert server.answer(numbers(40, 1), 8)[0] == first
    assert server.http.get("/residency").json()["models"] == 1
    server.stop()


def test_what_there_is_to_see(tiny: Path, serve: Serve, tmp_path: Path) -> None:
    kept = tmp_path / "stats.json"
    words = (*RESIDENT, "--expert-budget-mib", "8", "--expert-stats-file", str(kept))
    server = serve(tiny, *words, "--expert-trace", str(tmp_path / "trace"))
    before = server.http.get("/residency").json()  # upstream tries its contexts with a few tokens
    server.answer(numbers(30, 1), 20, cache_prompt=False)
    state = server.http.get("/residency").json()
    assert state["tokens"] - before["tokens"] == 30 + 19
    assert state["experts"] == 8 * 32
    metrics = server.http.get("/metrics").text
    for name, key in (("hits_total", "hits"), ("misses_total", "misses")):
        assert f"\nllama_ai:expert_{name} {state[key]}\n" in metrics
    for name in ("read_bytes", "read_seconds", "stall_seconds", "evictions", "predicted"):
        assert f"\nllama_ai:expert_{name}_total " in metrics
    assert f"\nllama_ai:expert_budget_bytes {8 << 20}\n" in metrics
    server._wait(lambda: "experts: slot 0: " in server.output)

    stats = server.http.get("/expert-stats").json()
    assert stats["n_expert"] == 32
    assert stats["n_expert_used"] == 4
    assert stats["tracking_enabled"] is True
    assert stats["total_tokens"] == 49
    answer = server.http.post("/expert-tracking", json={"enabled": False})
    assert answer.status_code == 200
    server.answer(numbers(30, 2), 4, cache_prompt=False)
    stats = server.http.get("/expert-stats").json()
    assert stats["total_tokens"] == 49
    assert stats["tracking_enabled"] is False
    assert server.http.post("/expert-tracking", content="[").status_code == 400
    server.stop()
    assert kept.stat().st_size > 0
    assert (tmp_path / "trace").stat().st_size > 0

    # What was used before is there before it is asked for.
    server = serve(tiny, *words, "--expert-prewarm")
    server._wait(lambda: server.http.get("/residency").json()["resident_experts"] > 20)
    assert server.http.get("/expert-stats").json()["total_tokens"] == 49
    server.stop()


def test_tracking_alone(tiny: Path, serve: Serve) -> None:
    server = serve(tiny, "--expert-tracking")
    server.answer(numbers(30, 1), 10, cache_prompt=False)
    assert server.http.get("/expert-stats").json()["total_tokens"] == 39
    assert server.http.get("/residency").json() == {"enabled": False}
    assert "llama_ai:expert_hits_total" not in server.http.get("/metrics").text
    server.stop()


def test_told_by_the_environment(tiny: Path, serve: Serve) -> None:
    """How a router tells the servers that it starts for its models."""
    plain = serve(tiny, *PLAIN)
    expected = plain.answer(numbers(40, 1), 8)[0]
    plain.stop()
    words = {"LLAMA_AI_ENGINE_EXPERT_RESIDENCY": "", "LLAMA_AI_ENGINE_EXPERT_BUDGET_MIB": "4"}
    server = serve(tiny, *PLAIN, env=words)
    assert server.answer(numbers(40, 1), 8)[0] == expected
    assert server.http.get("/residency").json()["budget_bytes"] == 4 << 20
    server.stop()


def test_a_server_that_is_told_to_end_while_it_reads(tiny: Path, serve: Serve) -> None:
    """Upstream ends when the waiting client gives up; threads that read are no reason to stay."""
    for how in (signal.SIGTERM, signal.SIGINT):
        server = serve(tiny, *RESIDENT, "--expert-budget-mib", "1")

        def ask(server: Server = server) -> None:
            with contextlib.suppress(httpx.HTTPError):
                body = {"prompt": numbers(4000, 1), "n_predict": 500, "ignore_eos": True}
                httpx.post(server.http.base_url.copy_with(path="/completion"), json=body, timeout=3)

        def busy(server: Server = server) -> bool:
            return bool(server.http.get("/residency").json()["tokens"] > 1000)

        asking = threading.Thread(target=ask)
        asking.start()
        server._wait(busy)
        server.process.send_signal(how)
        asking.join()
        assert server.process.wait(30) == 0, server.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--expert-budget-mib", "much"), "--expert-budget-mib: not a whole number"),
        (("--expert-prefetch-threads", "0"), "--expert-prefetch-threads: not a whole number"),
        (("--expert-stats-file", ""), "--expert-stats-file: empty"),
    ],
)
def test_values_that_make_no_sense(
    tiny: Path, serve: Serve, words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        serve(tiny, "--expert-residency", *words)
