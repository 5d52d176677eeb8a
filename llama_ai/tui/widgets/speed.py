"""Prompt and generation speed over time, and the engine's totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import count, percent, sparkline, speed
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.tui.draw import Line, Span
    from llama_ai.tui.shown import Shown

FIGURES = 21


class SpeedPanel(Panel):
    """Two charts of equal height, then a line of totals where there is room."""

    def lines(self, width: int, height: int) -> list[Line]:
        shown = self.shown
        if shown.look is None:
            return []
        engine = shown.look.sample.engine
        late = (shown.late("slots") or shown.late("metrics")) is not None
        rows = max(1, (height - 1) // 2)
        drawn = [
            *_chart("prompt", engine.prompt_tps, shown.prompt_tps, "prompt", width, rows, late),
            *_chart("gen", engine.gen_tps, shown.gen_tps, "gen", width, rows, late),
        ]
        if height > 2 * rows:
            drawn.append(totals(shown))
        return drawn


def _chart(
    label: str,
    now: float | None,
    history: Sequence[float | None],
    style: str,
    width: int,
    rows: int,
    late: bool,
) -> list[Line]:
    chart = sparkline(history, max(0, width - FIGURES), rows)
    peak = max((value for value in history if value is not None), default=None)
    value = "stale" if late else "value"
    figures: list[Line] = [
        ((label.ljust(6), "label"), (speed(now).rjust(8), value), (" t/s   ", "label"))
    ]
    if rows > 1:
        figures.append((("  peak", "faint"), (speed(peak).rjust(8), "faint"), (" t/s   ", "faint")))
    figures += [((" " * FIGURES, "text"),)] * (rows - len(figures))
    return [(*text, (row, style)) for text, row in zip(figures, chart, strict=True)]


def totals(shown: Shown) -> Line:
    """Requests, cache hits, drafts, experts, tokens; what is not known is left out."""
    if shown.look is None:
        return ()
    engine = shown.look.sample.engine
    style = "stale" if shown.late("metrics") is not None else "value"
    figures: list[tuple[str, str]] = []
    if engine.requests_processing is not None:
        figures.append(("running", str(engine.requests_processing)))
        figures.append(("waiting", str(engine.requests_deferred or 0)))
    if engine.cache_hit_ratio is not None:
        figures.append(("cache hits", percent(engine.cache_hit_ratio)))
    if engine.draft_acceptance is not None:
        figures.append(("drafts kept", percent(engine.draft_acceptance)))
    if engine.expert_hit_ratio is not None:
        figures.append(("expert hits", percent(engine.expert_hit_ratio)))
    if engine.expert_read_bytes_per_token is not None:
        figures.append(("MB/token", f"{engine.expert_read_bytes_per_token / 1e6:.1f}"))
    if engine.expert_stall_share is not None:
        figures.append(("disk wait", percent(engine.expert_stall_share)))
    if engine.kv_hits_cold is not None:
        tiers = (engine.kv_hits_hot, engine.kv_hits_warm, engine.kv_hits_cold, engine.kv_misses)
        figures.append(("slot/RAM/disk/miss", "/".join(str(hits or 0) for hits in tiers)))
    if engine.prompt_tokens_total is not None:
        figures.append(("read", count(engine.prompt_tokens_total)))
        figures.append(("generated", count(engine.generated_tokens_total)))
    spans: list[Span] = []
    for name, value in figures:
        spans += [(f"{name} ", "label"), (value, style), ("  ", "text")]
    return tuple(spans)
