"""How much memory the experts of a model get that stays on disk, and the ubatch that goes with it.

Experts get what is left beside everything else: each further byte saves reads. Nine tenths of it,
so that the prompt cache is not starved: with residency a prompt is dear to read again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from solver import residency
from solver.types import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from solver.candidates import Candidate
    from solver.model import Model
    from solver.types import Intent, Layout, Machine, Memory, Rejected

LEAST_CACHE_RAM_MIB: Final = 256
UBATCHES: Final = (2048, 1024)
"""Larger than a tier's default, best first. Each ubatch reads most experts once from disk."""
UBATCH_COST_PERCENT: Final = 10
"""Of the experts' memory that a larger ubatch may take."""


def with_pool(
    machine: Machine,
    model: Model,
    intent: Intent,
    needs: Callable[[Layout], Memory],
    candidate: Candidate,
) -> Candidate:
    """The candidate with its expert budget, and with a larger ubatch where that costs little.

    A budget that is less than the candidate wants is raised to it, so that it fails to fit and says
    by how much.
    """
    usual = candidate.layout
    if intent.expert_budget_mib is not None:
        fixed = replace(usual, expert_budget_bytes=intent.expert_budget_mib * MIB)
        return replace(candidate, layout=fixed)
    least_bytes = _least_bytes(machine, model, candidate)
    most_bytes = _up(residency.whole_pool_bytes(model, mtp=usual.mtp))
    usual_bytes = _left_bytes(machine, intent, needs(usual))
    chosen, pool_bytes = usual, usual_bytes
    for ubatch in UBATCHES if intent.ubatch is None and not candidate.lean else ():
        batch = 2 * ubatch if intent.batch is None else intent.batch
        if not usual.ubatch < ubatch <= min(batch, usual.ctx_size):
            continue
        larger = replace(usual, ubatch=ubatch, batch=batch)
        memory = needs(larger)
        left_bytes = _left_bytes(machine, intent, memory)
        on_device = memory.gpu.total_bytes <= (machine.gpu_budget_bytes or 0)
        cheap = min(left_bytes, most_bytes) * 100 >= min(usual_bytes, most_bytes) * (
            100 - UBATCH_COST_PERCENT
        )
        if cheap and left_bytes >= least_bytes and (on_device or not usual.gpu_layers):
            chosen, pool_bytes = larger, left_bytes
            break
    pool_bytes = max(min(pool_bytes, most_bytes), least_bytes) // MIB * MIB
    return replace(candidate, layout=replace(chosen, expert_budget_bytes=pool_bytes))


def with_smaller_pool(candidate: Candidate, refused: Mapping[Layout, Rejected]) -> Candidate:
    """What the engine measured as too large comes out of the experts' memory, while there is some.

    Otherwise a few bytes too many would cost half of the context.
    """
    layout = candidate.layout
    while layout in refused and layout.expert_budget_bytes:
        left_bytes = layout.expert_budget_bytes - _up(refused[layout].over_by_bytes)
        if left_bytes <= 0:
            break
        layout = replace(layout, expert_budget_bytes=left_bytes)
    return replace(candidate, layout=layout)


def _least_bytes(machine: Machine, model: Model, candidate: Candidate) -> int:
    mtp = candidate.layout.mtp
    least_bytes = residency.token_pool_bytes(model, mtp=mtp)
    if not candidate.lean:
        half_bytes = min(machine.host_budget_bytes, machine.pool_budget_bytes or 1 << 62) // 2
        whole_bytes = residency.whole_pool_bytes(model, mtp=mtp)
        least_bytes = max(least_bytes, min(half_bytes, whole_bytes))
    return _up(least_bytes)


def _left_bytes(machine: Machine, intent: Intent, memory: Memory) -> int:
    """What the pool may have of the memory that ``memory`` leaves, in whole MiB."""
    free_bytes = machine.host_budget_bytes - memory.host.total_bytes
    if machine.pool_budget_bytes is not None:
        both_bytes = memory.gpu.total_bytes + memory.host.total_bytes
        free_bytes = min(free_bytes, machine.pool_budget_bytes - both_bytes)
    cache_bytes = max(LEAST_CACHE_RAM_MIB * MIB, free_bytes // 10)
    if intent.cache_ram_mib is not None:
        cache_bytes = intent.cache_ram_mib * MIB
    share = residency.POOL_OVERHEAD_SHARE
    return max(0, free_bytes - cache_bytes) * share // (share + 1) // MIB * MIB


def _up(count: int) -> int:
    return -(-count // MIB) * MIB
