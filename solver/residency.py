"""Experts that stay on disk: what the pool in memory must hold, and when this way is taken.

A *unit* is one expert of one layer, all its matrices together: they are read and dropped together.
Which tensors stay on disk is decided by name, as the engine does it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from solver.model import Tensors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from solver.model import Model
    from solver.types import Intent, Layout, Machine

MOST_TIMES_MEMORY: Final = 3.5
"""A model above this many times the memory would wait for the disk nearly all the time (the seed
ran 86 GB on a machine with 25 GB)."""

SLOWEST_DISK_BYTES_S: Final = 100e6
"""Below this a token takes seconds: not chosen by itself."""

UNIT_PADDING_BYTES: Final = 24 << 10
"""Direct reads are of whole 4 KiB blocks: up to two more for each of a unit's three matrices."""

POOL_OVERHEAD_SHARE: Final = 32
"""One part in so many of the pool comes on top: its tables, and reads on their way."""

ASSUMED_HIT_EXPONENT: Final = 0.5
"""Without statistics: hit rate = (share of the experts that the pool holds) to this power, which is
what experts chosen by Zipf's law with exponent one half give. Uniform routing would be 1."""

_STREAMED: Final = re.compile(r"ffn_(?:gate|up|down|gate_up)_exps\.weight")


def loaded_experts(model: Model, layer: int) -> Tensors:
    """Of a layer's experts, what is loaded all the same (biases, scales, shared chunks)."""
    sizes = [
        size
        for name, _, size in model.blocks[layer].tensors
        if "exps" in name and "shexp" not in name and not _STREAMED.fullmatch(name)
    ]
    return Tensors(
        total_bytes=sum(sizes), ragged=tuple(sorted(size for size in sizes if size % 256))
    )


def streamed_bytes(model: Model, *, mtp: bool) -> int:
    """Bytes that stay on disk; with those of NextN layers if ``mtp``."""
    return sum(size * count for size, count, _ in _layers(model, mtp=mtp))


def not_loaded_bytes(model: Model, layout: Layout) -> int:
    """What a layout leaves on disk."""
    if layout.expert_budget_bytes is None:
        return 0
    return streamed_bytes(model, mtp=layout.mtp and model.mtp)


def whole_pool_bytes(model: Model, *, mtp: bool) -> int:
    """A pool that holds every unit."""
    return sum((size + UNIT_PADDING_BYTES) * count for size, count, _ in _layers(model, mtp=mtp))


def token_pool_bytes(model: Model, *, mtp: bool) -> int:
    """A pool that holds the units of one token, the least that makes any sense."""
    return sum((size + UNIT_PADDING_BYTES) * used for size, _, used in _layers(model, mtp=mtp))


def _layers(model: Model, *, mtp: bool) -> Iterator[tuple[int, int, int]]:
    """Bytes of a unit, units, and how many of them a token uses, for each layer with experts."""
    if not model.n_expert:
        return
    for layer, (weights, block) in enumerate(zip(model.layer_weights, model.blocks, strict=True)):
        streamed = weights.experts.total_bytes - loaded_experts(model, layer).total_bytes
        if streamed > 0 and (mtp or not block.nextn):
            used = min(block.n_expert_used or model.n_expert_used, model.n_expert)
            yield streamed // model.n_expert, model.n_expert, used


def pool_overhead_bytes(layout: Layout) -> int:
    """What the pool takes beside its own size."""
    return (layout.expert_budget_bytes or 0) // POOL_OVERHEAD_SHARE


def refusal(machine: Machine, model: Model, intent: Intent) -> str | None:
    """Why residency is not chosen by itself here; ``None`` where it may be."""
    if not intent.residency:
        return "you switched it off"
    if not streamed_bytes(model, mtp=False):
        return "its experts cannot be told apart"
    if machine.no_residency is not None:
        return machine.no_residency
    if machine.on_ac is False:
        return "not on battery, for it reads the disk all the time; --moe-strategy residency does"
    if machine.disk is not None and machine.disk.slices_bytes_s < SLOWEST_DISK_BYTES_S:
        rate = machine.disk.slices_bytes_s / 1e6
        return f"the model's disk is too slow ({rate:.0f} MB/s); --moe-strategy residency does"
    memory_bytes = min(machine.ram_bytes, machine.host_budget_bytes + machine.os_reserve_bytes)
    if model.size_bytes > MOST_TIMES_MEMORY * memory_bytes:
        return (
            f"the model is more than {MOST_TIMES_MEMORY} times the memory; "
            "--moe-strategy residency tries it"
        )
    return None


def hit_ratio(model: Model, pool_bytes: int, *, mtp: bool) -> tuple[float, bool]:
    """The share of a token's units that a pool holds, and whether statistics say so.

    With statistics: the units used most, for their size, until the pool is full. Without: see
    :data:`ASSUMED_HIT_EXPONENT`.
    """
    layers = list(_layers(model, mtp=mtp))
    counted = [shares for shares in model.expert_use or () if sum(shares) > 0]
    if not layers or len(counted) != len(layers):
        whole_bytes = whole_pool_bytes(model, mtp=mtp)
        share = min(1.0, pool_bytes / whole_bytes) if whole_bytes else 1.0
        return float(share**ASSUMED_HIT_EXPONENT), False
    units = sorted(
        (
            (share / sum(shares) * used, size + UNIT_PADDING_BYTES)
            for shares, (size, _, used) in zip(counted, layers, strict=True)
            for share in shares
        ),
        key=lambda unit: -unit[0] / unit[1],
    )
    found, left_bytes = 0.0, pool_bytes
    for wanted, size in units:
        left_bytes -= size
        if left_bytes < 0:
            break
        found += wanted
    return min(1.0, found / sum(used for _, _, used in layers)), True
