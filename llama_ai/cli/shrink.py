"""After a failure that a smaller setting cures: the next smaller command, remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from llama_ai.cli import output, pipeline
from llama_ai.cli.profile import record_of
from llama_ai.planning import intent_from
from llama_ai.supervisor.learned import recall, remember
from llama_ai.supervisor.restart import Smaller
from solver.smaller import next_smaller
from solver.types import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.cli.pipeline import Prepared
    from llama_ai.config import Settings
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.planning import Profile
    from llama_ai.supervisor.failures import Failure


def lowered(
    profile: Profile, facts: HardwareFacts, engine: EngineInfo, settings: Settings
) -> tuple[Profile, str] | None:
    """The next smaller profile and what was lowered, kept for later starts; ``None``: none left."""
    step = next_smaller(
        profile.target.machine,
        profile.solver_model,
        intent_from(settings),
        profile.intent,
        profile.plan,
    )
    if step is None:
        return None
    layout = step.plan.layout
    values: dict[str, int | str] = {
        "ubatch_size": layout.ubatch,
        "ctx_size": layout.ctx_size,
        "kv_cache_type": layout.kv_type_k,
        "moe_strategy": step.plan.strategy,
        "gpu_layers": layout.gpu_layers,
        "expert_budget_mib": (layout.expert_budget_bytes or 0) // MIB,
    }
    name = pipeline.lesson_key(facts, profile.model, engine)
    lessons = {**recall(name), step.setting: values[step.setting]}
    lessons.pop("label", None)
    try:
        remember(name, f"{profile.model_name} on {profile.target.machine.device}", lessons)
    except OSError as error:
        output.note(f"note: what was learned could not be kept: {error.strerror}")
    return replace(profile, intent=step.intent, plan=step.plan), step.message


class Shrinker:
    """What the supervisor calls; keeps the profile that runs now."""

    def __init__(self, prepared: Prepared, settings: Settings, raw: Sequence[str]) -> None:
        self._prepared = prepared
        self._settings = settings
        self._raw = raw
        self._profile = prepared.profile

    def __call__(self, failure: Failure) -> Smaller | None:
        """The next smaller command, or ``None`` when nothing is left to lower."""
        del failure  # every curable kind is cured by less; the order is the solver's
        engine = self._prepared.engine
        found = (
            None
            if engine is None
            else lowered(self._profile, self._prepared.facts, engine, self._settings)
        )
        if found is None:
            return None
        self._profile, message = found
        built = pipeline.command_for(self._profile, self._settings, engine, self._raw)
        now = replace(self._prepared, profile=self._profile, built=built)
        return Smaller(command=built.command, message=message, profile=record_of(now))
