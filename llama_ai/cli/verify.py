"""Measure the chosen plan with the engine itself, and take the next one when it does not fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from llama_ai.cli import measured, output
from llama_ai.errors import DoesNotFitError
from llama_ai.models.names import ENGINE_TYPES
from solver.residency import not_loaded_bytes
from solver.solve import over_budget
from solver.types import Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.engine.probe import Measured
    from llama_ai.planning import Profile
    from solver.types import Layout

    Refused = Mapping[Layout, Rejected]

MAX_ATTEMPTS = 8


def verified(
    engine: EngineInfo, make: Callable[[Refused], Profile], *, known: bool = False
) -> Profile:
    """The first profile of ``make`` that the engine's own measurement confirms.

    ``make`` solves, leaving out the layouts that were refused. An engine without our probe, or one
    that cannot measure a layout, leaves the solver's own figures standing; the latter is said.
    ``known``: a measurement of an earlier time will do.
    Raises :class:`~llama_ai.errors.DoesNotFitError` when nothing that was measured fits.
    """
    from llama_ai.engine.probe import measure

    refused: dict[Layout, Rejected] = {}
    for _ in range(MAX_ATTEMPTS):
        profile = make(refused)
        target = profile.target
        draft = _draft_file(profile)
        answer = measured.recall(engine, profile, draft) if known else None
        if answer is None:
            answers = measure(
                engine,
                profile.model_path,
                [profile.plan.layout],
                device=target.device.name if target.device else None,
                env={**os.environ, **target.child_env.set},
                draft=draft,
            )
            if answers is None:
                return profile
            answer = answers[0]
            if known:
                measured.remember(engine, profile, draft, answer)
        if answer.error is not None:
            output.note(f"note: the engine could not measure the plan: {answer.error}")
            return profile
        miss = measured_miss(profile, answer)
        if miss is None:
            return profile
        output.note(
            f"note: {miss.description} was planned, but the engine measures "
            f"{output.bytes_text(miss.over_by_bytes)} over the {miss.where} budget"
        )
        refused[profile.plan.layout] = miss
    raise DoesNotFitError(
        "no plan that was tried fits by the engine's own measurement",
        hint="ask for less: a smaller --ctx-size, or --kv-cache-type q4_0",
    )


def _draft_file(profile: Profile) -> tuple[str, Path] | None:
    draft = profile.draft
    if draft is None or draft.path is None:
        return None
    return ENGINE_TYPES[draft.kind], draft.path


def measured_miss(profile: Profile, answer: Measured) -> Rejected | None:
    """By how much the measured memory, and what no measurement sees, misses the budgets."""
    memory, machine = profile.plan.memory, profile.target.machine
    gpu_bytes = sum(side.needed_bytes for side in answer.devices) + memory.gpu.projector_bytes
    host_bytes = (
        (answer.host.needed_bytes if answer.host else 0)
        # The probe counts the experts that stay on disk; the plan has their pool instead.
        - not_loaded_bytes(profile.solver_model, profile.plan.layout)
        + memory.host.experts_bytes
        + memory.host.projector_bytes
        + memory.host.prompt_cache_bytes
        + memory.host.disk_tier_bytes
        + memory.host.overhead_bytes
    )
    over_bytes, where = over_budget(machine, gpu_bytes, host_bytes)
    if over_bytes <= 0:
        return None
    layout = profile.plan.layout
    return Rejected(
        description=f"{profile.strategy}, {layout.ctx_size} tokens, {layout.kv_type_k}/"
        f"{layout.kv_type_v} KV (measured)",
        score=profile.plan.score,
        where=where,
        over_by_bytes=over_bytes,
    )
