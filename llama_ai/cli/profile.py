"""``llama-ai profile``: the dry run, in words, as variables, as the exact command, or as JSON."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption, ModelArgument, RootOption, serving_options
from llama_ai.errors import UsageError
from solver.types import MIB, PART_LABELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_ai.cli.pipeline import Prepared
    from llama_ai.config import Settings
    from llama_ai.gguf.facts import ModelFacts
    from llama_ai.settings import Value
    from solver.types import Components

FORMS = ("text", "env", "argv", "json")


@serving_options
def profile(
    context: typer.Context,
    flags: Mapping[str, Value | None],
    assignments: list[str],
    model: ModelArgument = None,
    form: Annotated[
        str, typer.Option("--format", metavar="text|env|argv|json", help="form of the answer")
    ] = "text",
    json: JsonOption = False,
    root: RootOption = None,
    estimate: Annotated[
        bool,
        typer.Option(
            "--estimate", help="the memory of exactly the settings asked for, fitting or not"
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="have the built engine measure the plan, as serve does")
    ] = False,
) -> None:
    """Show how MODEL would be served on this machine, and why. Starts nothing."""
    from llama_ai.cli.pipeline import read_settings

    settings = read_settings(flags, assignments)
    show_profile(
        settings,
        model,
        context.obj or (),
        root=root,
        form="json" if json else form,
        as_asked=estimate,
        verify=verify,
    )


def show_profile(
    settings: Settings,
    model: str | None,
    raw: Sequence[str],
    *,
    root: str | None,
    form: str,
    as_asked: bool = False,
    verify: bool = False,
) -> None:
    """Solve and print; the engine is asked when it is already built, and never built for this."""
    from llama_ai.cli import pipeline

    if form not in FORMS:
        raise UsageError(f"there is no format '{form}'", hint="one of " + ", ".join(FORMS))
    entry = pipeline.find_model(model, settings)
    facts = pipeline.detect_machine(settings, root)
    # A recorded machine's devices are not this machine's: its engine is not asked.
    engine = pipeline.built_engine(settings) if root is None else None
    prepared = pipeline.prepare(
        settings,
        entry=entry,
        facts=facts,
        engine=engine,
        raw=raw,
        as_asked=as_asked,
        verify=verify,
        live=root is None,
    )
    pipeline.show_notes(prepared.built)
    if engine is None:
        output.note("note: planned without the engine (`llama-ai build` builds it)")
    {"text": print_text, "env": _env, "argv": _argv, "json": _json}[form](prepared)


def _experts_used(model: ModelFacts) -> int:
    return max((layer.n_expert_used for layer in model.hparams.layers), default=0)


def print_text(prepared: Prepared) -> None:
    """The profile as a table for people: what, value, source, why; memory; what was rejected."""
    profile = prepared.profile
    model, target, plan = profile.model, profile.target, profile.plan
    kind = (
        f"MoE, {model.hparams.n_expert} experts, {_experts_used(model)} used"
        if model.is_moe
        else "dense"
    )
    output.line(
        f"{profile.model_name}: {model.architecture}, {kind}, {profile.n_layer} layers, "
        f"{output.bytes_text(model.size_bytes)}, trained for {model.n_ctx_train} tokens"
    )
    device = target.device.name if target.device else "CPU"
    output.line(f"on {device} ({target.why}), tier {target.machine.tier}")
    output.line()
    output.table(
        ("SETTING", "VALUE", "SOURCE", "WHY"),
        [
            (
                reason.setting,
                reason.value,
                profile.sources.get(reason.setting, "solver"),
                reason.why,
            )
            for reason in plan.reasons
        ],
    )
    output.line()
    _text_memory(prepared)
    _text_speed(prepared)
    if profile.suggestion is not None:
        output.line()
        output.line(profile.suggestion)
    if profile.over is not None:
        output.line()
        output.line(
            f"does NOT fit: {output.bytes_text(profile.over.over_by_bytes)} over the "
            f"{profile.over.where} budget"
        )
    if plan.rejected:
        output.line()
        output.line(f"rejected before it ({len(plan.rejected)}):")
        for miss in plan.rejected[:6]:
            output.line(
                f"  {miss.description}: {output.bytes_text(miss.over_by_bytes)} over the "
                f"{miss.where} budget"
            )
        if len(plan.rejected) > 6:
            output.line(f"  and {len(plan.rejected) - 6} more")


def _text_speed(prepared: Prepared) -> None:
    speed = prepared.profile.plan.speed
    bound, digits = ("at most", 0) if speed.experts is None else ("about", 1)
    parts = []
    if speed.decode_tokens_s is not None and speed.decode_full_tokens_s is not None:
        parts.append(
            f"generation {bound} {speed.decode_tokens_s:.{digits}f} tokens/s, "
            f"{speed.decode_full_tokens_s:.{digits}f} with the context full"
        )
    if speed.prefill_tokens_s is not None:
        parts.append(f"prompt about {speed.prefill_tokens_s:.0f} tokens/s")
    if not parts:
        return
    output.line()
    if speed.experts is None:
        output.line("estimate, from nominal figures: " + "; ".join(parts))
        return
    reads = speed.experts
    hits = "as counted here" if reads.hit_ratio_learned else "an assumption: nothing counted yet"
    disk = "measured" if reads.disk.measured else "assumed for its kind; `llama-ai doctor` measures"
    output.line("estimate: " + "; ".join(parts))
    output.line(
        f"  {reads.hit_ratio:.0%} of a token's experts in memory ({hits}), the others "
        f"{output.bytes_text(int(reads.read_bytes_per_token))} a token from a disk of "
        f"{reads.disk.slices_bytes_s / 1e9:.1f} GB/s ({disk})"
    )


def _text_memory(prepared: Prepared) -> None:
    machine, memory = prepared.profile.target.machine, prepared.profile.plan.memory
    sides = [("HOST", memory.host, machine.host_budget_bytes)]
    if machine.gpu_budget_bytes is not None:
        sides.insert(0, ("GPU", memory.gpu, machine.gpu_budget_bytes))
    rows = [
        (label, *(output.bytes_text(getattr(side, key)) for _, side, _ in sides))
        for label, key in PART_LABELS
        if any(getattr(side, key) for _, side, _ in sides)
    ]
    rows.append(("total", *(output.bytes_text(side.total_bytes) for _, side, _ in sides)))
    rows.append(("budget", *(output.bytes_text(budget) for _, _, budget in sides)))
    headers = ("MEMORY", *(name for name, _, _ in sides))
    output.table(headers, rows, right=frozenset(range(1, len(headers))))
    if machine.pool_budget_bytes is not None:
        both = memory.gpu.total_bytes + memory.host.total_bytes
        output.line(
            f"one pool for both: {output.bytes_text(both)} of "
            f"{output.bytes_text(machine.pool_budget_bytes)}"
        )
    for step in prepared.profile.target.steps:
        output.line(f"  {step}")


def _env(prepared: Prepared) -> None:
    """The seed's KEY=VALUE form; values are quoted for a shell."""
    from llama_ai.command import plan_environment

    profile = prepared.profile
    layout, plan = profile.plan.layout, profile.plan
    pairs = {
        "MODEL": str(profile.model_path),
        "CTX_SIZE": layout.ctx_size,
        "KV_CACHE_K": layout.kv_type_k,
        "KV_CACHE_V": layout.kv_type_v,
        "MOE_STRATEGY": plan.strategy if profile.model.is_moe else "",
        "NGL": layout.gpu_layers,
        "N_CPU_MOE": layout.n_cpu_moe,
        "UBATCH_SIZE": layout.ubatch,
        "BATCH_SIZE": layout.batch,
        "THREADS": plan.threads,
        "THREADS_BATCH": plan.threads_batch,
        "PARALLEL": layout.n_parallel,
        "LOAD_MODE": layout.load_mode,
        "CACHE_RAM": plan.cache_ram_mib,
        "LEGACY_PROFILE": profile.legacy_name,
        "SCORE": plan.score,
        **plan_environment(profile),
    }
    if layout.expert_budget_bytes is not None:
        pairs["EXPERT_BUDGET_MIB"] = layout.expert_budget_bytes // MIB
    for key, value in pairs.items():
        output.line(f"{key}={shlex.quote(str(value))}")


def _argv(prepared: Prepared) -> None:
    output.line(shlex.join(prepared.built.command.argv))


def document(prepared: Prepared) -> dict[str, object]:
    """The object of ``profile --format json``, without its schema."""
    from dataclasses import asdict

    from llama_ai.command import plan_environment

    profile = prepared.profile
    machine, plan, layout = profile.target.machine, profile.plan, profile.plan.layout
    facts, model = prepared.facts, profile.model
    gpu = facts.gpu
    return {
        "model": {
            "path": str(profile.model_path),
            "name": profile.model_name,
            "arch": model.architecture,
            "size_bytes": model.size_bytes,
            "moe": model.is_moe,
            "ssm": model.is_recurrent,
            "n_layer": profile.n_layer,
            "n_ctx_train": model.n_ctx_train,
            "n_expert": model.hparams.n_expert,
            "n_expert_used": _experts_used(model),
            "reasons": model.reasons,
        },
        "machine": {
            "tier": machine.tier,
            "backend": machine.backend,
            "device": machine.device,
            "gfx": gpu.gfx if gpu else None,
            "apu": facts.is_amd_apu,
            "ram_bytes": machine.ram_bytes,
            "vram_bytes": gpu.vram_bytes if gpu else None,
            "gtt_bytes": gpu.gtt_bytes if gpu else None,
            "gpu_budget_bytes": machine.gpu_budget_bytes,
            "host_budget_bytes": machine.host_budget_bytes,
            "pool_budget_bytes": machine.pool_budget_bytes,
        },
        "profile": {
            "ctx_size": layout.ctx_size,
            "kv_type_k": layout.kv_type_k,
            "kv_type_v": layout.kv_type_v,
            "moe_strategy": plan.strategy if model.is_moe else None,
            "gpu_layers": layout.gpu_layers,
            "n_cpu_moe": layout.n_cpu_moe,
            "ubatch": layout.ubatch,
            "batch": layout.batch,
            "threads": plan.threads,
            "threads_batch": plan.threads_batch,
            "parallel": layout.n_parallel,
            "load_mode": layout.load_mode,
            "cache_ram_mib": plan.cache_ram_mib,
            "kv_disk": profile.kv_disk is not None and profile.kv_disk.enabled,
            "experts": _experts_json(prepared),
            "draft": _draft_json(prepared),
            "projector": (
                str(profile.companions.projector.path) if profile.companions.projector else None
            ),
            "legacy_name": profile.legacy_name,
            "score": plan.score,
        },
        "fits": profile.over is None,
        "suggestion": profile.suggestion,
        "estimate": {
            "decode_tokens_s": _rounded(plan.speed.decode_tokens_s),
            "decode_full_tokens_s": _rounded(plan.speed.decode_full_tokens_s),
            "prefill_tokens_s": _rounded(plan.speed.prefill_tokens_s),
            "experts": asdict(plan.speed.experts) if plan.speed.experts else None,
        },
        "memory": {
            "gpu": _side(plan.memory.gpu, machine.gpu_budget_bytes),
            "host": _side(plan.memory.host, machine.host_budget_bytes),
        },
        "sources": dict(profile.sources),
        "reasons": [asdict(reason) for reason in plan.reasons],
        "rejected": [asdict(miss) for miss in plan.rejected],
        "argv": list(prepared.built.command.argv),
        "env": plan_environment(profile),
    }


def _json(prepared: Prepared) -> None:
    output.print_json("profile", document(prepared))


def record_of(prepared: Prepared) -> dict[str, object]:
    """What the instance file keeps of the profile: name, summary, and the plan for the monitor.

    Without the command line and the environment, which may hold words of the user's own.
    """
    plan = {key: value for key, value in document(prepared).items() if key not in ("argv", "env")}
    plan["rejected"] = plan["rejected"][:40]  # type: ignore[index] # a list
    profile = prepared.profile
    return {"name": profile.model_name, "summary": profile.summary, "plan": plan}


def _expert_budget_mib(prepared: Prepared) -> int | None:
    budget_bytes = prepared.profile.plan.layout.expert_budget_bytes
    return None if budget_bytes is None else budget_bytes // MIB


def _experts_json(prepared: Prepared) -> dict[str, object] | None:
    experts, budget_mib = prepared.profile.experts, _expert_budget_mib(prepared)
    if experts is None:
        return None
    return {
        "tracking": experts.tracking,
        "stats_path": str(experts.stats_path),
        "budget_mib": budget_mib,
        "prefetch_threads": None if budget_mib is None else experts.prefetch_threads,
        "prewarm": None if budget_mib is None else experts.prewarm,
    }


def _draft_json(prepared: Prepared) -> dict[str, object] | None:
    draft = prepared.profile.draft
    if draft is None:
        return None
    return {
        "kind": draft.kind,
        "path": str(draft.path) if draft.path else None,
        "n_max": draft.n_max,
        "p_min": draft.p_min,
    }


def _rounded(figure: float | None) -> float | None:
    return None if figure is None else round(figure, 1)


def _side(side: Components, budget_bytes: int | None) -> dict[str, int | None]:
    return {
        **{key: getattr(side, key) for _, key in PART_LABELS},
        "total_bytes": side.total_bytes,
        "budget_bytes": budget_bytes,
    }
