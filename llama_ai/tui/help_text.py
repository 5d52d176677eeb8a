"""The help screen's words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import wrap

if TYPE_CHECKING:
    from llama_ai.tui.draw import Line

_KEYS = (
    ("q, Ctrl-C", "quit"),
    ("?", "this help; Escape goes back from any screen"),
    ("e", "the plan explained: what, value, why, rejected"),
    ("l", "the log alone, and back"),
    ("/", "search the log: type, Enter keeps the word, Escape clears it"),
    ("f", "log level: all, info, warnings, errors"),
    ("up down PgUp PgDn Home End", "scroll the log; End follows it again"),
    ("p", "pause the display; sampling goes on"),
    ("s", "sort the slots: number, context, speed, user"),
    ("t", "theme: dark, light, contrast (NO_COLOR: none)"),
    ("c", "copy this moment as text, on the log screen the log"),
)

_WORDS = (
    ("GPU", "VRAM (carve-out) and GTT (the RAM that the GPU may map) in one bar; ┃ is the budget"),
    ("KV", "tokens in the KV cache of all slots; ≈ marks bytes that the plan estimates"),
    ("cache hit", "of this turn's prompt: share, then tokens from the cache + tokens computed"),
    ("speed", "over all slots, over the last 3 seconds"),
    ("slot/RAM/disk/miss", "requests by where the KV cache found their beginning"),
    ("drafts", "accepted draft tokens; of a slot: its last finished request"),
    ("disk ↓ ↑", "what the engine's process reads and writes, mapped files included"),
    ("grey italics", "a value that the server was slow to renew; the third line says how old"),
    ("- or ?", "not known; never zero"),
)


def help_lines(width: int) -> list[Line]:
    """Keys, then what the figures mean."""
    lines: list[Line] = [(("KEYS", "title"),)]
    lines += _table(_KEYS, width, "key")
    lines += [(), (("FIGURES", "title"),)]
    return lines + _table(_WORDS, width, "value")


def _table(rows: tuple[tuple[str, str], ...], width: int, style: str) -> list[Line]:
    column = min(28, max(len(name) for name, _ in rows) + 2) if width >= 70 else 14
    lines: list[Line] = []
    for name, text in rows:
        pieces = wrap(text, width - column, 0)
        beside = len(name) < column
        if not beside:
            lines.append(((name, style),))
        lines.append((((name if beside else "").ljust(column), style), (pieces[0], "text")))
        lines += [((" " * column, "text"), (more, "text")) for more in pieces[1:]]
    return lines
