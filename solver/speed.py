"""How fast a plan may be: bytes a token over the memory's bandwidth. Shown, never scored.

Decoding reads every weight that a token uses once, and the context's keys and values. On an APU
both sides share one memory, so it does not matter where a layer lies. Reading a prompt is bound by
arithmetic: two operations for each active parameter and token.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from solver.types import Speed

if TYPE_CHECKING:
    from solver.model import Model
    from solver.types import Machine, Memory


def speed(machine: Machine, model: Model, memory: Memory) -> Speed:
    """The estimate for a plan with ``memory``."""
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
