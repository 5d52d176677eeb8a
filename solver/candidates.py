"""The candidates of a machine, a model and an intent, best first.

The user's wishes narrow this list; they are never applied to a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from solver import residency
from solver.score import CONTEXT_POINTS, KV_POINTS, score
from solver.types import GIB, Layout, Strategy

if TYPE_CHECKING:
    from solver.model import Model
    from solver.types import Intent, Machine

CONTEXT_LIMIT_SMALL_MOE = 65536
LARGEST_SCORED = 131072  # the best scored context; above it a model's own limit buys nothing
SMALL_GPU_BYTES = 32 * GIB
CPU_PREFERRED_SHARE_PERCENT = 80
CPU_PREFERRED_RESERVE_BYTES = 8 * GIB

UBATCH_BY_TIER = {"halo": 2048, "standard": 1024, "handheld": 512, "none": 512}


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout, the strategy behind it and its score."""

    layout: Layout
    strategy: Strategy
    score: int
    fit_layers: bool = False
    """The device gets as many layers as fit it, not the layout's number."""
    lean: bool = False
    """With residency: whatever is left is enough for the experts. Otherwise they get at least half
    of the memory, for a longer context would cost more speed than it is worth."""

    @property
    def description(self) -> str:
        """One line for people: ``gpu, 131072 tokens, f16``."""
        layout = self.layout
        kv_types = (
            layout.kv_type_k
            if layout.kv_type_k == layout.kv_type_v
            else f"{layout.kv_type_k}/{layout.kv_type_v}"
        )
        draft = ", draft" if layout.mtp or layout.draft_file else ""
        return f"{self.strategy}, {layout.ctx_size} tokens, {kv_types} KV{draft}"


def candidates(
    machine: Machine,
    model: Model,
    intent: Intent,
    groups: tuple[tuple[Strategy, ...], ...] | None = None,
) -> tuple[Candidate, ...]:
    """Every candidate worth trying, in order; stable for equal scores.

    Those of ``partial`` name no number of layers yet, those of ``residency`` no budget for experts:
    both depend on what fits. ``groups``: only these strategies.
    """
    found: list[Candidate] = []
    for group in strategy_groups(machine, model, intent) if groups is None else groups:
        found += sorted(
            (
                Candidate(
                    layout=layout(
                        machine,
                        model,
                        intent,
                        strategy,
                        ctx_size=size,
                        kv_type_k=k,
                        kv_type_v=v,
                        draft=draft,
                    ),
                    strategy=strategy,
                    score=score(strategy, size, k, v, draft=draft),
                )
                for strategy in group
                for size in contexts(machine, model, intent)
                for k, v in kv_types(machine, model, intent)
                for draft in drafts(intent)
            ),
            key=lambda candidate: -candidate.score,
        )
    return tuple(found)


def strategy_groups(
    machine: Machine, model: Model, intent: Intent
) -> tuple[tuple[Strategy, ...], ...]:
    """Where the weights may live here: groups in order, by score within each.

    Where the seed prefers the CPU, what comes after it is tried only when it does not fit.
    Residency comes last, alone: it is for what fits in no other way, and subject to
    :func:`solver.residency.refusal`.
    """
    if intent.moe_strategy is not None:
        return ((intent.moe_strategy,),)
    groups: tuple[tuple[Strategy, ...], ...] = (("gpu", "partial", "cpu"),)
    if machine.gpu_budget_bytes is None:
        groups = (("cpu",),)
    elif not model.is_moe:
        groups = (("gpu",),)
    elif prefers_cpu(machine, model):
        groups = (("cpu",), ("gpu", "partial"))
    if model.is_moe and residency.refusal(machine, model, intent) is None:
        groups = (*groups, ("residency",))
    return groups


def prefers_cpu(machine: Machine, model: Model) -> bool:
    """The seed's 80 % rule.

    A MoE model that would fill more than 80 % of the device, and that fits in system memory beside
    8 GiB for the system, keeps its experts there: the device then has room for the context.
    """
    if machine.gpu_budget_bytes is None or not model.is_moe:
        return False
    fills = model.size_bytes * 100 > machine.gpu_budget_bytes * CPU_PREFERRED_SHARE_PERCENT
    return fills and model.size_bytes <= machine.ram_bytes - CPU_PREFERRED_RESERVE_BYTES


def contexts(machine: Machine, model: Model, intent: Intent) -> tuple[int, ...]:
    """Context sizes in tokens, never above what the model was trained for unless asked."""
    if intent.ctx_size is not None:
        return (intent.ctx_size,)
    limit = model.n_ctx_train
    if _is_small_for_moe(machine, model):
        limit = min(limit, CONTEXT_LIMIT_SMALL_MOE)
    fitting = [size for size in CONTEXT_POINTS if size <= limit]
    if limit < LARGEST_SCORED and limit not in fitting:
        # Trained for an odd length (40960, 128000): all of it is worth at least the size below.
        fitting.insert(0, limit)
    return tuple(fitting)


def kv_types(machine: Machine, model: Model, intent: Intent) -> tuple[tuple[str, str], ...]:
    """Pairs of KV types."""
    names = [
        name for name in KV_POINTS if not (name == "f16" and _is_small_for_moe(machine, model))
    ]
    if intent.kv_type_k is not None or intent.kv_type_v is not None:
        keys = [intent.kv_type_k] if intent.kv_type_k else names
        values = [intent.kv_type_v] if intent.kv_type_v else names
        return tuple((key, value) for key in keys for value in values)
    # One pair of different types is worth its while: where q8_0 does not fit, keys suffer more
    # from q4_0 than values do.
    pairs = [(name, name) for name in names]
    pairs.insert(len(pairs) - 1, ("q8_0", "q4_0"))
    return tuple(pairs)


def drafts(intent: Intent) -> tuple[bool, ...]:
    """With a draft first; without one too, unless the user asked for it."""
    if intent.draft is None:
        return (False,)
    return (True,) if intent.draft_needed else (True, False)


def layout(
    machine: Machine,
    model: Model,
    intent: Intent,
    strategy: Strategy,
    *,
    ctx_size: int,
    kv_type_k: str,
    kv_type_v: str,
    draft: bool = False,
) -> Layout:
    """The layout of one candidate, everything else by tier or by the user's word."""
    on_device = machine.gpu_budget_bytes is not None
    all_layers = model.n_layer + 1
    if not on_device or (strategy == "cpu" and not model.is_moe):
        gpu_layers = 0
    elif intent.gpu_layers is not None:
        gpu_layers = min(intent.gpu_layers, all_layers)
    else:
        gpu_layers = all_layers
    ubatch = intent.ubatch if intent.ubatch is not None else UBATCH_BY_TIER[machine.tier]
    batch = intent.batch if intent.batch is not None else 2 * ubatch
    n_parallel = intent.n_parallel if intent.n_parallel is not None else 1
    experts_on_host = model.is_moe and strategy != "gpu"
    return Layout(
        ctx_size=ctx_size,
        kv_type_k=kv_type_k,
        kv_type_v=kv_type_v,
        n_parallel=n_parallel,
        # One slot may then use the whole context while the others idle.
        kv_unified=n_parallel > 1,
        batch=max(batch, ubatch) if intent.batch is None else batch,
        ubatch=min(ubatch, batch) if intent.ubatch is None else ubatch,
        gpu_layers=gpu_layers,
        n_cpu_moe=model.n_layer if experts_on_host and gpu_layers > 0 else 0,
        flash_attn=model.flash_attn,
        mtp=draft and intent.draft == "mtp",
        mtp_n_max=intent.draft_n_max,
        draft_file=draft and intent.draft == "file",
        # Without a device the weights are used where they lie: a second start finds them cached.
        # With residency the experts are a mapping in any case, and the rest must not be one: the
        # kernel would drop it first when memory is short.
        load_mode="none" if strategy == "residency" or on_device else "mmap",
        repack=strategy != "residency",
        expert_budget_bytes=0 if strategy == "residency" else None,
    )


def _is_small_for_moe(machine: Machine, model: Model) -> bool:
    return (
        model.is_moe
        and machine.gpu_budget_bytes is not None
        and machine.gpu_budget_bytes < SMALL_GPU_BYTES
    )
