"""Tracking where a GPU computes the experts (Mesa's software driver), and traces of an engine."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from llama_ai.engine.build import build_targets
from llama_ai.engine.engines import default_recipe
from llama_ai.engine.events import ignore
from tests.integration.experts.conftest import PLAIN, RESIDENT
from tests.integration.kv.conftest import numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from tests.integration.kv.conftest import Server

    Serve = Callable[..., Server]

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.fixture(scope="session")
def simulator() -> Path:
    return build_targets(default_recipe(), ("expert_simulator",), jobs=None, on_progress=ignore) / (
        "bin/expert_simulator"
    )


def replayed(simulator: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run([simulator, *words], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.vulkan
def test_experts_on_a_gpu_are_sampled(
    tiny: Path, serve: Serve, vulkan_engine: EngineInfo, simulator: Path, tmp_path: Path
) -> None:
    """A part of the computations is looked at, all layers of it; answers stay as they are."""
    assert "vulkan" in vulkan_engine.backends
    there = {"GGML_VK_VISIBLE_DEVICES": "0"}
    words = ("--gpu-layers", "99")
    plain = serve(tiny, *words, env=there)
    expected = plain.answer(numbers(40, 1), 80)[0]
    plain.stop()
    trace = tmp_path / "trace"
    server = serve(tiny, *words, "--expert-tracking", "--expert-trace", str(trace), env=there)
    assert server.answer(numbers(40, 1), 80)[0] == expected
    stats = server.http.get("/expert-stats").json()
    assert stats["sample_every"] > 1
    assert len(stats["layers"]) == 8
    assert 80 / stats["sample_every"] / 2 < stats["total_tokens"] < 40 + 80 / 2
    for layer in stats["layers"]:
        # The last layer computes those tokens of a prompt alone whose logits are wanted.
        assert layer["tokens"] == stats["total_tokens"] or layer["layer"] == 7
        assert sum(one["count"] for one in layer["activations"]) == 4 * layer["tokens"]
    before = stats["total_tokens"]
    server.http.post("/expert-tracking", json={"enabled": False, "reset": False})
    assert server.answer(numbers(40, 1), 80, cache_prompt=False)[0] == expected
    assert server.http.get("/expert-stats").json()["total_tokens"] == before
    server.stop()
    info = replayed(simulator, str(trace), "--info")
    assert (info["n_layer"], info["n_expert"], info["n_expert_used"]) == (8, 32, 4)
    assert info["complete"] is True


def test_a_trace_says_what_the_engine_did(
    tiny: Path, serve: Serve, simulator: Path, tmp_path: Path
) -> None:
    """Every token of every layer is in it, and its counts are those of the statistics."""
    trace = tmp_path / "trace"
    server = serve(tiny, *RESIDENT, "--expert-budget-mib", "8", "--expert-trace", str(trace))
    server.answer(numbers(100, 1), 30)
    tokens = server.http.get("/expert-stats").json()["total_tokens"]
    server.stop()
    info = replayed(simulator, str(trace), "--info")
    assert info["tokens"] <= tokens == 129
    assert (info["expert_layers"], info["dropped"], info["complete"]) == (8, 0, True)
    (run,) = replayed(simulator, str(trace), "--policy", "belady", "--budget-units", "256")["runs"]
    assert run["evictions"] == 0
    assert run["decode"]["accesses"] >= 4 * 8 * 29


def test_statistics_of_another_model_are_not_used(tiny: Path, serve: Serve, tmp_path: Path) -> None:
    kept = tmp_path / "stats.json"
    kept.write_text("{")
    words = (*PLAIN, "--expert-tracking", "--expert-stats-file", str(kept))
    server = serve(tiny, *words)
    assert str(kept) in server.output
    assert "starting anew" in server.output
    assert (tmp_path / "stats.json.damaged").read_text() == "{"
    server.answer(numbers(20, 1), 4)
    server.stop()
    document = json.loads(kept.read_text())
    document["model"] = "another"
    kept.write_text(json.dumps(document))
    server = serve(tiny, *words)
    assert "it belongs to another model" in server.output
    assert server.http.get("/expert-stats").json()["total_tokens"] == 0
    server.stop()
