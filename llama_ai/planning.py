"""Facts -> solver inputs, and Plan -> Profile: the only adapter between the two.

Three words: a *device table* is shipped facts, a *preset* is shipped intent, and a *profile* is a
solved, concrete configuration with its reasons and what it was computed from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from llama_ai import companions as beside
from llama_ai.errors import DoesNotFitError, EngineNotReadyError
from llama_ai.experts import choice as expert_choice
from llama_ai.gguf.solver_model import model_from_facts
from llama_ai.hardware.budgets import budgets
from llama_ai.hardware.childenv import child_env
from llama_ai.kernel_params.suggest import Suggestion, suggest_limit
from llama_ai.kernel_params.wanted import ceiling_gib
from llama_ai.kv_cache import choice as kv_choice
from llama_ai.presets import Preset, preset_for
from llama_ai.settings import split_kv_types
from solver.solve import plan_as_asked, solve
from solver.types import GIB, Infeasible, Intent, Machine, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llama_ai.companions import Companions, Draft
    from llama_ai.config import Settings
    from llama_ai.experts.choice import Experts
    from llama_ai.gguf.facts import ModelFacts
    from llama_ai.hardware.budgets import Budgets
    from llama_ai.hardware.childenv import ChildEnv
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.kv_cache.choice import KvDisk
    from llama_ai.presets import Kind
    from solver.model import Model
    from solver.types import Backend, Disk, Layout, Plan, Rejected, Strategy

# A driver and other programs live in device memory too; what a device reports free is not all ours.
UNKNOWN_DEVICE_SHARE_PERCENT = 90


@dataclass(frozen=True, kw_only=True)
class EngineDevice:
    """A device as the engine lists it (``--list-devices``)."""

    name: str
    """The engine's word for it, ``Vulkan0``."""
    description: str
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the engine will compute: a backend, its device, and the environment that it needs."""

    backend: Backend
    device: EngineDevice | None
    machine: Machine
    child_env: ChildEnv
    why: str
    steps: tuple[str, ...]
    """The sum that made the GPU budget, as text."""
    gtt_bytes: int | None = None
    """The GTT limit in force, where a higher one would raise the budget."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A solved configuration: what the engine is told, why, and who said so."""

    model: ModelFacts
    solver_model: Model
    model_path: Path
    model_name: str
    target: Target
    intent: Intent
    """What narrowed the search: the user's wishes, and what was learned from failures."""
    plan: Plan
    legacy_name: str
    """The row of the seed's table that this machine and model belong to."""
    over: Rejected | None
    """By how much the plan misses; only in an estimate, a plan to serve fits."""
    sources: Mapping[str, str]
    """Setting -> ``default``, ``system``, ``solver``, ``config``, ``env`` or ``flag``."""
    suggestion: str | None = None
    """How a better plan would fit: a higher GTT limit, with the command that sets it."""
    companions: Companions = beside.NONE
    """What goes with the model; see :attr:`draft` for whether its draft is used."""
    kv_disk: KvDisk | None = None
    """The KV cache on disk; ``None`` where nobody asked."""
    experts: Experts | None = None
    """What the engine is told about experts; ``None`` for a model without them."""

    @property
    def draft(self) -> Draft | None:
        """The draft that the plan has room for."""
        layout = self.plan.layout
        return self.companions.draft if layout.mtp or layout.draft_file else None

    @property
    def n_layer(self) -> int:
        """Blocks as the engine counts them for ``--gpu-layers``."""
        return self.solver_model.n_layer

    @property
    def strategy(self) -> Strategy:
        """Where the weights live."""
        return self.plan.strategy

    @property
    def summary(self) -> str:
        """One line: ``gpu, 131072 tokens, f16 KV, 32 layers on Vulkan0``."""
        layout = self.plan.layout
        kv_type = layout.kv_type_k
        if layout.kv_type_v != layout.kv_type_k:
            kv_type += f"/{layout.kv_type_v}"
        where = "CPU"
        if self.target.device is not None and layout.gpu_layers:
            where = f"{min(layout.gpu_layers, self.n_layer + 1)} layers on "
            where += self.target.device.name
            if layout.n_cpu_moe:
                where += f", experts of {layout.n_cpu_moe} layers on the CPU"
        if layout.expert_budget_bytes:
            where += f", {layout.expert_budget_bytes / GIB:.1f} GiB of experts from disk in memory"
        elif layout.expert_budget_bytes == 0:
            where += ", experts from disk"
        return (
            f"{where}, {layout.ctx_size} tokens of context, {kv_type} KV, "
            f"{layout.n_parallel} slot{'s' if layout.n_parallel > 1 else ''}"
            + (f", {self.draft.kind} draft" if self.draft else "")
            + (", sees pictures" if self.companions.projector else "")
        )


def intent_from(settings: Settings) -> Intent:
    """The user's constraints, from flags, environment and config alike."""
    kv_word = settings.text("kv_cache_type")
    kv_type_k, kv_type_v = split_kv_types(kv_word) if kv_word else (None, None)
    strategy = settings.text("moe_strategy")
    if strategy is None and settings.switch("expert_residency"):
        strategy = "residency"
    return Intent(
        ctx_size=settings.number("ctx_size"),
        kv_type_k=kv_type_k,
        kv_type_v=kv_type_v,
        gpu_layers=settings.number("gpu_layers"),
        moe_strategy=_STRATEGIES[strategy] if strategy else None,
        residency=settings.switch("expert_residency") is not False,
        expert_budget_mib=settings.number("expert_budget_mib"),
        ubatch=settings.number("ubatch_size"),
        batch=settings.number("batch_size"),
        threads=settings.number("threads"),
        threads_batch=settings.number("threads_batch"),
        n_parallel=settings.number("parallel"),
        cache_ram_mib=(
            settings.number("cache_ram")
            if settings.number("kv_ram_mib") is None
            else settings.number("kv_ram_mib")
        ),
    )


_STRATEGIES: dict[str, Strategy] = {
    "gpu": "gpu",
    "partial": "partial",
    "cpu": "cpu",
    "residency": "residency",
}


def choose_target(
    facts: HardwareFacts,
    settings: Settings,
    environ: Mapping[str, str],
    devices: Sequence[EngineDevice] | None,
    *,
    no_residency: str | None = None,
) -> Target:
    """The backend and device to plan for.

    ``devices`` is what the engine lists, or ``None`` where no engine was asked (a dry run);
    ``no_residency`` says why it cannot read experts from disk (``None``: it can, as our own build
    does). The user's ``--backend`` and ``--device`` are honoured or refused
    (:class:`~llama_ai.errors.EngineNotReadyError`), never replaced.
    """
    wish = settings.text("backend")
    wanted_device = settings.text("device")
    known = budgets(facts)
    backend, why = _backend(facts, known, wish, wanted_device, devices)
    env = child_env(facts, user_env=environ, backend=backend)
    if backend == "cpu":
        return Target(
            backend=backend,
            device=None,
            machine=replace(
                _machine(facts, known, backend, None, None, shared=False),
                no_residency=no_residency,
            ),
            child_env=env,
            why=why,
            steps=(),
        )
    device = _device(facts, backend, wanted_device, devices)
    gpu_bytes = known.gpu_budget_bytes(backend, env.unified_heap)
    steps = known.explain("vulkan_unified" if backend == "vulkan" and env.unified_heap else backend)
    shared = known.uma
    if gpu_bytes is None and device.total_bytes is not None:
        # Not a GPU that we know: believe what the engine reports, less a margin, and assume that
        # it shares system memory (a software driver does), which can only be too careful.
        reported = device.total_bytes if device.free_bytes is None else device.free_bytes
        gpu_bytes = reported * UNKNOWN_DEVICE_SHARE_PERCENT // 100
        steps = (f"{UNKNOWN_DEVICE_SHARE_PERCENT} % of what {device.name} reports free",)
        shared = facts.gpu is None or facts.gpu.kind != "discrete"
    if gpu_bytes is None:
        raise EngineNotReadyError(
            f"the memory of {device.name} is not known",
            hint="use --backend cpu, or see `llama-ai doctor`",
        )
    return Target(
        backend=backend,
        device=device,
        machine=replace(
            _machine(facts, known, backend, device.name, gpu_bytes, shared=shared),
            no_residency=no_residency,
        ),
        child_env=env,
        why=why,
        steps=steps,
        gtt_bytes=facts.gpu.gtt_bytes if facts.gpu and known.uma else None,
    )


def make_profile(
    model: ModelFacts,
    *,
    model_path: Path,
    model_name: str,
    target: Target,
    settings: Settings,
    learned: Mapping[str, int | str] | None = None,
    as_asked: bool = False,
    refused: Mapping[Layout, Rejected] | None = None,
    companions: Companions = beside.NONE,
    disk: Disk | None = None,
    expert_use: tuple[tuple[float, ...], ...] | None = None,
) -> Profile:
    """Solve; raises :class:`~llama_ai.errors.DoesNotFitError` naming the nearest miss and cures.

    ``learned`` holds settings at which the engine kept running here after larger ones had failed;
    the user's own wishes win over them. ``as_asked`` estimates the settings as they are, fitting
    or not (``over`` then says by how much they miss). ``refused``: see
    :func:`solver.solve.solve`. ``disk`` is the one that the model is on, ``expert_use`` what was
    counted of it (:attr:`solver.model.Model.expert_use`).
    """
    target = replace(target, machine=replace(target.machine, disk=disk))
    projector, draft = companions.projector, companions.draft
    seen = model_from_facts(model, projector_bytes=projector.total_bytes if projector else 0)
    seen = replace(seen, expert_use=expert_use)
    asked_for = wishes = intent_from(settings)
    if draft is not None:
        if draft.facts is not None:
            seen = replace(seen, draft_model=model_from_facts(draft.facts))
        asked_for = wishes = replace(
            wishes,
            draft="mtp" if draft.facts is None else "file",
            draft_n_max=draft.n_max,
            draft_needed=draft.needed,
        )
    wanted_disk = kv_choice.choose(settings, target.machine.tier, _at_least_one(wishes))
    if wanted_disk.enabled:
        asked_for = wishes = replace(wishes, disk_tier_bytes=kv_choice.BUFFER_BYTES)
    preset = preset_for(target.machine.tier, _kind(seen), seen.size_bytes)
    if settings.switch("noauto"):
        wishes = _as_preset(preset, target.machine, seen, wishes)
    intent = narrowed(wishes, learned or {})
    over = None
    if as_asked:
        asked = plan_as_asked(target.machine, seen, intent)
        answer, over = asked if isinstance(asked, tuple) else (asked, None)
    else:
        answer = solve(target.machine, seen, intent, refused=refused)
        if isinstance(answer, Infeasible) and intent != wishes:
            intent = wishes
            answer = solve(target.machine, seen, intent, refused=refused)
    if not _is_whole(answer, intent) and intent.disk_tier_bytes and _disk_is_open(settings):
        # The seed's last step but one: without the disk tier rather than not at all, or with the
        # experts on disk. A refusal then says what is missing when even that is left out.
        lean = replace(intent, disk_tier_bytes=0)
        without = solve(target.machine, seen, lean, refused=refused)
        if isinstance(answer, Infeasible) or _is_whole(without, lean):
            answer, intent = without, lean
    if isinstance(answer, Infeasible):
        raised = _higher_limit(target, answer.nearest)
        cures = "; ".join(answer.cures if raised is None else (raised, *answer.cures))
        refusal = DoesNotFitError(
            f"{model_name}: {answer.message}", hint=f"what would help: {cures}" if cures else None
        )
        refusal.over_by_bytes = answer.nearest.over_by_bytes if answer.nearest else None
        raise refusal
    decided = {
        "ctx_size",
        "kv_cache_type",
        "gpu_layers",
        "moe_strategy",
        "ubatch_size",
        "batch_size",
        "threads",
        "threads_batch",
        "parallel",
        "cache_ram",
        "expert_budget_mib",
    }
    sources: dict[str, str] = {name: settings.source(name, "solver") for name in sorted(decided)}
    for name in ("backend", "device"):
        sources[name] = settings.source(name, "system")
    for name in ("host", "port", "reasoning_budget"):
        sources[name] = settings.source(name, "default")
    if draft is not None:
        said = settings.source("draft", "default")
        sources["draft"] = "solver" if said == "default" else said
    kv_disk = kv_choice.choose(settings, target.machine.tier, answer.cache_ram_mib)
    if kv_disk.enabled and not intent.disk_tier_bytes:
        kv_disk = replace(kv_disk, enabled=False, why="its copies would not fit in memory")
    sources["kv_disk"] = kv_disk.source
    experts = None
    if seen.is_moe:
        experts = expert_choice.choose(settings, model_path, model.size_bytes)
        sources.update(experts.sources)
    answer = replace(
        answer,
        reasons=(
            *answer.reasons,
            *_expert_reasons(experts, answer),
            Reason(setting="kv_disk", value="on" if kv_disk.enabled else "off", why=kv_disk.why),
        ),
    )
    return Profile(
        model=model,
        companions=companions,
        kv_disk=kv_disk,
        experts=experts,
        solver_model=seen,
        suggestion=_better_plan(target, seen, intent, answer),
        model_path=model_path,
        model_name=model_name,
        target=target,
        intent=intent,
        legacy_name=preset.name,
        over=over,
        plan=_with_true_reasons(
            _with_true_reasons(answer, wishes, intent, LESSON),
            asked_for,
            wishes,
            f"preset {preset.name}",
        ),
        sources=sources,
    )


def _expert_reasons(experts: Experts | None, plan: Plan) -> tuple[Reason, ...]:
    if experts is None or plan.layout.expert_budget_bytes is None:
        return ()
    asked = "you asked for it"
    given = {name for name, source in experts.sources.items() if source != "default"}
    return (
        Reason(
            setting="expert_prefetch_threads",
            value=str(experts.prefetch_threads),
            why=asked
            if "expert_prefetch_threads" in given
            else "reads in flight at once; they wait for the disk, not for a core",
        ),
        Reason(
            setting="expert_prewarm",
            value="on" if experts.prewarm else "off",
            why=asked
            if "expert_prewarm" in given
            else "the experts used most before are read first"
            if experts.prewarm
            else "nothing is counted",
        ),
    )


def _better_plan(target: Target, model: Model, intent: Intent, plan: Plan) -> str | None:
    """What a higher, still safe GTT limit would allow, where that scores better than ``plan``."""
    machine, gtt_bytes = target.machine, target.gtt_bytes
    if gtt_bytes is None or machine.gpu_budget_bytes is None:
        return None
    most_gib = ceiling_gib(machine.ram_bytes)
    highest = _with_gtt(target, most_gib)
    if most_gib * GIB <= gtt_bytes or highest is None:
        return None
    best = solve(highest, model, intent)
    if isinstance(best, Infeasible) or best.score <= plan.score:
        return None
    # The least that its memory needs, unless a rule about the budget's size wants more.
    more_bytes = (best.memory.gpu.total_bytes - machine.gpu_budget_bytes) / _gtt_share(target)
    gib = min(most_gib, -(-(gtt_bytes + max(0, int(more_bytes))) // GIB))
    enough = _with_gtt(target, gib)
    found = None if enough is None else solve(enough, model, intent)
    if found is None or isinstance(found, Infeasible) or found.score < best.score:
        gib = most_gib
    layout = best.layout
    what = f"{best.strategy} with " if model.is_moe else ""
    return (
        f"better would be {what}{layout.ctx_size} tokens in {layout.kv_type_k}: "
        f"{Suggestion.of(gib).text}"
    )


def _with_gtt(target: Target, gib: int) -> Machine | None:
    """The machine as it would be with a GTT limit of ``gib``."""
    machine = target.machine
    if machine.gpu_budget_bytes is None or target.gtt_bytes is None:
        return None
    more_bytes = int((gib * GIB - target.gtt_bytes) * _gtt_share(target))
    return replace(machine, gpu_budget_bytes=machine.gpu_budget_bytes + more_bytes)


def _gtt_share(target: Target) -> Fraction:
    """The part of each further byte of GTT that the budget gains (RADV's heaps, if not unified)."""
    unified = target.backend != "vulkan" or target.child_env.unified_heap
    return Fraction(1) if unified else Fraction(2, 3)


def _higher_limit(target: Target, miss: Rejected | None) -> str | None:
    """A GTT limit that is safe here and with which ``miss`` would have fitted, as a sentence."""
    if miss is None or miss.where != "gpu":
        return None
    suggestion = suggest_limit(
        ram_bytes=target.machine.ram_bytes,
        gtt_bytes=target.gtt_bytes,
        over_by_bytes=miss.over_by_bytes,
        host_bytes=miss.host_bytes,
        gtt_share=_gtt_share(target),
    )
    return None if suggestion is None else suggestion.text


def _is_whole(answer: Plan | Infeasible, intent: Intent) -> bool:
    """A plan that loads all of the model, or reads experts from disk because the user says so."""
    if isinstance(answer, Infeasible):
        return False
    return answer.strategy != "residency" or intent.moe_strategy is not None


def _disk_is_open(settings: Settings) -> bool:
    """Whether the user said nothing about the KV cache on disk, under either of its names."""
    return settings.get("kv_disk") is None and settings.get("ssd_cache") is None


def _at_least_one(wishes: Intent) -> int:
    """The prompt cache that was asked for, in MiB; where it is open the solver finds some."""
    return 1 if wishes.cache_ram_mib is None else wishes.cache_ram_mib


def _kind(model: Model) -> Kind:
    """The seed's three kinds; Jamba counts as recurrent, other hybrids by their experts."""
    if model.is_recurrent and (not model.caches or model.architecture == "jamba"):
        return "ssm"
    return "moe" if model.is_moe else "dense"


def _as_preset(preset: Preset, machine: Machine, model: Model, wishes: Intent) -> Intent:
    """The preset as constraints, the user's own words above it."""
    strategy: Strategy | None = None
    limit_gib = preset.cpu_moe_from_gib
    if model.is_moe and machine.gpu_budget_bytes is not None:
        large = limit_gib is not None and model.size_bytes >= limit_gib * GIB
        strategy = "cpu" if large else "gpu"
    return replace(
        wishes,
        ctx_size=wishes.ctx_size or min(preset.ctx_size, model.n_ctx_train),
        kv_type_k=wishes.kv_type_k or preset.kv_type,
        kv_type_v=wishes.kv_type_v or preset.kv_type,
        moe_strategy=wishes.moe_strategy or strategy,
        ubatch=wishes.ubatch or preset.ubatch,
        batch=wishes.batch or preset.batch,
    )


def narrowed(wishes: Intent, learned: Mapping[str, int | str]) -> Intent:
    """``wishes``, with what was learned where the user said nothing."""
    fields: dict[str, Any] = {}
    for setting, value in learned.items():
        for name in _INTENT_FIELDS.get(setting, ()):
            if getattr(wishes, name) is None:
                fields[name] = value
    return replace(wishes, **fields)


_INTENT_FIELDS = {
    "ubatch_size": ("ubatch",),
    "ctx_size": ("ctx_size",),
    "kv_cache_type": ("kv_type_k", "kv_type_v"),
    "moe_strategy": ("moe_strategy",),
    "gpu_layers": ("gpu_layers",),
    "batch_size": ("batch",),
    "expert_budget_mib": ("expert_budget_mib",),
}


LESSON = "a larger one failed here (serve --forget tries it again)"


def _with_true_reasons(plan: Plan, wishes: Intent, intent: Intent, why: str) -> Plan:
    """The plan, with ``why`` where ``intent`` narrowed what ``wishes``, the user's, left open."""
    narrowed_here = {
        setting
        for setting, names in _INTENT_FIELDS.items()
        if any(getattr(wishes, name) != getattr(intent, name) for name in names)
    }
    return replace(
        plan,
        reasons=tuple(
            replace(reason, why=why) if reason.setting in narrowed_here else reason
            for reason in plan.reasons
        ),
    )


def _backend(
    facts: HardwareFacts,
    known: Budgets,
    wish: str | None,
    wanted_device: str | None,
    devices: Sequence[EngineDevice] | None,
) -> tuple[Backend, str]:
    names: dict[str, Backend] = {
        "vulkan": "vulkan",
        "rocm": "rocm",
        "metal": "metal",
        "cpu": "cpu",
    }
    if wish is not None:
        return names[wish], "you asked for it"
    if wanted_device is not None:
        for prefix, backend in _PREFIXES.items():
            if wanted_device.startswith(prefix):
                return backend, "the device that you asked for"
    if facts.gpu is None:
        return "cpu", "no AMD GPU was found"
    if known.gpu_budget_bytes("vulkan") is None:
        return "cpu", f"the memory of {facts.gpu.label} is not known"
    if devices is None or any(device.name.startswith("Vulkan") for device in devices):
        return "vulkan", f"{facts.gpu.label} through Vulkan"
    raise EngineNotReadyError(
        f"{facts.gpu.label} is here, but the engine sees no Vulkan device",
        hint="`llama-ai doctor` says why; --backend cpu serves without the GPU",
    )


_PREFIXES: dict[str, Backend] = {
    "Vulkan": "vulkan",
    "ROCm": "rocm",
    "MTL": "metal",
    "Metal": "metal",
}


def _device(
    facts: HardwareFacts,
    backend: Backend,
    wanted: str | None,
    devices: Sequence[EngineDevice] | None,
) -> EngineDevice:
    prefixes = tuple(prefix for prefix, name in _PREFIXES.items() if name == backend)
    if devices is None:
        # A dry run without an engine: the first device of the backend is meant.
        name = wanted or f"{prefixes[0]}0"
        return EngineDevice(name=name, description="", total_bytes=None, free_bytes=None)
    usable = [device for device in devices if device.name.startswith(prefixes)]
    listed = ", ".join(device.name for device in devices) or "none"
    if wanted is not None:
        for device in usable:
            if device.name == wanted:
                return device
        raise EngineNotReadyError(
            f"the engine has no device {wanted}", hint=f"devices that it lists: {listed}"
        )
    if not usable:
        raise EngineNotReadyError(
            f"the engine sees no {backend} device",
            hint=f"devices that it lists: {listed}; `llama-ai doctor` says why",
        )
    gpu = facts.gpu
    if gpu is not None:
        for word in (gpu.gfx, gpu.name, gpu.codename):
            for device in usable:
                if word and word.lower() in device.description.lower():
                    return device
    return usable[0]


def _machine(
    facts: HardwareFacts,
    known: Budgets,
    backend: Backend,
    device: str | None,
    gpu_bytes: int | None,
    *,
    shared: bool,
) -> Machine:
    ram_bytes = facts.memory.ram_bytes
    host_bytes = known.host_budget_bytes
    if ram_bytes is None or host_bytes is None:
        raise EngineNotReadyError(
            "the amount of system memory is not known", hint="is /proc mounted and readable?"
        )
    pool_bytes = known.pool_bytes
    if shared and pool_bytes is None:
        pool_bytes = host_bytes
    return Machine(
        tier=facts.tier,
        backend=backend,
        device=device,
        gpu_budget_bytes=gpu_bytes,
        host_budget_bytes=host_bytes,
        pool_budget_bytes=pool_bytes if shared and gpu_bytes is not None else None,
        ram_bytes=ram_bytes,
        os_reserve_bytes=known.os_reserve_bytes or 0,
        cores_physical=facts.cpu.cores_physical or facts.cpu.cores_logical or 1,
        cores_logical=facts.cpu.cores_logical or facts.cpu.cores_physical or 1,
        on_ac=facts.power.on_ac,
        bandwidth_bytes_s=_scaled(facts.gpu.bandwidth_gb_s, 1e9) if facts.gpu else None,
        prefill_flops=(
            _scaled(facts.gpu.prefill_tflops, 1e12) if facts.gpu and gpu_bytes is not None else None
        ),
    )


def _scaled(figure: float | None, unit: float) -> float | None:
    return None if figure is None else figure * unit
