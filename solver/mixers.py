"""Sketches of what takes the place of attention in recurrent blocks. See :mod:`solver.blocks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.blocks import Sketch


def _state(sketch: Sketch, values: int) -> int:
    return sketch.graph.add(4 * values * sketch.sequences)


def _state_values(sketch: Sketch) -> int:
    return next(
        (s.sequence_bytes // 4 for s in sketch.model.states if s.layer == sketch.block.index), 0
    )


def delta_net(sketch: Sketch, norm: int) -> int:
    """Gated delta net (Qwen3-Next, Qwen3.5): one projection, convolution, fused recurrence."""
    kernel, channels = sketch.tensors["ssm_conv1d.weight"][0][:2]
    inner = sketch.tensors["ssm_out.weight"][0][0]
    heads = sketch.tensors["ssm_a"][0][0]
    keys = (channels - inner) // 2
    past = _state(sketch, (kernel - 1) * channels)
    mixed = sketch.project("attn_qkv", norm)
    whole = sketch.graph.add(
        4 * channels * (sketch.tokens + (kernel - 1) * sketch.sequences), past, mixed
    )
    state = _state(sketch, max(_state_values(sketch) - (kernel - 1) * channels, 0))
    convolved = sketch.over(channels, sketch.make(channels, whole))
    query = sketch.make(keys, convolved)
    key = sketch.make(keys, convolved)
    gate = sketch.over(heads, sketch.make(heads, norm))
    beta = sketch.over(heads, sketch.make(heads, norm))
    z = sketch.make(inner, norm) if sketch.device else None  # brought forward
    out = sketch.graph.add(
        4 * inner * sketch.tokens + sketch.graph.size_of(state),
        query,
        key,
        convolved,
        gate,
        beta,
        state,
    )
    sketch.graph.add(0, out)
    normed = sketch.make(inner, out)
    z = _position(sketch, inner, sketch.make(inner, norm) if z is None else z)
    return sketch.make(sketch.model.n_embd, sketch.over(inner, normed, z))


def _position(sketch: Sketch, width: int, source: int) -> int:
    """An operation on a reshaped result: written over it by the host, not by a device."""
    return sketch.make(width, source) if sketch.device else sketch.over(width, source)


def kimi_delta(sketch: Sketch, norm: int) -> int:
    """Kimi delta attention: three short convolutions, fused recurrence, low-rank gates."""
    kernel = sketch.tensors["ssm_conv1d_q.weight"][0][0]
    width = sketch.rows("attn_q")
    past = _state(sketch, 3 * (kernel - 1) * width)
    wholes = []
    for name in ("attn_q", "attn_k", "attn_v"):
        projected = sketch.project(name, norm)
        wholes.append(
            sketch.graph.add(
                4 * width * (sketch.tokens + (kernel - 1) * sketch.sequences), past, projected
            )
        )
    state = _state(sketch, max(_state_values(sketch) - 3 * (kernel - 1) * width, 0))
    query, key, value = (_position(sketch, width, sketch.make(width, whole)) for whole in wholes)
    query, key = sketch.make(width, query), sketch.make(width, key)
    gate = _position(sketch, width, sketch.make(width, sketch.make(width, norm)))
    beta = sketch.make(sketch.block.n_head, norm)
    early = sketch.make(width, sketch.make(width, norm)) if sketch.device else None
    out = sketch.graph.add(
        4 * width * sketch.tokens + sketch.graph.size_of(state),
        query,
        key,
        value,
        gate,
        beta,
        state,
        *wholes,
    )
    sketch.graph.add(0, out)
    scanned = sketch.make(width, out)
    normed = sketch.make(width, scanned)
    second = sketch.make(width, sketch.make(width, norm)) if early is None else early
    second = _position(sketch, width, second)
    gated = sketch.make(width, sketch.over(width, normed, second))
    return sketch.make(sketch.model.n_embd, gated)


def mamba(sketch: Sketch, norm: int) -> int:
    """Selective scan, Mamba-1 (``ssm_x``) or Mamba-2."""
    kernel, channels = sketch.tensors["ssm_conv1d.weight"][0][:2]
    inner = sketch.tensors["ssm_out.weight"][0][0]
    past = _state(sketch, (kernel - 1) * channels)
    projected = sketch.project("ssm_in", norm)
    whole = sketch.graph.add(
        4 * channels * (sketch.tokens + (kernel - 1) * sketch.sequences), past, projected
    )
    convolved = sketch.over(channels, sketch.make(channels, whole))
    values = _state_values(sketch) - (kernel - 1) * channels
    scanned_bytes = 4 * (inner * sketch.tokens + values * sketch.sequences)
    sources: tuple[int, ...]
    if sketch.has("ssm_x"):
        mixed = sketch.project("ssm_x", convolved)
        rank = sketch.tensors["ssm_dt.weight"][0][0]
        step = sketch.make(rank, mixed)
        step = sketch.over(inner, sketch.make(inner, step))
        sources = (convolved, step, mixed)
        if sketch.device:
            # No device operation: the host scans, and the result is copied back.
            sketch.host_bytes = max(
                sketch.host_bytes,
                scanned_bytes
                + 4 * values * sketch.sequences
                + 4 * sketch.tokens * (2 * inner + sketch.rows("ssm_x")),
            )
    else:
        heads = sketch.tensors["ssm_a"][0][-1]
        step = sketch.over(heads, sketch.make(heads, projected))
        sources = (convolved, step)
        if sketch.host_block:
            # A scan stays with its state; each of its three inputs brings the whole row along.
            moved = scanned_bytes + 12 * channels * sketch.tokens
            sketch.host_bytes = max(sketch.host_bytes, moved)
    scanned = sketch.graph.add(scanned_bytes, *sources)
    sketch.graph.add(0, scanned)
    z = sketch.make(inner, projected)
    skip = sketch.make(inner, convolved)
    added = sketch.make(inner, scanned, skip)
    out = sketch.make(inner, z, added)
    if sketch.has("ssm_norm"):
        out = sketch.over(inner, out)
    return sketch.make(sketch.model.n_embd, out)


def short_convolution(sketch: Sketch, norm: int) -> int:
    """A gated short convolution (LFM2)."""
    width = sketch.model.n_embd
    kernel = sketch.tensors["shortconv.conv.weight"][0][0]
    both = sketch.make(3 * width, norm)
    product = sketch.make(width, both)
    state = _state(sketch, (kernel - 1) * width)
    whole = sketch.graph.add(
        4 * width * (sketch.tokens + (kernel - 1) * sketch.sequences), state, product
    )
    convolved = sketch.make(width, whole)
    return sketch.make(width, sketch.make(width, both, convolved))


def time_mix(sketch: Sketch, norm: int) -> int:
    """RWKV: all interpolations between a token and the one before are made at once and stay."""
    width = sketch.model.n_embd
    state = _state(sketch, _state_values(sketch))
    shifted = sketch.over(width, sketch.make(width, norm), norm)
    mixed = sketch.make(6 * width, shifted)
    receptance = sketch.make(width, mixed)
    decay = sketch.make(width, mixed)
    first_key = sketch.make(width, mixed)
    rate = sketch.make(width, mixed)
    key = sketch.make(width, first_key, rate)
    value = sketch.make(width, mixed)
    if sketch.first_value is None:
        sketch.first_value = value
    else:  # later blocks blend their values with those of the first one
        value = sketch.over(width, sketch.make(width, value, sketch.first_value), value)
    removed = sketch.make(width, first_key)
    negated = sketch.make(width, removed)
    replaced = sketch.make(width, removed, rate)
    out = sketch.graph.add(
        4 * width * sketch.tokens + sketch.graph.size_of(state),
        receptance,
        decay,
        key,
        value,
        negated,
        replaced,
        state,
    )
    sketch.graph.add(0, out)
    normed = sketch.make(width, out)
    bonus = sketch.make(width, receptance, key, value)
    joined = sketch.make(width, normed, bonus)
    gate = sketch.make(width, mixed)
    gated = sketch.over(width, joined, gate)
    sketch.graph.add(0, norm)  # the last token's norm is kept for the next ubatch
    return sketch.multiply("time_mix_output", sketch.model.n_embd, gated)


def lightning(sketch: Sketch, norm: int) -> int:
    """Linear attention of MiniMax-01: within a ubatch, every token against every other."""
    block, graph = sketch.block, sketch.graph
    width = block.n_head * block.head_k
    square = decay_bytes(block.n_head, sketch.tokens, sketch.sequences)
    mixed = sketch.project("attn_qkv", norm)
    if sketch.device and sketch.sequences > 1:
        # No device operation multiplies several sequences by a matrix at once.
        moved = 4 * (sketch.model.n_embd + 3 * width) * sketch.tokens
        moved += sketch.tensors["attn_qkv.weight"][1]
        sketch.host_bytes = max(sketch.host_bytes, moved)
        mixed = sketch.over(3 * width, mixed)
    else:
        mixed = sketch.position(3 * width, mixed)
    query = sketch.make(width, mixed)
    values = sketch.make(width, mixed)
    products = graph.add(square, mixed)
    decay = () if sketch.decay is None else (sketch.decay,)
    decayed = graph.add(square, *decay, in_place=sketch.device)
    products = graph.add(square, products, decayed, in_place=True)
    within = sketch.make(width, values, products)
    state = _state(sketch, _state_values(sketch))
    before = sketch.make(width, query, state)
    keys = sketch.make(width, mixed)
    graph.add(0, keys, values)
    out = sketch.over(width, within, before)
    gate = sketch.project("attn_gate", norm)
    out = sketch.over(width, sketch.make(width, out), gate)
    return sketch.multiply("attn_output", sketch.model.n_embd, out)


def decay_bytes(heads: int, tokens: int, sequences: int) -> int:
    """How much each token of a ubatch counts for each other one, by head and sequence."""
    each = tokens // sequences
    return 4 * heads * each * each * sequences
