"""State that lies elsewhere or comes from more than one model: Vulkan, a draft model, LoRA."""

from __future__ import annotations

import shutil
import signal
import threading
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

from llama_ai.kv_cache.files import read_directory
from tests.integration.kv.conftest import numbers, story

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from tests.integration.kv.conftest import Server

    Zoo = Callable[[str], tuple[Path, tuple[str, ...]]]

pytestmark = pytest.mark.engine


@pytest.mark.vulkan
def test_state_on_a_vulkan_device_comes_back(
    zoo: Zoo, serve: Callable[..., Server], vulkan_engine: EngineInfo, tmp_path: Path
) -> None:
    """On Mesa's software driver: read back from a device, and written to it."""
    assert "vulkan" in vulkan_engine.backends
    model, words = zoo("dense")
    words = (*words, "--gpu-layers", "99", "--verbosity", "4")
    there = {"GGML_VK_VISIBLE_DEVICES": "0"}
    prompt, more = numbers(300, 1), numbers(20, 2)
    server = serve(model, *words, "--kv-dir", str(tmp_path / "kv"), env=there)
    assert "Vulkan0 KV buffer" in server.output
    answer, _ = server.answer(prompt, 4)
    server.wait_written()
    shutil.copytree(tmp_path / "kv", tmp_path / "before")
    prompt = [*prompt, *answer, *more]
    expected = (*server.answer(prompt, 4), server.state())
    server.stop(signal.SIGKILL)
    server = serve(model, *words, "--kv-dir", str(tmp_path / "before"), env=there)
    assert (*server.answer(prompt, 4), server.state()) == expected
    assert server.said[0].startswith("cold, 303 of 324 tokens restored")
    server.stop()


def test_the_draft_models_state_comes_back_too(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """A model that drafts for itself: with its state, every draft is right, without it none."""
    draft = ("--spec-draft-model", str(demo_model), "--spec-type", "draft-simple")
    disk = ("--kv-dir", str(tmp_path / "kv"))
    outcomes: list[list[Any]] = []
    for restart in (True, False):
        words = (*draft, *(disk if restart else ()))
        server = serve(demo_model, *words)
        prompt = server.tokens(story(240, 1))
        turn = server.tokens(story(40, 2))
        said = []
        for number in range(2):
            result = server.whole_answer(prompt, 24)
            timings = result["timings"]
            figures = [timings[name] for name in ("cache_n", "draft_n", "draft_n_accepted")]
            said.append([result["tokens"], *figures])
            prompt = [*prompt, *result["tokens"], *turn]
            if restart and number == 0:
                server.wait_written()
                server.stop()
                server = serve(demo_model, *words)
        outcomes.append(said)
        server.stop()
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1][1] > 300  # reused
    assert outcomes[0][1][3] > 0  # accepted


def write_adapter(path: Path, base: Path, seed: int) -> None:
    """A LoRA adapter for the first layer's queries: small, and strong enough to be seen."""
    shapes = {
        tensor.name: tensor.shape
        for tensor in gguf.GGUFReader(base).tensors
        if tensor.name in {"blk.0.attn_q.weight", "blk.0.attn_v.weight"}
    }
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for name, shape in shapes.items():
        columns, rows = (int(length) for length in shape)
        one = random.standard_normal((4, columns)) * 0.1
        other = random.standard_normal((rows, 4)) * 0.1
        writer.add_tensor(f"{name}.lora_a", one.astype(np.float32))
        writer.add_tensor(f"{name}.lora_b", other.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_lora_adapters_are_part_of_the_fingerprint(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    adapters = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for seed, path in enumerate(adapters):
        write_adapter(path, demo_model, seed)
    kv = tmp_path / "kv"
    disk = ("--kv-dir", str(kv))
    with_a = ("--lora", str(adapters[0]))
    server = serve(demo_model, *with_a, *disk)
    prompt = server.tokens(story(220, 1))
    said, _ = server.answer(prompt)
    server.wait_written()
    server.stop()
    server = serve(demo_model, *with_a, *disk)
    assert server.answer(prompt) == (said, len(prompt) - 1)
    server.stop()
    half = ("--lora-scaled", f"{adapters[0]}:0.5")
    for other in ((), ("--lora", str(adapters[1])), half):
        server = serve(demo_model, *other, *disk)
        assert server.answer(prompt)[1] == 0, other
        assert "other fingerprint" in server.said[0]
        server.http.delete("/kv-cache")
        server.stop(signal.SIGKILL)


def test_scales_of_a_request_end_the_storing(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """A state does not say which scales it was computed with, so none is stored any more."""
    adapter = tmp_path / "a.gguf"
    write_adapter(adapter, demo_model, 0)
    kv = tmp_path / "kv"
    words = ("--lora", str(adapter), "--kv-dir", str(kv))
    server = serve(demo_model, *words)
    prompt = server.tokens(story(220, 1))
    server.answer(prompt, lora=[{"id": 0, "scale": 0.0}])
    server.answer(server.tokens(story(220, 2)))
    assert server.wait_written()["writing"] is False
    assert server.output.count("the scales of the LoRA adapters were changed") == 1
    server.stop()
    assert read_directory(kv).files == ()
    # For all requests from now on.
    server = serve(demo_model, *words)
    server.answer(prompt)
    stored = server.wait_written()["files"]
    assert stored > 0
    assert server.http.post("/lora-adapters", json=[{"id": 0, "scale": 0.5}]).status_code == 200
    server.answer(server.tokens(story(220, 3)))
    assert server.wait_written()["files"] == stored
    server.stop()


def test_four_slots_at_once_keep_to_their_conversations(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Micro-batches of one token on one thread make an answer independent of what other slots do
    meanwhile, and of where among theirs its cells lie."""
    one = ("--ubatch-size", "1")
    four = (*one, "--parallel", "4", "--kv-dir", str(tmp_path / "kv"))
    server = serve(demo_model, *four)
    common = server.tokens(story(180, 9))
    prompts = [common + server.tokens(story(28, seed)) for seed in range(4)]
    turn = server.tokens(story(12, 5))
    answers: list[list[list[int]]] = [[], [], [], []]

    def ask(number: int) -> None:
        said, _ = server.answer(prompts[number])
        answers[number].append(said)
        prompts[number] = [*prompts[number], *said, *turn]

    def all_at_once() -> None:
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.wait_written()

    all_at_once()
    server.stop(signal.SIGKILL)
    server = serve(demo_model, *four)
    all_at_once()
    reused = [line for line in server.said if line.startswith("cold, ")]
    assert len(reused) == 4, server.said
    server.stop()
    fresh = serve(demo_model, *one)
    for number in range(4):
        second = prompts[number][: -len(turn) - 8]
        first = second[: -len(turn) - 8]
        assert fresh.answer(first)[0] == answers[number][0]
        assert fresh.answer(second)[0] == answers[number][1]
    fresh.stop()
