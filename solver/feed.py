"""Sketches of feed-forward halves: dense, routed and shared experts. See :mod:`solver.blocks`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from solver.blocks import Sketch

_LOOK_AHEAD: Final = 20


def feed_forward(sketch: Sketch, norm: int) -> int:
    model = sketch.model
    shared = "_shexp" if sketch.has("ffn_down_shexp") else ""
    if sketch.has("ffn_up_exps") or sketch.has("ffn_gate_up_exps"):
        also_dense = bool(shared) or sketch.has("ffn_down")
        experts, early = _experts(sketch, norm, shared)
        if not also_dense:
            return experts
        return sketch.over(model.n_embd, experts, _dense(sketch, norm, shared, early))
    if sketch.has("channel_mix_key"):
        key = sketch.project("channel_mix_key", norm)
        return sketch.make(model.n_embd, sketch.over(sketch.rows("channel_mix_key"), key))
    return _dense(sketch, norm, "")


def _gates(sketch: Sketch, norm: int, suffix: str) -> tuple[int, ...]:
    """The multiplications of a dense feed-forward before its activation."""
    up = sketch.rows(f"ffn_up{suffix}")
    gate = sketch.rows(f"ffn_gate{suffix}")
    names = [f"ffn_gate{suffix}"] if gate else []
    names += [f"ffn_up{suffix}"] if up else []
    return tuple(sketch.project(name, norm) for name in names)


def _activate(sketch: Sketch, gates: tuple[int, ...], suffix: str) -> int:
    inner = sketch.tensors[f"ffn_down{suffix}.weight"][0][0]
    both = sketch.rows(f"ffn_up{suffix}") != inner
    return sketch.make(inner, *gates) if both or len(gates) > 1 else sketch.over(inner, *gates)


def _dense(sketch: Sketch, norm: int, suffix: str, early: tuple[int, ...] = ()) -> int:
    started = early or _gates(sketch, norm, suffix)
    active = _activate(sketch, started, suffix) if len(early) != 1 else started[0]
    return sketch.multiply(f"ffn_down{suffix}", sketch.model.n_embd, active)


def _experts(sketch: Sketch, norm: int, shared: str) -> tuple[int, tuple[int, ...]]:
    """The routed experts' sum, and what was computed of the shared ones on the way.

    A device's driver looks 20 operations ahead for multiplications that could start already,
    so that with few experts the shared ones begin before the routed ones have ended.
    """
    model, used = sketch.model, sketch.block.n_expert_used
    inner, width, count = sketch.tensors["ffn_down_exps.weight"][0]
    ahead = sketch.device and shared and not sketch.host_experts
    distance = 2 * used + 4 if ahead else 2 * _LOOK_AHEAD
    scores = sketch.make(count, norm)
    scores = sketch.over(count, scores)
    biased = sketch.make(count, scores) if "exp_probs_b.bias" in sketch.tensors else scores
    order = sketch.make(count, biased)
    weights = sketch.make(used, scores, order)
    early: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    if sketch.has("ffn_gate_up_exps"):
        gates = [sketch.multiply("ffn_gate_up_exps", 2 * inner * used, norm, order)]
    else:
        names = [name for name in ("ffn_gate_exps", "ffn_up_exps") if sketch.has(name)]
        gates = [sketch.multiply(name, inner * used, norm, order) for name in names]
    if distance < _LOOK_AHEAD:
        started = _gates(sketch, norm, shared)
    if len(gates) > 1 or sketch.has("ffn_gate_up_exps"):
        out = sketch.make(inner * used, *gates)
    else:
        out = sketch.over(inner * used, *gates)
    if started:
        early = (_activate(sketch, started, shared),)
    elif distance - 2 < _LOOK_AHEAD:
        early = _gates(sketch, norm, shared)
    down = sketch.multiply("ffn_down_exps", width * used, out, order)
    down = sketch.over(width * used, down, weights)
    total = sketch.make(width, down)
    if used > 2:  # the rest are added in place
        total = sketch.over(width, total, down)
    if width != model.n_embd:
        total = sketch.make(model.n_embd, total)
    return total, early
