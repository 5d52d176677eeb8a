"""Text drawing: lines of styled spans, bars, sparklines, and numbers for people. Pure.

A line is a tuple of ``(text, style name)``; the names are those of :mod:`llama_ai.tui.palette`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from collections.abc import Sequence

Span: TypeAlias = tuple[str, str]
Line: TypeAlias = tuple[Span, ...]

EIGHTHS = " ▁▂▃▄▅▆▇█"


def width_of(line: Line) -> int:
    """Columns that the line takes."""
    return sum(cell_len(text) for text, _ in line)


def fit(line: Line, width: int) -> Line:
    """Exactly ``width`` columns: padded with blanks, or cut with an ellipsis."""
    used = width_of(line)
    if used <= width:
        return line if used == width else (*line, (" " * (width - used), "text"))
    kept: list[Span] = []
    left = max(0, width - 1)
    for text, style in line:
        size = cell_len(text)
        if size > left:
            kept.append((set_cell_size(text, left), style))
            break
        kept.append((text, style))
        left -= size
    return (*kept, ("…" if width else "", "faint"))


def spread(left: Line, right: Line, width: int) -> Line:
    """``left`` and ``right`` at the two ends; the left one gives way."""
    room = width - width_of(right)
    if room < 8:
        return fit(left, width)
    return (*fit(left, room - 1), (" ", "text"), *right)


def bar(parts: Sequence[tuple[float, str, str]], width: int, *, mark: float | None = None) -> Line:
    """A bar of ``width`` columns. A part is (share 0..1, character, style); ``mark`` is a share.

    A part above zero takes at least one column, so that little is told from nothing. The mark is a
    line of its own shape, so that it does not depend on colour.
    """
    if width <= 0:
        return ()
    cells: list[Span] = []
    end = 0.0
    for share, character, style in parts:
        end = min(1.0, end + max(0.0, share))
        count = round(end * width) - len(cells)
        if share > 0 and count <= 0 and len(cells) < width:
            count = 1
        cells += [(character, style)] * min(count, width - len(cells))
    cells += [("░", "faint")] * (width - len(cells))
    if mark is not None:
        cells[max(0, min(width - 1, int(mark * width)))] = ("┃", "mark")
    return _joined(cells)


def sparkline(values: Sequence[float | None], width: int, height: int = 1) -> list[str]:
    """The last ``width`` values as columns of blocks, top row first; the largest fills the height.

    Unknown is blank, zero a dot: they differ.
    """
    last = list(values)[-width:] if width else []
    shown: list[float | None] = [*[None] * (width - len(last)), *last]
    top = max((value for value in shown if value is not None), default=0.0)
    rows = [""] * height
    for value in shown:
        if value is None or value <= 0 or top <= 0:
            column = [" "] * (height - 1) + [" " if value is None else "·"]
        else:
            eighths = max(1, round(value / top * height * 8))
            column = [
                EIGHTHS[max(0, min(8, eighths - 8 * level))] for level in range(height - 1, -1, -1)
            ]
        rows = [row + cell for row, cell in zip(rows, column, strict=True)]
    return rows


def size(count: float | None, digits: int = 1) -> str:
    """Bytes: ``512M``, ``12.3G``; ``?`` for unknown. Units are binary."""
    if count is None:
        return "?"
    for unit, name in ((1 << 40, "T"), (1 << 30, "G")):
        if count >= unit:
            return f"{count / unit:.{digits}f}{name}"
    if count >= 1 << 20:
        return f"{count / (1 << 20):.0f}M"
    return f"{count / 1024:.0f}K" if count >= 1024 else f"{count:.0f}B"


def count(number: float | None) -> str:
    """A number of tokens: ``999``, ``12.3k``, ``4.1M``; ``?`` for unknown."""
    if number is None:
        return "?"
    if number < 10_000:
        return f"{number:.0f}"
    return f"{number / 1000:.1f}k" if number < 1_000_000 else f"{number / 1_000_000:.1f}M"


def speed(tps: float | None) -> str:
    """Tokens per second with about three digits; ``-`` for unknown."""
    if tps is None:
        return "-"
    return f"{tps:.0f}" if tps >= 100 else f"{tps:.1f}"


def percent(share: float | None) -> str:
    """``0.834`` as ``83%``; ``-`` for unknown."""
    return "-" if share is None else f"{share * 100:.0f}%"


def duration(seconds: float) -> str:
    """``59s``, ``4:05``, ``1:02:03``, ``3d 04h``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def wrap(text: str, width: int, indent: int = 2) -> list[str]:
    """Break ``text`` into pieces of at most ``width`` columns; later ones are indented."""
    if cell_len(text) <= width or width <= indent + 4:
        return [text]
    pieces, lead = [], ""
    while text:
        room = width - len(lead)
        piece = text if len(text) <= room else text[:room]
        while cell_len(piece) > room:
            piece = piece[:-1]
        if len(piece) < len(text):
            blank = piece.rfind(" ")
            if blank > room // 2:
                piece = piece[:blank]
        pieces.append(lead + piece)
        text = text[len(piece) :].lstrip(" ")
        lead = " " * indent
    return pieces


def _joined(cells: Sequence[Span]) -> Line:
    joined: list[Span] = []
    for text, style in cells:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + text, style)
        else:
            joined.append((text, style))
    return tuple(joined)
