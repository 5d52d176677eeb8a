"""How many models can stay loaded side by side, whichever they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from solver.types import MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from solver.types import Machine, Memory

CACHE_EACH_MIB = 256
"""Prompt cache that a model keeps at least."""


@dataclass(frozen=True, kw_only=True)
class Together:
    """``count`` models at once, each with at most ``cache_ram_mib`` for its prompt cache."""

    count: int
    cache_ram_mib: int


def side_by_side(
    machine: Machine, needs: Sequence[Memory], *, fixed_caches: bool = False
) -> Together:
    """The most models of which *any* selection fits the budgets together; at least one.

    The engine chooses itself which ones are loaded, by last use, and only counts them: the largest
    ones must fit too. Prompt caches are set to :data:`CACHE_EACH_MIB` for this, and share what the
    host then has left; with ``fixed_caches`` they are what the user said.
    """
    if not fixed_caches:
        needs = [_with_least_cache(need) for need in needs]
    if not needs:
        return Together(count=1, cache_ram_mib=CACHE_EACH_MIB)
    count = 1
    while count < len(needs) and _left_bytes(machine, needs, count + 1) >= 0:
        count += 1
    left = max(0, _left_bytes(machine, needs, count, of_host=True))
    return Together(count=count, cache_ram_mib=CACHE_EACH_MIB + left * 9 // 10 // count // MIB)


def _with_least_cache(need: Memory) -> Memory:
    return replace(need, host=replace(need.host, prompt_cache_bytes=CACHE_EACH_MIB * MIB))


def _left_bytes(
    machine: Machine, needs: Sequence[Memory], count: int, *, of_host: bool = False
) -> int:
    """What the tightest budget has left beside the ``count`` largest; negative: too much.

    ``of_host`` leaves the device's own budget out, which no prompt cache takes from.
    """
    gpu = sum(sorted((need.gpu.total_bytes for need in needs), reverse=True)[:count])
    hosts = [need.host.total_bytes for need in needs]
    host = sum(sorted(hosts, reverse=True)[:count])
    left = [machine.host_budget_bytes - host]
    if not of_host:
        left.append((machine.gpu_budget_bytes or 0) - gpu)
    if machine.pool_budget_bytes is not None:
        both = sorted(
            (need.gpu.total_bytes + own for need, own in zip(needs, hosts, strict=True)),
            reverse=True,
        )
        left.append(machine.pool_budget_bytes - sum(both[:count]))
    return min(left)
