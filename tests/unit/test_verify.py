"""A plan is used only when the engine's own measurement confirms it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llama_ai.cli.verify import verified
from llama_ai.engine import probe
from llama_ai.engine.probe import Measured, Side
from llama_ai.errors import DoesNotFitError
from llama_ai.planning import Profile
from solver.solve import solve
from solver.types import GIB, Infeasible, Intent, Layout
from tests.support.solver_inputs import machine, model

MACHINE = machine(gpu_gib=24, ram_gib=64, shared=False)
MODEL = model()


def side(name: str, needed_bytes: int) -> Side:
    return Side(
        name=name,
        total_bytes=None,
        free_bytes=None,
        model_bytes=needed_bytes,
        context_bytes=0,
        compute_bytes=0,
    )


def profile_for(refused: Any) -> Profile:
    plan = solve(MACHINE, MODEL, Intent(), refused=refused)
    assert not isinstance(plan, Infeasible)
    target = SimpleNamespace(machine=MACHINE, device=None, child_env=SimpleNamespace(set={}))
    fake: Any = SimpleNamespace(
        plan=plan,
        target=target,
        model_path=Path("m.gguf"),
        strategy=plan.strategy,
        draft=None,
        solver_model=MODEL,
    )
    return fake  # type: ignore[no-any-return]


def measuring(monkeypatch: pytest.MonkeyPatch, answers: Sequence[Measured | None]) -> list[Layout]:
    """Stand in for the engine's probe; returns the layouts that it was asked about."""
    asked: list[Layout] = []
    rest = iter(answers)

    def measure(
        engine: object, path: Path, layouts: Sequence[Layout], **_: object
    ) -> tuple[Measured, ...] | None:
        asked.extend(layouts)
        answer = next(rest)
        return None if answer is None else (answer,)

    monkeypatch.setattr(probe, "measure", measure)
    return asked


def fits() -> Measured:
    return Measured(host=side("host", GIB), devices=(side("Vulkan0", 4 * GIB),))


def too_large() -> Measured:
    return Measured(host=side("host", GIB), devices=(side("Vulkan0", 25 * GIB),))


def test_a_confirmed_plan_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = measuring(monkeypatch, [fits()])
    engine: Any = object()
    assert verified(engine, profile_for).plan.layout == asked[0]


def test_the_next_candidate_is_taken_when_the_engine_measures_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = measuring(monkeypatch, [too_large(), too_large(), fits()])
    engine: Any = object()
    profile = verified(engine, profile_for)
    assert profile.plan.layout == asked[2]
    assert len(set(asked)) == 3
    assert "1.0 GiB over the gpu budget" in capsys.readouterr().err
    assert sum("(measured)" in miss.description for miss in profile.plan.rejected) == 2


def test_nothing_that_was_measured_too_large_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    measuring(monkeypatch, [too_large()] * 20)
    engine: Any = object()
    with pytest.raises(DoesNotFitError):
        verified(engine, profile_for)


@pytest.mark.parametrize("answer", [None, Measured(error="cannot make a context")])
def test_without_a_measurement_the_solvers_figures_stand(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: Measured | None,
) -> None:
    measuring(monkeypatch, [answer])
    engine: Any = object()
    verified(engine, profile_for)
    assert ("could not measure" in capsys.readouterr().err) is (answer is not None)
