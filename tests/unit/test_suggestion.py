"""A higher GTT limit is suggested exactly where it would give a better plan and is safe."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai.config import ConfigFile, resolve
from llama_ai.errors import DoesNotFitError
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
from llama_ai.planning import Profile, choose_target, make_profile
from solver.types import GIB
from tests.support.recorded import model

MACHINES = Path(__file__).parents[1] / "golden" / "machines"


def profile_of(slug: str, name: str, *, gtt_gib: float | None = None, **values: int) -> Profile:
    facts = detect(Root(str(MACHINES / slug / "root")))
    if gtt_gib is not None:
        assert facts.gpu is not None
        gpu = replace(facts.gpu, gtt_bytes=int(gtt_gib * GIB))
        facts = replace(facts, gpu=gpu, igpu=gpu, gpus=(gpu,))
    settings = resolve(
        flags={},
        assignments=[f"{key}={value}" for key, value in values.items()],
        environ={},
        config=ConfigFile(path=Path("config.toml"), values={}, model_dirs=()),
    )
    one = model("headers", name)
    return make_profile(
        one.facts,
        model_path=Path("m.gguf"),
        model_name=one.name,
        target=choose_target(facts, settings, {}, None),
        settings=settings,
    )


def test_the_limit_that_is_suggested_gives_the_plan_that_was_promised() -> None:
    before = profile_of("nimo-axis-gtt62", "GLM-4.5-Air")
    assert before.plan.strategy == "cpu"
    assert before.suggestion is not None
    gib = int(before.suggestion.partition("--gib ")[2].partition("`")[0])
    after = profile_of("nimo-axis-gtt62", "GLM-4.5-Air", gtt_gib=gib)
    assert after.plan.strategy == "gpu"
    assert f"{after.plan.layout.ctx_size} tokens" in before.suggestion
    assert after.plan.score > before.plan.score


@pytest.mark.parametrize(
    ("slug", "name"),
    [
        ("nimo-axis-gtt62", "Qwen3.6-35B"),  # fits as it is
        ("nimo-axis-gtt104", "GLM-4.5-Air"),  # the limit is high enough
        ("ayaneo-flip-kb", "Meta-Llama"),
    ],
)
def test_nothing_is_suggested_where_nothing_would_be_gained(slug: str, name: str) -> None:
    assert profile_of(slug, name).suggestion is None


def test_what_does_not_fit_names_the_limit_that_would_do() -> None:
    with pytest.raises(DoesNotFitError) as caught:
        profile_of("nimo-axis-gtt62", "Meta-Llama", gtt_gib=8, gpu_layers=99, ctx_size=131072)
    assert caught.value.hint is not None
    assert "kernel-params apply --gib" in caught.value.hint
