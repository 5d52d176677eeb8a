"""A sample as plain text, for ``monitor --once`` and the clipboard. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Engine, Gpu, Sample, Slot

GIB = 1 << 30


def plain_text(sample: Sample) -> str:
    """One fact a line; what is not known is said, with the reason where there is one."""
    at = datetime.fromtimestamp(sample.at_s, UTC).isoformat(timespec="seconds")
    lines = [f"{at}  {_engine_line(sample.engine)}"]
    instance = sample.instance
    if instance is not None:
        lines.append(
            f"instance  {instance.name}, started {instance.started_at or '?'}, "
            f"{instance.restarts} restarts" + (f", {instance.summary}" if instance.summary else "")
        )
        if instance.last_failure:
            lines.append(f"failure   {instance.last_failure}")
    lines += _gpu_lines(sample.gpu)
    memory, cpu = sample.memory, sample.cpu
    lines.append(f"ram       {_pair(memory.ram_used_bytes, memory.ram_total_bytes)}")
    if memory.swap_used_bytes:
        lines.append(f"swap      {_pair(memory.swap_used_bytes, memory.swap_total_bytes)}")
    heat = "" if cpu.temp_c is None else f", {cpu.temp_c:.0f} C"
    lines.append(f"cpu       {_number(cpu.percent, '%')}{heat}")
    lines += _server_lines(sample.engine)
    lines += [_slot_line(slot) for slot in sample.engine.slots]
    lines += [f"late      {late.what}: {late.age_s:.0f} s old, {late.why}" for late in sample.late]
    lines += [f"missing   {missing.what}: {missing.why}" for missing in sample.missing]
    return "\n".join(lines)


def _engine_line(engine: Engine) -> str:
    words = [engine.state, engine.model or "no model", engine.url or "no server"]
    return "  ".join(words) + (f"  ({engine.detail})" if engine.detail else "")


def _gpu_lines(gpu: Gpu | None) -> list[str]:
    if gpu is None:
        return []
    facts = [
        f"{_number(gpu.busy_percent, '%')} busy",
        f"VRAM {_pair(gpu.vram_used_bytes, gpu.vram_total_bytes)}",
        f"GTT {_pair(gpu.gtt_used_bytes, gpu.gtt_total_bytes)}",
        *(
            f"{value:g} {unit}"
            for value, unit in ((gpu.freq_mhz, "MHz"), (gpu.temp_c, "C"), (gpu.power_w, "W"))
            if value is not None
        ),
    ]
    return [f"gpu       {gpu.name or gpu.card}: " + ", ".join(facts)]


def _server_lines(engine: Engine) -> list[str]:
    lines = [
        f"speed     prompt {_number(engine.prompt_tps, ' t/s')}, generation "
        + _number(engine.gen_tps, " t/s")
    ]
    if engine.requests_processing is not None:
        lines.append(
            f"requests  {engine.requests_processing} running, "
            f"{engine.requests_deferred or 0} waiting"
        )
    if engine.kv_used_tokens is not None and engine.kv_total_tokens:
        lines.append(f"kv        {engine.kv_used_tokens} of {engine.kv_total_tokens} tokens")
    if engine.kv_disk_bytes is not None:
        lines.append(f"kv disk   {_pair(engine.kv_disk_bytes, engine.kv_disk_limit_bytes)}")
    for name, share in (
        ("cache", engine.cache_hit_ratio),
        ("drafts", engine.draft_acceptance),
        ("experts", engine.expert_hit_ratio),
    ):
        if share is not None:
            lines.append(f"{name:<9} {share:.1%} {'accepted' if name == 'drafts' else 'hit'}")
    if engine.expert_resident_bytes is not None:
        # A budget of 0 leaves the limit to the kernel.
        limit = engine.expert_budget_bytes or None
        words = [f"{_pair(engine.expert_resident_bytes, limit)} in memory"]
        if engine.expert_read_bytes_per_token is not None:
            words.append(f"{engine.expert_read_bytes_per_token / 1e6:.1f} MB read a token")
        if engine.expert_stall_share is not None:
            words.append(f"waiting {engine.expert_stall_share:.0%} of the time")
        lines.append("experts   " + ", ".join(words))
    return lines


def _slot_line(slot: Slot) -> str:
    words: list[str] = [slot.state]
    if slot.user:
        words.append(f"user {slot.user}")
    if slot.ctx_used_tokens is not None:
        words.append(f"context {slot.ctx_used_tokens} of {slot.ctx_tokens or '?'}")
    if slot.cached_tokens is not None and slot.read_tokens is not None:
        words.append(f"prompt {slot.cached_tokens} cached + {slot.read_tokens} read")
    if slot.miss_reason:
        words.append(f"miss: {slot.miss_reason}")
    if slot.generated_tokens is not None:
        words.append(f"{slot.generated_tokens} generated")
    tps = slot.prompt_tps if slot.state == "prompt" else slot.gen_tps
    if tps is not None:
        words.append(f"{tps:.1f} t/s")
    if slot.draft_acceptance is not None:
        words.append(f"drafts {slot.draft_acceptance:.0%}")
    return f"slot {slot.id:<4} " + ", ".join(words)


def _pair(used: int | None, total: int | None) -> str:
    shown = "?" if used is None else f"{used / GIB:.2f}"
    return f"{shown} / {'?' if total is None else f'{total / GIB:.2f}'} GiB"


def _number(value: float | None, unit: str) -> str:
    return "not known" if value is None else f"{value:g}{unit}"
