"""The memory probe's words and answers; the real probe is asked in tests/integration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from llama_ai.engine.capabilities import EngineInfo
from llama_ai.engine.probe import layout_words, measure
from llama_ai.errors import EngineNotReadyError, LlamaAiError, ModelNotFoundError
from solver.types import Layout

if TYPE_CHECKING:
    from pathlib import Path

ROW = {"total_bytes": 10, "free_bytes": None, "model_bytes": 1, "context_bytes": 2}


def engine(directory: Path) -> EngineInfo:
    return EngineInfo(
        key="k",
        directory=directory,
        server=directory / "llama-server",
        version=None,
        upstream_commit=None,
        patches=(),
        backends=("cpu",),
        flags=frozenset(),
        capabilities=(),
        stock=True,
    )


def probe(directory: Path, text: str) -> EngineInfo:
    program = directory / "memory_probe"
    program.write_text("#!/bin/sh\ncat >/dev/null\n" + text)
    program.chmod(0o755)
    return engine(directory)


def ask(engine: EngineInfo, count: int = 1, timeout_s: float = 120) -> object:
    layouts = [Layout(ctx_size=4096)] * count
    model = engine.directory / "m.gguf"
    return measure(engine, model, layouts, device=None, env={}, timeout_s=timeout_s)


def test_an_engine_without_a_probe_gives_none(tmp_path: Path) -> None:
    assert ask(engine(tmp_path)) is None


def test_everything_that_decides_memory_is_said() -> None:
    plain = layout_words(Layout(ctx_size=4096), None)
    assert plain["device"] == "none"
    assert "n_cpu_moe" not in plain
    assert "spec_type" not in plain
    full = layout_words(
        Layout(
            ctx_size=8192,
            kv_type_k="q8_0",
            kv_type_v="q4_0",
            n_parallel=2,
            kv_unified=True,
            batch=1024,
            ubatch=256,
            gpu_layers=9,
            n_cpu_moe=3,
            flash_attn=False,
            swa_full=True,
            mtp=True,
            load_mode="mmap",
            repack=False,
        ),
        "Vulkan0",
    )
    assert full == {
        "ctx_size": 8192,
        "cache_type_k": "q8_0",
        "cache_type_v": "q4_0",
        "parallel": 2,
        "kv_unified": True,
        "batch_size": 1024,
        "ubatch_size": 256,
        "device": "Vulkan0",
        "gpu_layers": 9,
        "n_cpu_moe": 3,
        "flash_attn": "off",
        "swa_full": True,
        "load_mode": "mmap",
        "repack": False,
        "spec_type": "draft-mtp",
        "spec_draft_n_max": 3,
    }


def test_answers_are_typed_and_in_order(tmp_path: Path) -> None:
    draft = {"model_bytes": 100, "context_bytes": 200, "compute_bytes": 300}
    answers = [
        {
            "devices": [{**ROW, "name": "Vulkan0", "compute_bytes": 3, "draft": draft}],
            "host": {**ROW, "compute_bytes": 4},
        },
        {"error": "no"},
    ]
    (tmp_path / "answer").write_text(json.dumps({"layouts": answers}))
    found = ask(probe(tmp_path, f"cat {tmp_path}/answer"), count=2)
    assert isinstance(found, tuple)
    first, second = found
    [device] = first.devices
    assert (device.name, device.total_bytes, device.free_bytes) == ("Vulkan0", 10, None)
    assert device.needed_bytes == 606
    assert first.host is not None
    assert first.host.needed_bytes == 7
    assert (second.error, second.host, second.devices) == ("no", None, ())


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        ("exit 4", ModelNotFoundError, "cannot read"),
        ("echo broken >&2; exit 9", EngineNotReadyError, "status 9"),
        ("echo nonsense", EngineNotReadyError, "no answer that can be read"),
        ("echo '{\"layouts\": []}'", EngineNotReadyError, "answered 0 of 1"),
        ('echo \'{"layouts": [{"devices": []}]}\'', EngineNotReadyError, "no answer"),
    ],
)
def test_what_goes_wrong_is_told(
    tmp_path: Path, text: str, error: type[LlamaAiError], match: str
) -> None:
    with pytest.raises(error, match=match):
        ask(probe(tmp_path, text))


def test_a_probe_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(LlamaAiError, match="did not end within"):
        ask(probe(tmp_path, "sleep 60"), timeout_s=0.2)
