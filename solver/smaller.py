"""The next smaller configuration after a failure that less memory or shorter work may cure.

In the order of what it costs the user: the memory of experts that are read from disk, then ubatch,
then context, then KV type, then strategy. What the user fixed is never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from solver import residency
from solver.score import KV_POINTS
from solver.solve import solve
from solver.types import MIB, Infeasible, Plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from solver.model import Model
    from solver.types import Intent, Machine

SMALLEST_UBATCH = 64
SMALLEST_CONTEXT = 4096


@dataclass(frozen=True, kw_only=True)
class Step:
    """A smaller plan, the intent that leads to it, and what was lowered."""

    intent: Intent
    plan: Plan
    setting: str
    message: str
    """``ubatch_size 512 -> 256``."""


def next_smaller(
    machine: Machine, model: Model, wishes: Intent, current: Intent, plan: Plan
) -> Step | None:
    """The first smaller plan that fits, or ``None`` when nothing is left to lower.

    ``wishes`` is what the user fixed; ``current`` is ``wishes`` narrowed by earlier steps.
    """
    for setting, before, after, intent in _steps(machine, model, wishes, current, plan):
        answer = solve(machine, model, intent)
        if not isinstance(answer, Infeasible):
            return Step(
                intent=intent,
                plan=answer,
                setting=setting,
                message=f"{setting} {before} -> {after}",
            )
    return None


def _steps(
    machine: Machine, model: Model, wishes: Intent, current: Intent, plan: Plan
) -> Iterator[tuple[str, object, object, Intent]]:
    layout = plan.layout
    pool_bytes = layout.expert_budget_bytes
    # Everything that was decided so far stays: one thing is lowered at a time.
    fixed = replace(
        current,
        ubatch=layout.ubatch,
        batch=layout.batch,
        ctx_size=layout.ctx_size,
        kv_type_k=layout.kv_type_k,
        kv_type_v=layout.kv_type_v,
        moe_strategy=plan.strategy if model.is_moe else None,
        # "partial" finds its own number of layers again.
        gpu_layers=layout.gpu_layers or None,
        expert_budget_mib=None if pool_bytes is None else pool_bytes // MIB,
    )
    if wishes.expert_budget_mib is None and pool_bytes:
        least_mib = -(-residency.token_pool_bytes(model, mtp=layout.mtp) // MIB)
        before_mib, smaller_mib = pool_bytes // MIB, max(least_mib, pool_bytes * 3 // 4 // MIB)
        if smaller_mib < before_mib:
            yield (
                "expert_budget_mib",
                before_mib,
                smaller_mib,
                replace(fixed, expert_budget_mib=smaller_mib),
            )
    if wishes.ubatch is None and layout.ubatch > SMALLEST_UBATCH:
        half = max(SMALLEST_UBATCH, layout.ubatch // 2)
        yield "ubatch_size", layout.ubatch, half, replace(fixed, ubatch=half)
    if wishes.ctx_size is None and layout.ctx_size > SMALLEST_CONTEXT:
        half = max(SMALLEST_CONTEXT, layout.ctx_size // 2)
        yield "ctx_size", layout.ctx_size, half, replace(fixed, ctx_size=half)
    if wishes.kv_type_k is None and wishes.kv_type_v is None:
        names = list(KV_POINTS)
        if layout.kv_type_k in names[:-1]:
            lower = names[names.index(layout.kv_type_k) + 1]
            yield (
                "kv_cache_type",
                layout.kv_type_k,
                lower,
                replace(fixed, kv_type_k=lower, kv_type_v=lower),
            )
    if wishes.moe_strategy is None and model.is_moe and plan.strategy == "gpu":
        yield "moe_strategy", "gpu", "cpu", replace(fixed, moe_strategy="cpu")
    elif wishes.gpu_layers is None and layout.gpu_layers > 0:
        half = layout.gpu_layers // 2
        yield "gpu_layers", layout.gpu_layers, half, replace(fixed, gpu_layers=half)
    open_strategy = wishes.moe_strategy is None and model.is_moe and plan.strategy != "residency"
    if open_strategy and residency.refusal(machine, model, wishes) is None:
        from_disk = replace(fixed, moe_strategy="residency", gpu_layers=layout.gpu_layers)
        yield "moe_strategy", plan.strategy, "residency", from_disk
