"""ModelFacts of published models, and of files that are not what they should be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.facts import facts_of, read_facts, vocabulary_size
from llama_ai.gguf.header import read_header
from llama_ai.gguf.parse import Skipped
from tests.support.gguf_files import ARR, BOOL, I32, STR, U32, llama, llama_kv
from tests.support.recorded import model, recorded


def kinds(name: str) -> str:
    """A letter a layer: full, sliding, recurrent, shared cache, or none of them; n for NextN."""
    letters = ""
    for layer in model("headers", name).facts.hparams.layers:
        if layer.nextn:
            letters += "n"
        elif layer.recurrent:
            letters += "r"
        elif layer.kv_reused:
            letters += "s"
        elif layer.k_width:
            letters += "w" if layer.sliding else "f"
        else:
            letters += "-"
    return letters


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Meta-Llama", "f" * 32),
        ("gemma-3-27b", ("wwwwwf" * 11)[:62]),
        ("gpt-oss", "wf" * 12),
        ("gemma-4-E2B", "wwwwf" * 3 + "s" * 20),
        ("Qwen3.6", "rrrf" * 10 + "n"),
        ("GLM-4.5-Air", "f" * 46 + "n"),
        ("falcon-mamba", "r" * 64),
        ("LFM2", "rrfrrrfrrrfrrrfrrrfrrfrr"),
    ],
)
def test_what_each_layer_holds(name: str, expected: str) -> None:
    assert kinds(name) == expected


def test_a_hybrid_with_layers_that_hold_nothing() -> None:
    """Nemotron-H: 23 Mamba-2 layers, 6 with attention, the rest are experts only."""
    letters = kinds("NVIDIA-Nemotron")
    assert len(letters) == 52
    assert (letters.count("r"), letters.count("f"), letters.count("-")) == (23, 6, 23)


@pytest.mark.parametrize(
    ("name", "total", "used"),
    [
        ("Meta-Llama", 0, 0),
        ("Qwen3-Coder-30B", 128, 8),
        ("gpt-oss", 32, 4),
        ("DeepSeek-Coder-V2-Lite", 64, 6),
        ("Qwen3.6", 256, 8),
    ],
)
def test_experts(name: str, total: int, used: int) -> None:
    facts = model("headers", name).facts
    assert facts.is_moe == (total > 0)
    assert facts.hparams.n_expert == total
    assert max(layer.n_expert_used for layer in facts.hparams.layers) == used


def test_latent_attention_is_told_apart_from_its_expanded_form() -> None:
    """V2-Lite's file has no ``key_length_mla``, so the engine keeps whole heads in its cache."""
    old = model("headers", "DeepSeek-Coder-V2-Lite").facts.hparams
    new = model("headers", "GLM-4.7-Flash").facts.hparams
    assert (old.mla, old.layers[0].k_width, old.layers[0].v_width) == (False, 3072, 2048)
    assert (new.mla, new.layers[0].k_width, new.layers[0].v_width) == (True, 576, 0)


def test_drafting_layers_are_seen_by_their_tensors() -> None:
    with_mtp = {item.name[:7] for item in recorded("headers") if item.facts.has_mtp}
    assert with_mtp == {"GLM-4.5", "Qwen3.6"}
    facts = model("headers", "Qwen3.6").facts
    without = tuple(t for t in facts.header.tensors if ".nextn." not in t.name)
    assert not facts_of(replace(facts.header, tensors=without)).has_mtp


def test_weights_by_class_add_up() -> None:
    for item in (*recorded("headers"), *recorded("zoo")):
        tensors = sum(tensor.size_bytes for tensor in item.facts.header.tensors)
        assert item.facts.weights.total_bytes == tensors, item.name


def test_weights_by_class() -> None:
    facts = model("headers", "Qwen3-Coder-30B").facts
    weights = facts.weights
    assert len(weights.expert_bytes) == 48
    assert all(size == 3 * 128 * 2048 * 768 * 34 // 32 for size in weights.expert_bytes)
    assert weights.embedding_bytes == weights.output_bytes - 4 * 2048 == 151936 * 2048 * 34 // 32
    assert model("headers", "gemma-4-E2B").facts.weights.per_layer_embedding_bytes > 1 << 30
    assert model("headers", "GLM-4.5-Air").facts.weights.nextn_bytes > 1 << 30


def test_tied_embeddings_types_and_names() -> None:
    assert {item.name[:6] for item in recorded("headers") if item.facts.tied_embeddings} == {
        "LFM2-8",
        "gemma-",
    }
    assert model("headers", "gpt-oss").facts.quant == "mxfp4"
    llama31 = model("headers", "Meta-Llama").facts
    assert (llama31.quant, llama31.name) == ("q4_k", "Llama-3.1-8B-Instruct")
    assert round(llama31.n_params / 1e9, 2) == 8.03
    assert vocabulary_size(llama31.header) == llama31.hparams.n_vocab == 128256


def test_every_architecture_of_the_zoo_is_read() -> None:
    assert len({item.facts.architecture for item in recorded("zoo")}) > 100


def test_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = llama().write(tmp_path / "Little-Thing-Q8_0.gguf")
    facts = read_facts(path)
    assert facts == read_facts(path)
    assert (facts.name, facts.path) == ("Little-Thing-Q8_0", path)
    assert facts.size_bytes == path.stat().st_size
    assert facts.n_ctx_train == 4096
    assert facts.chat_template is None
    assert facts.reasons is None


@pytest.mark.parametrize(
    ("template", "reasons"),
    [
        ("{{ messages }}", False),
        ("{% if enable_thinking %}<think>{% endif %}", True),
        ("<|channel|>analysis", True),
    ],
)
def test_chat_templates(tmp_path: Path, template: str, reasons: bool) -> None:
    kv = llama_kv(more={"tokenizer.chat_template": (STR, template)})
    path = replace(llama(), kv=kv).write(tmp_path / "m.gguf")
    facts = facts_of(read_header(path))
    assert facts.chat_template == template
    assert facts.reasons is reasons


def test_head_counts_a_layer(tmp_path: Path) -> None:
    more = {"llama.attention.head_count_kv": (ARR, (I32, [2, 1]))}
    path = replace(llama(), kv=llama_kv(more=more)).write(tmp_path / "m.gguf")
    layers = facts_of(read_header(path)).hparams.layers
    assert [layer.k_width for layer in layers] == [32, 16]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"general.architecture": (STR, "llama99")}, "not known"),
        ({"general.architecture": (STR, "clip")}, "projector"),
        ({"general.architecture": (U32, 3)}, "does not name its architecture"),
        ({"llama.block_count": (U32, 0)}, "layers"),
        ({"llama.block_count": (U32, 4_000_000)}, "layers"),
        ({"llama.block_count": (STR, "2")}, "block_count"),
        ({"llama.block_count": (BOOL, 1), "llama.attention.head_count": (U32, 0)}, ""),
        ({"llama.embedding_length": (STR, "x")}, "embedding_length"),
        ({"llama.attention.head_count_kv": (ARR, (I32, [2]))}, "elements for 2 layers"),
        ({"llama.attention.head_count_kv": (ARR, (I32, [-2, 1]))}, "head_count_kv"),
    ],
)
def test_broken_metadata_is_refused(
    tmp_path: Path, changed: dict[str, tuple[int, object]], words: str
) -> None:
    path = replace(llama(), kv=llama_kv(more=changed)).write(tmp_path / "m.gguf")
    header = read_header(path)
    if not words:
        facts_of(header)
        return
    with pytest.raises(BadModelFileError, match=words) as caught:
        facts_of(header)
    assert caught.value.hint


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    kv = llama_kv()
    del kv["llama.block_count"]
    path = replace(llama(), kv=kv).write(tmp_path / "m.gguf")
    with pytest.raises(BadModelFileError, match=r"llama\.block_count is missing"):
        facts_of(read_header(path))


def test_a_vocabulary_file_and_a_big_endian_one_are_refused(tmp_path: Path) -> None:
    path = replace(llama(), tensors=()).write(tmp_path / "vocab.gguf")
    with pytest.raises(BadModelFileError, match="no tensors"):
        facts_of(read_header(path))
    path = replace(llama(), order=">").write(tmp_path / "big.gguf")
    with pytest.raises(BadModelFileError, match="big-endian"):
        facts_of(read_header(path))


def test_a_vocabulary_that_was_skipped_is_counted() -> None:
    header = model("headers", "gemma-3").facts.header
    assert isinstance(header.kv["tokenizer.ggml.tokens"], Skipped)
    assert vocabulary_size(header) == 262208
