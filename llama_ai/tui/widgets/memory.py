"""Memory: the GPU's two parts in one bar, RAM, swap, KV cache, prompt cache, disk tier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import bar, count, percent, size, width_of
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Engine, Gpu, Memory
    from llama_ai.tui.draw import Line
    from llama_ai.tui.shown import Shown

LABEL = 6
DETAILED = 64
"""From this width on, the figures name their parts."""


class MemoryPanel(Panel):
    """A bar each, with the plan's budget as a mark. What is not known has no bar."""

    def lines(self, width: int, height: int) -> list[Line]:
        return memory_lines(self.shown, width)[:height]


def memory_lines(shown: Shown, width: int) -> list[Line]:
    """The rows that there is something to say about."""
    if shown.look is None:
        return []
    sample = shown.look.sample
    detailed = width >= DETAILED
    late = shown.late("slots") is not None
    rows = [
        _gpu(sample.gpu, shown.missing("gpu") or shown.missing("gpu memory"), width, detailed),
        _ram(sample.memory, width, detailed),
    ]
    if sample.memory.swap_used_bytes:
        rows.append(_swap(sample.memory, width))
    rows.append(_kv(sample.engine, width, late=late))
    if sample.engine.kv_ram_limit_bytes or sample.engine.kv_ram_bytes is not None:
        rows.append(_cache(sample.engine, width))
    if sample.engine.kv_disk_bytes is not None:
        rows.append(_disk(sample.engine, width))
    elif (why := shown.missing("kv disk tier")) is not None:
        rows.append(_without("disk", why))
    return rows


def _row(
    label: str,
    parts: list[tuple[float, str, str]],
    figures: Line,
    width: int,
    mark: float | None = None,
) -> Line:
    room = width - LABEL - 1 - width_of(figures)
    drawn = bar(parts, room, mark=mark) if room >= 6 else ()
    return ((label.ljust(LABEL), "label"), *drawn, (" ", "text"), *figures)


def _without(label: str, why: str) -> Line:
    return ((label.ljust(LABEL), "label"), (why, "faint"))


def _figures(used: str, total: str, more: str = "", style: str = "value") -> Line:
    return ((used.rjust(6), style), (f" / {total:<6}", "text"), (more, "faint"))


def _gpu(gpu: Gpu | None, why: str | None, width: int, detailed: bool) -> Line:
    if gpu is None or (gpu.vram_total_bytes is None and gpu.gtt_total_bytes is None):
        return _without("GPU", why or "not known")
    vram, gtt = gpu.vram_total_bytes or 0, gpu.gtt_total_bytes or 0
    total = max(1, vram + gtt)
    vram_used, gtt_used = gpu.vram_used_bytes, gpu.gtt_used_bytes
    # One of them unknown: the sum would be a guess.
    known = vram_used is not None and (gtt_used is not None or not gtt)
    used = (vram_used or 0) + (gtt_used or 0) if known else None
    more = ""
    if detailed:
        more = f"VRAM █ {size(vram_used)}/{size(vram)} GTT ▓ {size(gtt_used)}/{size(gtt)}"
    return _row(
        "GPU",
        [((vram_used or 0) / total, "█", "vram"), ((gtt_used or 0) / total, "▓", "gtt")],
        _figures(size(used), size(total), more),
        width,
        None if gpu.budget_bytes is None else gpu.budget_bytes / total,
    )


def _ram(memory: Memory, width: int, detailed: bool) -> Line:
    total, used = memory.ram_total_bytes, memory.ram_used_bytes
    if not total or used is None:
        return _without("RAM", "not known")
    more = f"{size(memory.ram_available_bytes)} available" if detailed else ""
    return _row(
        "RAM",
        [(used / total, "█", "ram")],
        _figures(size(used), size(total), more),
        width,
        None if memory.budget_bytes is None else memory.budget_bytes / total,
    )


def _swap(memory: Memory, width: int) -> Line:
    used, total = memory.swap_used_bytes or 0, max(1, memory.swap_total_bytes or 1)
    return _row("swap", [(used / total, "█", "warn")], _figures(size(used), size(total)), width)


def _kv(engine: Engine, width: int, *, late: bool) -> Line:
    used, total = engine.kv_used_tokens, engine.kv_total_tokens
    if used is None or not total:
        return _without("KV", "tokens in use are not known")
    style = "stale" if late else "value"
    size_text = "" if engine.kv_used_bytes is None else f" ≈{size(engine.kv_used_bytes)}"
    more = f"tokens {percent(used / total)}{size_text}"
    return _row(
        "KV",
        [(used / total, "█", "stale" if late else "kv")],
        _figures(count(used), count(total), more, style),
        width,
    )


def _cache(engine: Engine, width: int) -> Line:
    used, limit = engine.kv_ram_bytes, engine.kv_ram_limit_bytes
    if used is None:
        return _without("cache", f"up to {size(limit)} of RAM; use not told by this engine")
    share = used / limit if limit else 0.0
    return _row("cache", [(share, "█", "kv")], _figures(size(used), size(limit), "RAM"), width)


def _disk(engine: Engine, width: int) -> Line:
    used, limit = engine.kv_disk_bytes, engine.kv_disk_limit_bytes
    share = (used or 0) / limit if limit else 0.0
    return _row("disk", [(share, "█", "disk")], _figures(size(used), size(limit), "SSD"), width)
