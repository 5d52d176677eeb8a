"""How fast a plan may be: bytes a token over the memory's bandwidth. Shown, never scored.

Decoding reads every weight that a token uses once, and the context's keys and values. On an APU
both sides share one memory, so it does not matter where a layer lies. Reading a prompt is bound by
arithmetic: two operations for each active parameter and token.

With residency the disk comes in: a token waits for the experts that are not in memory. The engine
reads ahead of need, so that the longer of the two ways counts, and loses something in between.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from solver.residency import hit_ratio, streamed_bytes
from solver.types import ExpertReads, Speed

if TYPE_CHECKING:
    from solver.model import Model
    from solver.types import Layout, Machine, Memory

RESIDENCY_EFFICIENCY = 0.6
"""What is reached of the bound (disk or memory, whichever is slower)."""

CORE_FLOPS = 50e9
"""Arithmetic operations a second of one core that reads a prompt with experts as they lie in the
file. Measured: 64e9 with Q4_0 on an AVX-512 core; older cores reach less."""


def speed(machine: Machine, model: Model, layout: Layout, memory: Memory) -> Speed:
    """The estimate for a plan of ``layout`` with ``memory``."""
    if layout.expert_budget_bytes is not None:
        return _from_disk(machine, model, layout, memory)
    bandwidth = machine.bandwidth_bytes_s
    weights = active_weight_bytes(model)
    state = memory.gpu.recurrent_bytes + memory.host.recurrent_bytes
    cache = memory.gpu.kv_bytes + memory.host.kv_bytes
    parameters = active_parameters(model)
    flops = machine.prefill_flops
    return Speed(
        decode_tokens_s=bandwidth / (weights + state) if bandwidth else None,
        decode_full_tokens_s=bandwidth / (weights + state + cache) if bandwidth else None,
        prefill_tokens_s=flops / (2 * parameters) if flops and parameters else None,
    )


def _from_disk(machine: Machine, model: Model, layout: Layout, memory: Memory) -> Speed:
    """With residency; nothing is foretold without a disk, or where the kernel keeps the experts."""
    disk, pool_bytes = machine.disk, layout.expert_budget_bytes
    if disk is None or not pool_bytes:
        return Speed(decode_tokens_s=None, decode_full_tokens_s=None, prefill_tokens_s=None)
    whole_bytes = streamed_bytes(model, mtp=layout.mtp)
    hits, learned = hit_ratio(model, pool_bytes, mtp=layout.mtp)
    missed_bytes = _share(model, whole_bytes) * (1 - hits)
    disk_s = missed_bytes / disk.slices_bytes_s
    weights = active_weight_bytes(model)
    weights += memory.gpu.recurrent_bytes + memory.host.recurrent_bytes
    cache = memory.gpu.kv_bytes + memory.host.kv_bytes

    def tokens_s(read_bytes: int) -> float | None:
        bandwidth = machine.bandwidth_bytes_s
        bound_s = max(disk_s, read_bytes / bandwidth if bandwidth else 0)
        return RESIDENCY_EFFICIENCY / bound_s if bound_s else None

    # Each ubatch needs nearly all experts: what the pool does not hold is read once for it. Where
    # the arithmetic takes longer, reading hides behind it.
    read_s = max(0, whole_bytes - pool_bytes) / disk.sequential_bytes_s
    operations = layout.ubatch * 2 * active_parameters(model)
    compute_s = operations / (machine.cores_physical * CORE_FLOPS)
    pass_s = max(read_s / RESIDENCY_EFFICIENCY, compute_s)
    return Speed(
        decode_tokens_s=tokens_s(weights),
        decode_full_tokens_s=tokens_s(weights + cache),
        prefill_tokens_s=layout.ubatch / pass_s if pass_s else None,
        experts=ExpertReads(
            hit_ratio=hits,
            hit_ratio_learned=learned,
            read_bytes_per_token=missed_bytes,
            disk=disk,
        ),
    )


def active_weight_bytes(model: Model) -> int:
    """Bytes of weights that one token uses: of the experts, the share that its router chooses."""
    output = model.output.dense.total_bytes or model.input.dense.total_bytes
    return output + sum(
        weights.dense.total_bytes
        + weights.pinned.total_bytes
        + _share(model, weights.experts.total_bytes)
        for weights, block in zip(model.layer_weights, model.blocks, strict=True)
        if not block.nextn
    )


def active_parameters(model: Model) -> int:
    """Parameters that one token uses in the blocks; embeddings and output are left out."""
    count = 0
    for block in model.blocks:
        for name, shape, _ in () if block.nextn else block.tensors:
            elements = prod(shape)
            count += _share(model, elements) if "_exps" in name else elements
    return count


def _share(model: Model, amount: int) -> int:
    return amount * model.n_expert_used // model.n_expert if model.n_expert else amount
