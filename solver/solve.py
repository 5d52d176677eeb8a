"""The search: best candidate first, the first that fits wins; then single, smaller steps.

When nothing fits, the answer is an :class:`~solver.types.Infeasible` with the candidate that missed
by least and what would cure it. Nothing that does not fit is ever returned as a plan.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from solver import residency
from solver.candidates import Candidate, candidates, layout, prefers_cpu, strategy_groups
from solver.compute import compute_bytes
from solver.expert_pool import with_pool, with_smaller_pool
from solver.memory import estimate
from solver.score import score
from solver.speed import speed
from solver.types import GIB, MIB, Infeasible, Memory, Plan, Reason, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from solver.model import Model
    from solver.placement import Placement
    from solver.types import Intent, Layout, Machine, Place, Strategy

MINIMUM_CACHE_RAM_MIB = 256
SMALL_RAM_BYTES = 32 * GIB
SMALL_RAM_CACHE_MIB = 2048
SAFETY_NET_CONTEXT = 65536
SAFETY_NET_KV_TYPE = "q4_0"
SMALLEST_UBATCH = 256
SMALLER_CONTEXTS = (4096, 8192, 16384, 32768, 49152, 65536, 98304, 131072)


def solve(
    machine: Machine,
    model: Model,
    intent: Intent,
    *,
    refused: Mapping[Layout, Rejected] | None = None,
) -> Plan | Infeasible:
    """The best plan that fits ``machine``'s budgets and honours every wish of ``intent``.

    ``refused`` holds layouts that the engine itself measured as too large, with its figures.
    """
    refusal = _contradiction(machine, model, intent)
    if refusal is not None:
        return refusal
    needs = _Estimates(model, intent.disk_tier_bytes)
    rejected: list[Rejected] = []
    for unplaced in _search_order(machine, model, intent):
        candidate = _placed(machine, intent, needs, unplaced)
        if refused and intent.expert_budget_mib is None:
            candidate = with_smaller_pool(candidate, refused)
        memory = needs(candidate.layout)
        miss = (refused or {}).get(candidate.layout) or _miss(machine, intent, candidate, memory)
        if miss is None:
            return _plan(machine, model, intent, candidate, memory, rejected)
        rejected.append(miss)
    return _infeasible(machine, needs, intent, rejected)


def plan_as_asked(
    machine: Machine, model: Model, intent: Intent
) -> tuple[Plan, Rejected | None] | Infeasible:
    """What exactly the settings of ``intent`` need, fitting or not, and by how much it misses.

    What ``intent`` leaves open is taken from the candidate that the search would try first.
    """
    refusal = _contradiction(machine, model, intent)
    if refusal is not None:
        return refusal
    needs = _Estimates(model, intent.disk_tier_bytes)
    candidate = _placed(machine, intent, needs, candidates(machine, model, intent)[0])
    memory = needs(candidate.layout)
    miss = _miss(machine, intent, candidate, memory)
    return _plan(machine, model, intent, candidate, memory, []), miss


class _Estimates:
    """Estimates of one model's layouts, each made once: the search asks for some again."""

    def __init__(self, model: Model, disk_tier_bytes: int) -> None:
        self.model = model
        self._disk_tier_bytes = disk_tier_bytes
        self._made: dict[Layout, Memory] = {}
        self._computed: dict[Layout, tuple[int, int]] = {}

    def __call__(self, layout: Layout) -> Memory:
        if layout not in self._made:
            memory = estimate(self.model, layout, compute=self._compute)
            host = replace(memory.host, disk_tier_bytes=self._disk_tier_bytes)
            self._made[layout] = replace(memory, host=host)
        return self._made[layout]

    def _compute(self, model: Model, layout: Layout, place: Placement) -> tuple[int, int]:
        # How the weights are loaded, and how many experts stay, changes no intermediate result;
        # whether experts are on disk at all does (`Layout.op_offload`).
        on_disk = None if layout.expert_budget_bytes is None else 0
        shape = replace(layout, expert_budget_bytes=on_disk, load_mode="mmap", repack=True)
        if shape not in self._computed:
            self._computed[shape] = compute_bytes(model, layout, place)
        return self._computed[shape]


def _placed(machine: Machine, intent: Intent, needs: _Estimates, candidate: Candidate) -> Candidate:
    """The candidate with its open numbers filled in from what fits.

    ``partial`` keeps as few layers' experts in system memory as possible, ``fit_layers`` puts as
    many layers on the device as possible. What the device needs grows with either, so halving the
    interval finds the number. ``residency`` gives the experts what memory is left then.
    """
    if machine.gpu_budget_bytes is not None:
        candidate = _placed_on_device(machine.gpu_budget_bytes, needs, candidate)
    if candidate.strategy == "residency":
        candidate = with_pool(machine, needs.model, intent, needs, candidate)
    return candidate


def _placed_on_device(budget_bytes: int, needs: _Estimates, candidate: Candidate) -> Candidate:
    def fits(layout: Layout) -> bool:
        return needs(layout).gpu.total_bytes <= budget_bytes

    chosen = candidate.layout
    if candidate.strategy == "partial":
        chosen = replace(
            chosen,
            n_cpu_moe=_smallest(
                1, needs.model.n_layer, lambda count: fits(replace(chosen, n_cpu_moe=count))
            ),
        )
    if candidate.fit_layers:
        most = chosen.gpu_layers
        fewer = _smallest(1, most, lambda count: fits(replace(chosen, gpu_layers=most - count)))
        chosen = replace(chosen, gpu_layers=most - fewer)
    return replace(candidate, layout=chosen)


def _smallest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The smallest number of ``low .. high`` for which ``holds``; ``high`` if for none below."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def cache_ram_mib(machine: Machine, memory: Memory) -> int:
    """MiB for the prompt cache: what system memory is left, 10 % headroom, at most 25 % of RAM.

    Source: the seed's allocation rule; under 32 GiB of RAM at most 2048 MiB. Beside experts from
    disk it stays a tenth of their pool: what these give up is not for it.
    """
    free_bytes = machine.host_budget_bytes - memory.host.total_bytes
    if machine.pool_budget_bytes is not None:
        both_bytes = memory.gpu.total_bytes + memory.host.total_bytes
        free_bytes = min(free_bytes, machine.pool_budget_bytes - both_bytes)
    left_bytes = free_bytes * 9 // 10
    limit_bytes = machine.ram_bytes // 4
    if machine.ram_bytes < SMALL_RAM_BYTES:
        limit_bytes = min(limit_bytes, SMALL_RAM_CACHE_MIB * MIB)
    pool_bytes = memory.host.experts_bytes
    if pool_bytes:
        limit_bytes = min(limit_bytes, max(MINIMUM_CACHE_RAM_MIB * MIB, pool_bytes // 10))
    return max(0, min(left_bytes, limit_bytes)) // MIB


def _contradiction(machine: Machine, model: Model, intent: Intent) -> Infeasible | None:
    """Wishes that no amount of memory can honour."""
    if machine.gpu_budget_bytes is None:
        if intent.gpu_layers:
            return _refuse("layers on the GPU were asked for, but no GPU is usable here")
        if intent.moe_strategy in {"gpu", "partial"}:
            return _refuse("experts were asked for on the GPU, but no GPU is usable here")
    if intent.moe_strategy in {"partial", "residency"} and not model.is_moe:
        return _refuse(f"{intent.moe_strategy} was asked for, but this model has no experts")
    if intent.moe_strategy == "residency" and not residency.streamed_bytes(model, mtp=False):
        return _refuse("residency was asked for, but this model's experts cannot be told apart")
    if intent.moe_strategy == "residency" and machine.no_residency is not None:
        return _refuse(f"residency was asked for, but {machine.no_residency}")
    if intent.ubatch is not None and intent.batch is not None and intent.ubatch > intent.batch:
        return _refuse(
            f"a ubatch of {intent.ubatch} tokens does not go into a batch of {intent.batch}"
        )
    return None


def _refuse(message: str) -> Infeasible:
    return Infeasible(message=message, nearest=None, cures=())


def _search_order(machine: Machine, model: Model, intent: Intent) -> list[Candidate]:
    """The scored list, then the safety net (64 K, q4_0), then its single fine steps.

    The same once more for residency: a smaller step of what is loaded whole comes before it.
    """
    groups = strategy_groups(machine, model, intent)
    from_disk = groups[-1] == ("residency",)
    parts = (groups[:-1], groups[-1:]) if from_disk else (groups,)
    return [
        candidate for part in parts for candidate in _with_safety_net(machine, model, intent, part)
    ]


def _with_safety_net(
    machine: Machine, model: Model, intent: Intent, groups: tuple[tuple[Strategy, ...], ...]
) -> list[Candidate]:
    ordered = list(candidates(machine, model, intent, groups))
    ctx_size = intent.ctx_size or min(SAFETY_NET_CONTEXT, model.n_ctx_train)
    net: list[Candidate] = []
    for strategy in (one for group in groups for one in group):
        base = Candidate(
            layout=layout(
                machine,
                model,
                intent,
                strategy,
                ctx_size=ctx_size,
                kv_type_k=intent.kv_type_k or SAFETY_NET_KV_TYPE,
                kv_type_v=intent.kv_type_v or SAFETY_NET_KV_TYPE,
                draft=intent.draft is not None and intent.draft_needed,
            ),
            strategy=strategy,
            score=0,
            lean=strategy == "residency",
        )
        net.append(base)
        if intent.gpu_layers is None and base.layout.gpu_layers > 0:
            net.append(replace(base, fit_layers=True))
        if intent.ubatch is None and base.layout.ubatch > SMALLEST_UBATCH:
            smallest = replace(base.layout, ubatch=SMALLEST_UBATCH)
            net.append(replace(base, layout=smallest))
    scored = [
        replace(
            candidate,
            score=score(
                candidate.strategy,
                candidate.layout.ctx_size,
                candidate.layout.kv_type_k,
                candidate.layout.kv_type_v,
                draft=candidate.layout.mtp or candidate.layout.draft_file,
            ),
        )
        for candidate in net
    ]
    return ordered + [candidate for candidate in scored if candidate not in ordered]


def _miss(
    machine: Machine, intent: Intent, candidate: Candidate, memory: Memory
) -> Rejected | None:
    """By how much the candidate misses the tightest budget; ``None`` when it fits."""
    cache_mib = MINIMUM_CACHE_RAM_MIB if intent.cache_ram_mib is None else intent.cache_ram_mib
    host_bytes = memory.host.total_bytes + cache_mib * MIB
    worst_bytes, where = over_budget(machine, memory.gpu.total_bytes, host_bytes)
    if worst_bytes <= 0:
        return None
    return Rejected(
        description=candidate.description,
        score=candidate.score,
        where=where,
        over_by_bytes=worst_bytes,
        host_bytes=memory.host.total_bytes,
    )


def over_budget(machine: Machine, gpu_bytes: int, host_bytes: int) -> tuple[int, Place]:
    """By how many bytes the tightest budget is missed (at most 0: it fits), and which it is."""
    over: list[tuple[int, Place]] = [
        (gpu_bytes - (machine.gpu_budget_bytes or 0), "gpu"),
        (host_bytes - machine.host_budget_bytes, "host"),
    ]
    if machine.pool_budget_bytes is not None:
        over.append((gpu_bytes + host_bytes - machine.pool_budget_bytes, "pool"))
    return max(over)


def _plan(
    machine: Machine,
    model: Model,
    intent: Intent,
    candidate: Candidate,
    memory: Memory,
    rejected: list[Rejected],
) -> Plan:
    cache_mib = (
        intent.cache_ram_mib if intent.cache_ram_mib is not None else cache_ram_mib(machine, memory)
    )
    threads_batch = intent.threads_batch or intent.threads or machine.cores_physical
    # The seed's half: a GPU decodes and the CPU only feeds it. Without one, every core counts.
    on_cpu = candidate.layout.gpu_layers == 0 or candidate.layout.n_cpu_moe > 0
    threads = intent.threads or (
        machine.cores_physical if on_cpu else max(1, machine.cores_physical // 2)
    )
    memory = replace(memory, host=replace(memory.host, prompt_cache_bytes=cache_mib * MIB))
    return Plan(
        layout=candidate.layout,
        strategy=candidate.strategy,
        threads=threads,
        threads_batch=threads_batch,
        cache_ram_mib=cache_mib,
        score=candidate.score,
        memory=memory,
        speed=speed(machine, model, candidate.layout, memory),
        reasons=_reasons(machine, model, intent, candidate, cache_mib, threads, threads_batch),
        rejected=tuple(rejected),
    )


def _reasons(
    machine: Machine,
    model: Model,
    intent: Intent,
    candidate: Candidate,
    cache_mib: int,
    threads: int,
    threads_batch: int,
) -> tuple[Reason, ...]:
    chosen = candidate.layout
    asked = "you asked for it"

    def because(setting: str, value: object, wish: object, why: str) -> Reason:
        return Reason(setting=setting, value=str(value), why=asked if wish is not None else why)

    if candidate.strategy == "residency":
        where = "it does not fit whole: experts are read from disk when they are needed"
    elif machine.gpu_budget_bytes is None:
        where = "no GPU is usable here"
    elif prefers_cpu(machine, model):
        where = "the model fills more than 80 % of the GPU budget and fits in system memory"
    elif chosen.gpu_layers <= model.n_layer:
        where = "as many layers as fit the GPU budget"
    else:
        where = "the best scored strategy that fits"
    layers = where
    if candidate.strategy == "residency":
        layers = (
            "no GPU is usable here"
            if machine.gpu_budget_bytes is None
            else "all but the experts"
            if chosen.gpu_layers > model.n_layer
            else "as many layers as fit the GPU budget"
        )
    trained = f"the model was trained for {model.n_ctx_train} tokens"
    kv_wish = intent.kv_type_k or intent.kv_type_v
    experts = because("moe_strategy", candidate.strategy, intent.moe_strategy, where)
    drafts = chosen.mtp or chosen.draft_file
    draft = because(
        "draft",
        f"{intent.draft}, {intent.draft_n_max} tokens ahead" if drafts else "off",
        intent.draft_needed or None,
        "it fits beside everything else" if drafts else "it does not fit beside this context",
    )
    return (
        *((experts,) if model.is_moe else ()),
        because("gpu_layers", chosen.gpu_layers, intent.gpu_layers, layers),
        *_expert_budget(model, intent, chosen),
        because(
            "ctx_size",
            chosen.ctx_size,
            intent.ctx_size,
            trained if chosen.ctx_size == model.n_ctx_train else "best scored context that fits",
        ),
        because(
            "kv_cache_type",
            f"{chosen.kv_type_k}/{chosen.kv_type_v}",
            kv_wish,
            "the finest type that fits with this context",
        ),
        because(
            "ubatch_size",
            chosen.ubatch,
            intent.ubatch,
            f"tier {machine.tier}"
            if chosen.expert_budget_bytes is None
            else "each one reads through the model: as large as costs the experts little memory",
        ),
        because("batch_size", chosen.batch, intent.batch, "two ubatches"),
        because(
            "threads",
            threads,
            intent.threads,
            "physical cores" if threads == machine.cores_physical else "half the physical cores",
        ),
        because("threads_batch", threads_batch, intent.threads_batch, "physical cores"),
        because("parallel", chosen.n_parallel, intent.n_parallel, "one conversation at a time"),
        because(
            "cache_ram",
            f"{cache_mib} MiB",
            intent.cache_ram_mib,
            "of the system memory that is left, at most a quarter of RAM",
        ),
        *((draft,) if intent.draft is not None else ()),
    )


def _expert_budget(model: Model, intent: Intent, chosen: Layout) -> tuple[Reason, ...]:
    pool_bytes = chosen.expert_budget_bytes
    if pool_bytes is None:
        return ()
    if pool_bytes == 0:
        value, share = "0 MiB", "the kernel's page cache decides what stays"
    else:
        whole_bytes = residency.whole_pool_bytes(model, mtp=chosen.mtp)
        percent = min(100, pool_bytes * 100 // whole_bytes)
        value = f"{pool_bytes // MIB} MiB"
        share = f"room for {percent} % of the experts: what memory is left beside everything else"
    why = "you asked for it" if intent.expert_budget_mib is not None else share
    return (Reason(setting="expert_budget_mib", value=value, why=why),)


def _infeasible(
    machine: Machine, needs: _Estimates, intent: Intent, rejected: list[Rejected]
) -> Infeasible:
    nearest = min(rejected, key=lambda miss: miss.over_by_bytes)
    smaller = _fitting_context(machine, needs, intent)
    cures = [] if smaller is None else [f"--ctx-size {smaller}"]
    if intent.kv_type_k is not None or intent.kv_type_v is not None:
        cures.append("a smaller --kv-cache-type")
    cures.append("a smaller quantisation of this model")
    if needs.model.is_moe and intent.moe_strategy is None:
        why_not = residency.refusal(machine, needs.model, intent)
        cures += [] if why_not is None else [f"reading its experts from disk ({why_not})"]
    places = {"gpu": "GPU budget", "host": "system memory", "pool": "memory that both share"}
    return Infeasible(
        message=f"nothing fits: the nearest candidate ({nearest.description}) is "
        f"{nearest.over_by_bytes / GIB:.1f} GiB over the {places[nearest.where]}",
        nearest=nearest,
        cures=tuple(cures),
    )


def _fitting_context(machine: Machine, needs: _Estimates, intent: Intent) -> int | None:
    """The largest usual context below what was tried that would fit, everything else as wished."""
    tried = intent.ctx_size or min(SAFETY_NET_CONTEXT, needs.model.n_ctx_train)
    largest: int | None = None
    for ctx_size in SMALLER_CONTEXTS:
        narrowed = replace(intent, ctx_size=ctx_size)
        if ctx_size >= tried or not _fits_somehow(machine, needs, narrowed):
            break  # a larger context never needs less
        largest = ctx_size
    return largest


def _fits_somehow(machine: Machine, needs: _Estimates, intent: Intent) -> bool:
    # The last candidates are the smallest, so they answer soonest.
    for candidate in reversed(_search_order(machine, needs.model, intent)):
        placed = _placed(machine, intent, needs, candidate)
        if _miss(machine, intent, placed, needs(placed.layout)) is None:
            return True
    return False
