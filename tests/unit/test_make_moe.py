"""The synthetic MoE models: valid files whose routing is what was asked for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import gguf
import numpy as np
import pytest

from benchmarks.disk_reads import expert_slices
from benchmarks.make_moe import (
    LOGIT_DEVIATION,
    TOPIC_LEVEL,
    Moe,
    measure_use,
    random_blocks,
    read_moe,
    router_rows,
    vocabulary,
    write_moe,
)
from llama_ai.gguf.facts import read_facts

if TYPE_CHECKING:
    from pathlib import Path

Kind = gguf.GGMLQuantizationType
TINY = Moe(
    layers=3,
    experts=16,
    used=2,
    embedding=256,
    feed_forward=256,
    heads=4,
    kv_heads=2,
    head_size=64,
    vocabulary=1024,
)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q4_K, Kind.Q6_K])
def test_random_blocks_are_symmetric_and_as_wide_as_asked(kind: Kind) -> None:
    blocks = random_blocks(kind, 1 << 20, 0.02, np.random.default_rng(3))
    values = gguf.quants.dequantize(blocks, kind)
    assert values.size == 1 << 20
    assert values.std() == pytest.approx(0.02, rel=0.01)
    assert abs(values.mean()) < 0.02 * 0.01
    assert abs((values**3).mean()) < 0.02**3 * 0.05


def test_equal_settings_make_equal_files_and_another_seed_makes_another(tmp_path: Path) -> None:
    for name, moe in (("a", TINY), ("b", TINY), ("c", replace(TINY, seed=2))):
        write_moe(tmp_path / name, moe)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b
    assert a[-1000:] != c[-1000:]


@pytest.mark.parametrize("quant", ["q4_0", "q4_k_m"])
def test_a_file_says_what_it_is(tmp_path: Path, quant: Literal["q4_0", "q4_k_m"]) -> None:
    moe = replace(TINY, quant=quant, layers=8)
    path = tmp_path / "model.gguf"
    assert write_moe(path, moe) == path.stat().st_size
    assert read_moe(path) == moe
    facts = read_facts(path)
    assert facts.architecture == "qwen3moe"
    reader = gguf.GGUFReader(path)
    kinds = {tensor.name: tensor.tensor_type for tensor in reader.tensors}
    downs = [kinds[f"blk.{layer}.ffn_down_exps.weight"] for layer in range(8)]
    q4, q6 = Kind.Q4_K, Kind.Q6_K
    # One layer of eight at each end, and every third between.
    mixed = [q6, q4, q4, q6, q4, q4, q6, q6]
    assert downs == ([Kind.Q4_0] * 8 if quant == "q4_0" else mixed)
    slices = expert_slices(path)
    assert slices.units == 8 * 16
    assert len(slices.spans) == 8 * 16 * 3
    sizes = {tensor.name: tensor.n_bytes for tensor in reader.tensors if "_exps" in tensor.name}
    assert slices.total_bytes == sum(sizes.values())
    # A span holds the bytes of that expert: gate of layer 0, expert 5.
    gate = next(t for t in reader.tensors if t.name == "blk.0.ffn_gate_exps.weight")
    offset, size = slices.spans[5 * 3]
    assert path.read_bytes()[offset : offset + size] == gate.data[5].tobytes()


@pytest.mark.parametrize(("experts", "used", "zipf"), [(64, 4, 1.0), (128, 8, 1.0), (64, 4, 0.0)])
def test_shares_add_up_and_no_expert_is_chosen_more_than_once_a_token(
    experts: int, used: int, zipf: float
) -> None:
    shares = Moe(experts=experts, used=used, zipf=zipf).shares
    assert shares.sum() == pytest.approx(used)
    assert shares.max() <= 1 + 1e-9
    free = shares[shares < 1 - 1e-9]
    ranks = np.arange(experts - len(free), experts) + 1
    assert free * ranks**zipf == pytest.approx(free[0] * ranks[0] ** zipf)


@pytest.mark.parametrize(("zipf", "topics"), [(1.0, 1), (0.5, 1), (0.0, 1), (1.0, 4)])
def test_routers_choose_as_asked_in_each_topic(zipf: float, topics: int) -> None:
    moe = replace(TINY, zipf=zipf, topics=topics, embedding=512, experts=32, used=4)
    random = np.random.default_rng(8)
    orders = []
    for topic in range(topics):
        # What a router sees: a token's own noise, the level of its topic, divided by the rms.
        seen = random.standard_normal((20_000, moe.embedding))
        seen[:, :topics] = 0
        seen[:, topic] = TOPIC_LEVEL
        seen /= np.sqrt((seen**2).mean(axis=1, keepdims=True))
        # The residual stream grew by then; the rows of layer 0 expect none of it.
        logits = seen @ router_rows(moe, 0).T
        chosen = np.argpartition(logits, -moe.used)[:, -moe.used :]
        counts = np.bincount(chosen.ravel(), minlength=moe.experts)
        assert measure_use(counts) == pytest.approx(zipf, abs=0.06)
        orders.append(tuple(np.argsort(-counts)[:8]))
    assert len(set(orders)) == topics or not zipf


def test_the_fit_finds_the_exponent_in_any_order() -> None:
    for exponent in (0.0, 0.7, 1.0, 1.6):
        counts = (1e6 * np.arange(1, 65.0) ** -exponent).astype(np.int64)
        assert measure_use(np.random.default_rng(1).permutation(counts)) == pytest.approx(
            exponent, abs=0.01
        )


def test_topics_are_ranges_that_cover_the_vocabulary_but_the_end_mark() -> None:
    moe = replace(TINY, topics=5)
    tokens = [token for topic in range(5) for token in moe.tokens_of(topic)]
    assert tokens == list(range(moe.vocabulary - 1))
    assert all(moe.topic_of(token) == topic for topic in range(5) for token in moe.tokens_of(topic))


def test_the_vocabulary_is_unique_and_its_merges_make_its_pairs() -> None:
    tokens, merges = vocabulary(2000)
    assert len(tokens) == len(set(tokens)) == 2000
    assert len(merges) == 2000 - 257
    assert [merge.replace(" ", "") for merge in merges] == tokens[256:-1]
    assert all(len(merge.split(" ")) == 2 for merge in merges)


@pytest.mark.parametrize(
    "wrong",
    [
        {"embedding": 200},
        {"quant": "q4_k_m", "feed_forward": 128},
        {"used": 16},
        {"topics": 100},
        {"vocabulary": 100},
        {"zipf": -1.0},
    ],
)
def test_impossible_models_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(TINY, **wrong)  # type: ignore[arg-type]


def test_logits_are_wide_enough_that_a_sampled_text_does_not_repeat(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_moe(path, TINY)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    head = gguf.quants.dequantize(tensors["output.weight"].data, Kind.Q8_0)
    assert head.std() * math.sqrt(TINY.embedding) == pytest.approx(LOGIT_DEVIATION, rel=0.05)
