"""Drafts and projectors: which is chosen, what is refused, what the plan and the command say."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from llama_ai import paths
from llama_ai.cli.pipeline import command_for
from llama_ai.companions import (
    Companions,
    choose_companions,
    projector_compute_bytes,
    read_draft,
    read_projector,
)
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.errors import DoesNotFitError, ModelNotFoundError, UsageError
from llama_ai.gguf.facts import ModelFacts, read_facts
from llama_ai.gguf.header import read_header
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
from llama_ai.models.catalog import Companion
from llama_ai.models.catalog import resolve as find
from llama_ai.planning import Profile, choose_target, make_profile
from solver.types import MIB
from tests.support.models import write_model

WIDTH = 64
VOCABULARY = 32


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")


@pytest.fixture
def model(tmp_path: Path) -> ModelFacts:
    (tmp_path / "m").mkdir()
    return read_facts(write_model(tmp_path / "m" / "tiny-Q8_0.gguf"))


def dflash(
    path: Path,
    *,
    width: int = WIDTH,
    n_vocab: int = VOCABULARY,
    markov: bool = False,
    layers: tuple[int, ...] = (0, 1),
    tokenizer: str = "llama",
) -> Path:
    """A DFlash draft (with ``markov``: DSpark) for models of ``write_model``."""
    writer = gguf.GGUFWriter(path, "dflash")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_array("dflash.target_layers", list(layers))
    writer.add_uint32("dflash.block_size", 8)
    writer.add_tokenizer_model(tokenizer)
    writer.add_token_list([f"t{index}" for index in range(n_vocab)])
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, width * len(layers)),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_q.weight": (width, width),
        "blk.0.attn_k.weight": (width // 2, width),
        "blk.0.attn_v.weight": (width // 2, width),
        "blk.0.attn_output.weight": (width, width),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (2 * width, width),
        "blk.0.ffn_up.weight": (2 * width, width),
        "blk.0.ffn_down.weight": (width, 2 * width),
    }
    if markov:
        shapes |= {"markov_w1.weight": (n_vocab, 32), "markov_w2.weight": (n_vocab, 32)}
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def clip(path: Path, *, image: int = 896, patch: int = 14) -> Path:
    """A projector as large as Gemma 3's in its metadata, with one small tensor."""
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    for name, value in (
        ("image_size", image),
        ("patch_size", patch),
        ("embedding_length", 1152),
        ("attention.head_count", 16),
    ):
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_tensor("v.patch_embd.weight", np.zeros((8, 8), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def settings(**flags: float | str | bool) -> Settings:
    config = ConfigFile(path=Path("config.toml"), values={}, model_dirs=())
    return resolve(flags=flags, assignments=[], environ={}, config=config)


def beside(*drafts: Path) -> list[Companion]:
    return [Companion(kind="draft", path=path, size_bytes=path.stat().st_size) for path in drafts]


def plan(model: ModelFacts, companions: Companions, wishes: Settings) -> Profile:
    return make_profile(
        model,
        model_path=model.path,
        model_name="tiny",
        target=choose_target(detect(Root("/")), wishes, {}, None),
        settings=wishes,
        companions=companions,
    )


CPU: dict[str, int | str] = {"backend": "cpu", "ctx_size": 512, "cache_ram": 0}


def test_dspark_comes_before_dflash_and_has_its_own_numbers(
    tmp_path: Path, model: ModelFacts
) -> None:
    files = beside(
        dflash(tmp_path / "a-dflash.gguf"), dflash(tmp_path / "b-dspark.gguf", markov=True)
    )
    both = choose_companions(model, files, None, settings()).draft
    assert both is not None
    assert (both.kind, both.n_max, both.p_min) == ("dspark", 3, 0.0)
    one = choose_companions(model, files[:1], None, settings()).draft
    assert one is not None
    assert (one.kind, one.n_max, one.p_min) == ("dflash", 7, 0.6)
    told = choose_companions(model, files[:1], None, settings(dflash_n_max=4)).draft
    assert told is not None
    assert told.n_max == 4
    assert choose_companions(model, files, None, settings(draft="off")).draft is None


def test_the_header_says_what_a_draft_is_not_its_name(tmp_path: Path, model: ModelFacts) -> None:
    assert read_draft(model, dflash(tmp_path / "dflash-x.gguf", markov=True)).kind == "dspark"
    assert read_draft(model, write_model(tmp_path / "small.gguf", n_layer=1)).kind == "simple"


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"n_vocab": 2000}, "another vocabulary"),
        ({"tokenizer": "gpt2"}, "another vocabulary"),
        ({"width": 128}, "width 128"),
        ({"layers": (0, 40)}, "reads layer 40"),
    ],
)
def test_a_draft_for_another_model_is_left_out_and_said(
    tmp_path: Path, model: ModelFacts, fault: dict[str, int], says: str
) -> None:
    wrong = dflash(tmp_path / "dflash-x.gguf", **fault)  # type: ignore[arg-type]
    chosen = choose_companions(model, beside(wrong), None, settings())
    assert chosen.draft is None
    assert len(chosen.notes) == 1
    assert says in chosen.notes[0]
    with pytest.raises(UsageError, match=says):
        choose_companions(model, [], None, settings(draft=str(wrong)))


def test_a_draft_that_is_not_there_is_not_found(model: ModelFacts) -> None:
    with pytest.raises(ModelNotFoundError, match="--draft"):
        choose_companions(model, [], None, settings(draft="/no/such/draft.gguf"))


def test_a_drafts_memory_is_counted_and_its_words_are_said(
    tmp_path: Path, model: ModelFacts
) -> None:
    wishes = settings(**CPU)
    chosen = choose_companions(model, beside(dflash(tmp_path / "d.gguf")), None, wishes)
    profile = plan(model, chosen, wishes)
    assert profile.draft is not None
    drafted = profile.plan.memory.host.draft_bytes
    assert chosen.draft is not None
    assert chosen.draft.facts is not None
    assert drafted > chosen.draft.facts.size_bytes // 2
    words = command_for(profile, wishes, None, ()).command.argv
    said = {word: words[words.index(word) + 1] for word in words if word.startswith("--spec")}
    assert said == {
        "--spec-type": "draft-dflash",
        "--spec-draft-n-max": "7",
        "--spec-draft-p-min": "0.6",
        "--spec-draft-model": str(tmp_path / "d.gguf"),
        "--spec-draft-ngl": "0",
        "--spec-draft-device": "none",
    }
    assert (
        "--spec-type"
        not in command_for(plan(model, Companions(), wishes), wishes, None, ()).command.argv
    )


def test_a_found_draft_that_does_not_fit_is_dropped_a_named_one_is_an_error(
    tmp_path: Path, model: ModelFacts
) -> None:
    path = dflash(tmp_path / "d.gguf")
    wishes = settings(**CPU, kv_cache_type="f16", ubatch_size=512)
    found = choose_companions(model, beside(path), None, wishes)
    named = choose_companions(model, [], None, settings(**CPU, draft=str(path)))
    alone = plan(model, Companions(), wishes).plan.memory.host.total_bytes
    target = choose_target(detect(Root("/")), wishes, {}, None)
    tight = replace(
        target,
        machine=replace(target.machine, host_budget_bytes=alone, pool_budget_bytes=None),
    )

    def planned(companions: Companions) -> Profile:
        return make_profile(
            model,
            model_path=model.path,
            model_name="tiny",
            target=tight,
            settings=wishes,
            companions=companions,
        )

    profile = planned(found)
    assert profile.draft is None
    assert {r.setting: r.value for r in profile.plan.reasons}["draft"] == "off"
    with pytest.raises(DoesNotFitError):
        planned(named)


def test_a_projector_is_counted_passed_and_can_be_left(tmp_path: Path, model: ModelFacts) -> None:
    path = clip(tmp_path / "mmproj-tiny-f16.gguf")
    wishes = settings(**CPU)
    chosen = choose_companions(model, [], path, wishes)
    profile = plan(model, chosen, wishes)
    assert profile.plan.memory.host.projector_bytes == read_projector(path).total_bytes
    argv = command_for(profile, wishes, None, ()).command.argv
    assert argv[argv.index("--mmproj") + 1] == str(path)
    assert choose_companions(model, [], path, settings(mmproj=False)).projector is None
    wrong = choose_companions(model, [], model.path, wishes)
    assert wrong.projector is None
    assert "not a projector" in wrong.notes[0]


def test_gemmas_projector_computes_in_what_the_engine_reported(tmp_path: Path) -> None:
    header = read_header(clip(tmp_path / "gemma.gguf"))
    assert projector_compute_bytes(header) == 1132 * MIB


def test_the_catalog_hands_both_on(tmp_path: Path, model: ModelFacts) -> None:
    dflash(model.path.parent / "dflash-tiny-Q8_0.gguf")
    clip(model.path.parent / "mmproj-tiny-F16.gguf")
    shutil.copy(model.path, model.path.parent / "other-model.gguf")
    entry = find(str(model.path), [], {"HOME": str(tmp_path)})
    assert [draft.path.name for draft in entry.drafts] == ["dflash-tiny-Q8_0.gguf"]
    assert entry.projector is not None


@pytest.mark.parametrize(
    ("preserve", "word"), [(False, "--no-reasoning-preserve"), (True, "--reasoning-preserve")]
)
def test_thoughts_of_earlier_turns_are_stripped_unless_kept(
    tmp_path: Path, preserve: bool, word: str
) -> None:
    thinks = read_facts(
        write_model(tmp_path / "r1.gguf", chat_template="<think>{{ messages }}</think>")
    )
    wishes = settings(**CPU, preserve_reasoning=preserve)
    argv = command_for(plan(thinks, Companions(), wishes), wishes, None, ()).command.argv
    assert [w for w in argv if "reasoning-preserve" in w] == [word]
    assert argv[argv.index("--reasoning-budget") + 1] == "2048"
    plain = read_facts(write_model(tmp_path / "plain.gguf", chat_template="{{ messages }}"))
    argv = command_for(plan(plain, Companions(), wishes), wishes, None, ()).command.argv
    assert not [w for w in argv if "reasoning" in w]
