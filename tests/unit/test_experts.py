"""What the engine is told about experts, and what is read back of its counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_ai import paths
from llama_ai.cli.pipeline import Prepared, no_residency
from llama_ai.cli.profile import document, print_text
from llama_ai.command import Built, build_command
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.engine.capabilities import EngineInfo
from llama_ai.engine.probe import layout_words
from llama_ai.errors import DoesNotFitError, EngineNotReadyError
from llama_ai.experts.choice import stats_path
from llama_ai.experts.use import read_use
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
from llama_ai.planning import Profile, choose_target, make_profile
from solver.types import Disk, Layout
from tests.support.recorded import model

FLIP = Path(__file__).parents[1] / "golden" / "machines" / "ayaneo-flip-kb" / "root"
LARGE = "Qwen3-Coder-30B"
NVME = Disk(sequential_bytes_s=3e9, slices_bytes_s=2e9, measured=True)


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path / "state")


def settings_of(environ: dict[str, str] | None = None, **values: object) -> Settings:
    return resolve(
        flags={},
        assignments=[f"{name}={value}" for name, value in values.items()],
        environ=environ or {},
        config=ConfigFile(path=Path("config.toml"), values={}, model_dirs=()),
    )


def profile_of(
    settings: Settings, name: str = LARGE, *, why_not: str | None = None, **more: Any
) -> Profile:
    one = model("headers", name)
    facts = detect(Root(str(FLIP)))
    return make_profile(
        one.facts,
        model_path=Path(f"{one.name}.gguf"),
        model_name=one.name,
        target=choose_target(facts, settings, {}, None, no_residency=why_not),
        settings=settings,
        disk=NVME,
        **more,
    )


def built(
    settings: Settings, name: str = LARGE, *, known_flags: frozenset[str] | None = None
) -> Built:
    return build_command(
        profile_of(settings, name),
        settings,
        server="server",
        known_flags=known_flags,
        environ={},
    )


def value_of(flag: str, result: Built) -> str:
    argv = result.command.argv
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


def test_residency_is_said_in_full() -> None:
    profile, result = profile_of(settings_of()), built(settings_of())
    argv = result.command.argv
    for word in ("--expert-residency", "--no-op-offload", "--no-repack", "--expert-prewarm"):
        assert word in argv
    assert profile.plan.layout.expert_budget_bytes is not None
    budget_mib = profile.plan.layout.expert_budget_bytes >> 20
    assert value_of("--expert-budget-mib", result) == str(budget_mib)
    assert value_of("--expert-prefetch-threads", result) == "4"
    assert value_of("--load-mode", result) == "none"
    assert value_of("--n-cpu-moe", result) == "48"
    assert profile.experts is not None
    assert value_of("--expert-stats-file", result) == str(profile.experts.stats_path)
    assert f"{budget_mib / 1024:.1f} GiB of experts" in profile.summary


def test_a_moe_model_that_fits_is_only_counted_and_a_dense_one_not_at_all() -> None:
    whole = built(settings_of(), "gpt-oss-20b").command.argv
    assert [word for word in whole if "expert" in word and word.startswith("--")] == [
        "--expert-tracking",
        "--expert-stats-file",
    ]
    assert "--no-op-offload" not in whole
    uncounted = built(settings_of(expert_tracking="off"), "gpt-oss-20b").command.argv
    assert not any(word.startswith("--expert") for word in uncounted)
    dense = built(settings_of(), "Meta-Llama").command.argv
    assert not any(word.startswith("--expert") for word in dense)


def test_what_the_user_says_is_passed_on() -> None:
    settings = settings_of(
        expert_budget_mib=4096, expert_prefetch_threads=3, expert_prewarm="off", cache_ram=64
    )
    result = built(settings)
    assert value_of("--expert-budget-mib", result) == "4096"
    assert value_of("--expert-prefetch-threads", result) == "3"
    assert "--expert-prewarm" not in result.command.argv
    profile = profile_of(settings)
    why = {reason.setting: reason.why for reason in profile.plan.reasons}
    asked = {name for name, text in why.items() if text == "you asked for it"}
    assert asked == {"expert_budget_mib", "expert_prefetch_threads", "expert_prewarm", "cache_ram"}
    assert profile.sources["expert_budget_mib"] == "flag"
    # Without counts there is nothing to be read ahead of the first request.
    uncounted = built(settings_of(expert_tracking="off")).command.argv
    assert "--expert-residency" in uncounted
    assert "--expert-prewarm" not in uncounted


def test_expert_residency_is_another_word_for_the_strategy() -> None:
    on = profile_of(settings_of(expert_residency="on"), "gpt-oss-20b")
    assert on.strategy == "residency"
    strategy_wins = settings_of(expert_residency="on", moe_strategy="gpu")
    assert profile_of(strategy_wins, "gpt-oss-20b").strategy == "gpu"
    with pytest.raises(DoesNotFitError) as caught:
        profile_of(settings_of({"LLAMA_AI_EXPERT_RESIDENCY": "off"}))
    assert "you switched it off" in str(caught.value.hint)


def engine(*capabilities: str) -> EngineInfo:
    return EngineInfo(
        key="k",
        directory=Path("d"),
        server=Path("d/server"),
        version=None,
        upstream_commit=None,
        patches=(),
        backends=("cpu",),
        flags=frozenset(),
        capabilities=capabilities,
        stock=not capabilities,
    )


def test_an_engine_without_it_is_never_planned_with_it() -> None:
    assert no_residency(engine("expert-residency")) is None
    assert no_residency(None) is None  # ours is going to be built
    why_not = no_residency(engine())
    assert why_not is not None
    assert no_residency(engine("expert-residency"), alone=False) is not None
    with pytest.raises(DoesNotFitError) as caught:
        profile_of(settings_of(), why_not=why_not)
    assert why_not in str(caught.value.hint)
    with pytest.raises(DoesNotFitError, match="this engine cannot do it"):
        profile_of(settings_of(moe_strategy="residency"), why_not=why_not)
    # Should such a plan reach one all the same, it is refused rather than started without.
    everything = frozenset(word for word in built(settings_of()).command.argv if word[:2] == "--")
    with pytest.raises(EngineNotReadyError, match="--expert-residency"):
        built(settings_of(), known_flags=everything - {"--expert-residency"})


def test_a_budget_that_was_learned_narrows_the_plan() -> None:
    profile = profile_of(settings_of(), learned={"expert_budget_mib": 3000})
    assert profile.plan.layout.expert_budget_bytes == 3000 << 20
    why = {reason.setting: reason.why for reason in profile.plan.reasons}
    assert "failed here" in why["expert_budget_mib"]


def test_conversations_on_disk_are_given_up_before_experts_are_read_from_it() -> None:
    """A little too little memory for gpt-oss-20b beside the copies of conversations; much less."""
    one = model("headers", "gpt-oss-20b")
    settings = settings_of(cache_ram=256, ctx_size=8192, kv_cache_type="q8_0", ubatch_size=512)
    target = choose_target(detect(Root(str(FLIP))), settings, {}, None)

    def planned(pool_bytes: int) -> Profile:
        box = replace(target.machine, pool_budget_bytes=pool_bytes)
        return make_profile(
            one.facts,
            model_path=Path("m.gguf"),
            model_name="m",
            target=replace(target, machine=box),
            settings=settings,
        )

    memory = planned(20 << 30).plan.memory
    needed = memory.gpu.total_bytes + memory.host.total_bytes
    found = [
        (profile.strategy, profile.kv_disk is not None and profile.kv_disk.enabled)
        for profile in (planned(needed), planned(needed - (100 << 20)), planned(needed - (2 << 30)))
    ]
    assert found == [("gpu", True), ("gpu", False), ("residency", True)]


def test_the_probe_is_asked_for_the_same_thing() -> None:
    words = layout_words(Layout(ctx_size=512, gpu_layers=3, expert_budget_bytes=0), "Vulkan0")
    assert words["op_offload"] is False
    assert "op_offload" not in layout_words(Layout(ctx_size=512, gpu_layers=3), "Vulkan0")


def prepared(profile: Profile) -> Prepared:
    facts = detect(Root(str(FLIP)))
    return Prepared(profile=profile, facts=facts, engine=None, built=built(settings_of()))


def test_the_profile_shows_what_the_forecast_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    profile = profile_of(settings_of())
    print_text(prepared(profile))
    shown = capsys.readouterr().out
    assert "experts from disk" in shown
    assert "74% of a token's experts in memory (an assumption: nothing counted yet)" in shown
    assert "a disk of 2.0 GB/s (measured)" in shown
    told: Any = document(prepared(profile))
    assert told["profile"]["experts"]["budget_mib"] > 10_000
    assert told["estimate"]["experts"]["disk"]["slices_bytes_s"] == 2e9
    assert told["memory"]["host"]["experts_bytes"] == profile.plan.layout.expert_budget_bytes
    json.dumps(told)


# -- statistics ----------------------------------------------------------------------------------


def counts(**changes: object) -> dict[str, object]:
    """As native/src/expert_stats.cpp writes it, what is not looked at left out."""
    return {
        "schema": "llama-ai.expert-stats/1",
        "model": "m",
        "n_layer": 3,
        "n_expert": 4,
        "n_expert_used": 2,
        "layers": [
            {"layer": 0, "tokens": 99, "recent_tokens": 45, "recent": [40, 0, 0, 45]},
            {"layer": 1, "tokens": 99, "recent_tokens": 20, "recent": [10, 10, 10, 10]},
            {"layer": 2, "tokens": 99, "recent_tokens": 45, "recent": [10, 20, 30, 40.5]},
        ],
        **changes,
    }


def test_counts_are_read_largest_first(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(counts()))
    # 40 uses of 4 experts in layer 1 are too few to tell a habit.
    assert read_use(path) == ((45, 40, 0, 0), (), (40.5, 30, 20, 10))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        json.dumps(counts(schema="llama-ai.expert-stats/2")),
        json.dumps(counts(n_layer=10**12)),
        json.dumps(counts(n_layer="3")),
        json.dumps(counts(n_expert=5)),
        json.dumps(counts(layers=[{"layer": 7, "recent": [99, 0, 0, 0]}])),
        json.dumps(counts(layers=[{"layer": 0, "recent": [-1, 0, 0, 0]}])),
        json.dumps(counts(layers=[{"layer": 0, "recent": [float("nan"), 0, 0, 0]}])),
        json.dumps(counts(layers={"layer": 0})),
    ],
)
def test_damaged_counts_are_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    assert read_use(path) is None
    assert read_use(tmp_path / "absent.json") is None


def test_counts_belong_to_a_model_wherever_it_lies(tmp_path: Path) -> None:
    here = stats_path(Path("/a/m.gguf"), 10)
    assert here == stats_path(Path("/b/m.gguf"), 10)
    assert here != stats_path(Path("/a/m.gguf"), 11)
    assert here.parent == tmp_path / "state" / "experts"
    odd = stats_path(Path("/a/päth ; rm *" + "x" * 300 + ".gguf"), 1)
    assert len(odd.name) < 120
    assert odd.name.isascii()


def test_counts_make_the_forecast_ones_own() -> None:
    shares = (0.9, *([0.1 / 127] * 127))
    profile = profile_of(settings_of(), expert_use=(shares,) * 48)
    reads = profile.plan.speed.experts
    assert reads is not None
    assert reads.hit_ratio_learned
    assumed = profile_of(settings_of()).plan.speed.experts
    assert assumed is not None
    assert reads.hit_ratio > assumed.hit_ratio
    same = replace(profile.plan, speed=profile_of(settings_of()).plan.speed)
    assert same == profile_of(settings_of()).plan
