"""One line a slot: who, what, how full, what the cache gave, how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import count, fit, percent, speed
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.monitor.sample import Slot
    from llama_ai.tui.draw import Line, Span
    from llama_ai.tui.shown import Shown, SlotSort

NARROW = 76
"""Below this width a slot takes two lines."""

_STATES = {"idle": ("·", "label"), "prompt": ("»", "prompt"), "generating": ("▶", "gen")}

# Title, width. The user's column takes what is left, up to twenty more.
_COLUMNS = (("SLOT", 5), ("USER", 7), ("STATE", 13), ("CONTEXT", 15), ("CACHE HIT", 16))
_AFTER = (("TOKENS", 10), ("t/s", 6), ("DRAFT", 6))


class SlotsPanel(Panel):
    """The engine's slots."""

    def lines(self, width: int, height: int) -> list[Line]:
        return slot_lines(self.shown, width, height)


def wanted_height(shown: Shown, width: int) -> int:
    """Lines that it takes to show every slot."""
    slots = shown.look.sample.engine.slots if shown.look is not None else ()
    if not slots:
        return 1
    misses = sum(1 for slot in slots if slot.miss_reason)
    return (2 * len(slots) if width < NARROW else 1 + len(slots)) + misses


def slot_lines(shown: Shown, width: int, height: int) -> list[Line]:
    """As many slots as fit; the last line says how many did not."""
    if shown.look is None:
        return []
    engine = shown.look.sample.engine
    if not engine.slots:
        return [(("slots ", "label"), (shown.missing("slots") or "none to show", "faint"))]
    late = shown.late("slots") is not None
    narrow = width < NARROW
    drawn: list[Line] = [] if narrow else [_titles(width)]
    blocks = [_block(slot, width, narrow, late) for slot in ordered(engine.slots, shown.sort)]
    for index, block in enumerate(blocks):
        rest = len(blocks) - index
        last = index == len(blocks) - 1
        if len(drawn) + len(block) + (0 if last else 1) > height:
            busy = sum(1 for slot in engine.slots if slot.state != "idle")
            drawn = drawn[: max(0, height - 1)]
            drawn.append(((f"… {rest} more slots, {busy} of {len(blocks)} busy", "faint"),))
            break
        drawn += block
    return drawn


def ordered(slots: Sequence[Slot], sort: SlotSort) -> list[Slot]:
    """Busy ones of equal rank stay in the order of their numbers."""
    if sort == "context":
        return sorted(slots, key=lambda slot: (-(slot.ctx_used_tokens or 0), slot.id))
    if sort == "speed":
        return sorted(slots, key=lambda slot: (-_tps(slot), slot.id))
    if sort == "user":
        return sorted(slots, key=lambda slot: (slot.user is None, slot.user or "", slot.id))
    return sorted(slots, key=lambda slot: slot.id)


def _tps(slot: Slot) -> float:
    return slot.gen_tps or slot.prompt_tps or 0.0


def _widths(width: int) -> list[int]:
    taken = sum(size for _, size in (*_COLUMNS, *_AFTER))
    spare = max(0, min(20, width - taken))
    return [size + spare if title == "USER" else size for title, size in _COLUMNS]


def _titles(width: int) -> Line:
    sizes = _widths(width)
    titles = "".join(title.ljust(size) for (title, _), size in zip(_COLUMNS, sizes, strict=True))
    titles += "".join(title.rjust(size) for title, size in _AFTER)
    return ((titles, "title"),)


def _block(slot: Slot, width: int, narrow: bool, late: bool) -> list[Line]:
    lines = _two(slot, late) if narrow else [_one(slot, width, late)]
    if slot.miss_reason:
        tier = f"{slot.cache_tier}: " if slot.cache_tier else ""
        lines.append(fit((("     ↳ ", "faint"), (f"{tier}{slot.miss_reason}", "faint")), width))
    return lines


def _one(slot: Slot, width: int, late: bool) -> Line:
    symbol, style = _STATES[slot.state]
    value = "stale" if late else "value"
    idle = "label" if slot.state == "idle" else value
    cells: list[Line] = [
        ((str(slot.id).rjust(4), "text"),),
        ((slot.user or "-", "text"),),
        ((f"{symbol} {slot.state}", "stale" if late else style),),
        ((_context(slot), value),),
        ((_cache(slot), idle),),
    ]
    spans: list[Span] = []
    for cell, size in zip(cells, _widths(width), strict=True):
        spans += [*fit(cell, size - 1), (" ", "text")]
    spans += [
        (_tokens(slot).rjust(_AFTER[0][1]), idle),
        (_speed(slot).rjust(_AFTER[1][1]), idle),
        (percent(slot.draft_acceptance).rjust(_AFTER[2][1]), idle),
    ]
    return tuple(spans)


def _two(slot: Slot, late: bool) -> list[Line]:
    symbol, style = _STATES[slot.state]
    value = "stale" if late else "value"
    first: list[Span] = [
        (f"{slot.id:>2} ", "text"),
        (f"{symbol} {slot.state:<10} ", "stale" if late else style),
        (f"{_speed(slot):>6}", value),
        (" t/s ", "label"),
        (_tokens(slot), value),
        (" tokens ", "label"),
        (slot.user or "", "text"),
    ]
    second: list[Span] = [
        ("   ctx ", "label"),
        (_context(slot), value),
        ("  cache ", "label"),
        (_cache(slot), value),
    ]
    if slot.draft_acceptance is not None:
        second += [("  draft ", "label"), (percent(slot.draft_acceptance), value)]
    return [tuple(first), tuple(second)]


def _context(slot: Slot) -> str:
    if slot.ctx_used_tokens is None or not slot.ctx_tokens:
        return f"{count(slot.ctx_used_tokens)}/{count(slot.ctx_tokens)}"
    share = percent(slot.ctx_used_tokens / slot.ctx_tokens)
    return f"{count(slot.ctx_used_tokens)}/{count(slot.ctx_tokens)} {share}"


def _cache(slot: Slot) -> str:
    if slot.cached_tokens is None or slot.read_tokens is None:
        return "-"
    share = percent(slot.cache_hit_ratio)
    return f"{share} {count(slot.cached_tokens)}+{count(slot.read_tokens)}"


def _tokens(slot: Slot) -> str:
    if slot.generated_tokens is None:
        return "-"
    if slot.remaining_tokens is None:
        return count(slot.generated_tokens)
    return f"{count(slot.generated_tokens)}/{count(slot.generated_tokens + slot.remaining_tokens)}"


def _speed(slot: Slot) -> str:
    return speed(slot.prompt_tps if slot.state == "prompt" else slot.gen_tps)
