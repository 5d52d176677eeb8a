"""What commands print: tables and JSON on stdout, progress, notes and errors on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Self, TextIO

from llama_ai.errors import LlamaAiError
from solver.types import GIB, KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def print_json(command: str, body: Mapping[str, object]) -> None:
    """One object: ``{"schema": "llama-ai.<command>/1", …}``."""
    document = {"schema": f"llama-ai.{command}/1", **body}
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def line(text: str = "") -> None:
    """A line of a command's answer."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """A line about the work itself."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def error(problem: LlamaAiError) -> None:
    """One or two lines: what is wrong, what to do; below them what the program had to say."""
    red, plain = ("\x1b[31m", "\x1b[0m") if colour(sys.stderr) else ("", "")
    sys.stderr.write(f"{red}error:{plain} {problem.message}\n")
    if problem.hint:
        sys.stderr.write(f"  {problem.hint}\n")
    for detail in problem.details:
        sys.stderr.write(f"  | {detail}\n")


def colour(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that wants colour (``NO_COLOR``, ``TERM=dumb`` say no)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: frozenset[int] = frozenset()
) -> None:
    """Columns that fit their widest cell; ``right`` names the columns of numbers."""
    cells = [list(headers), *[list(row) for row in rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    for row in cells:
        padded = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        line("  ".join(padded).rstrip())


def bytes_text(count: int | None) -> str:
    """``1.5 GiB``; a dash for unknown."""
    if count is None:
        return "-"
    sign, size = ("-", -count) if count < 0 else ("", count)
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{sign}{size / unit:.1f} {name}"
    return f"{sign}{size} B"


class Progress:
    """A progress line on stderr: redrawn in place on a terminal, a line every so often elsewhere.

    Use it as a context manager; ``update(done, total, text)`` may be called as often as wanted.
    """

    def __init__(
        self, label: str, *, interval_s: float = 0.1, plain_interval_s: float = 10
    ) -> None:
        self.label = label
        self._live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._interval_s = interval_s if self._live else plain_interval_s
        self._last_s = float("-inf")
        self._started_s = time.monotonic()
        self._drawn = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def update(self, done: int, total: int | None, text: str = "") -> None:
        """Show ``done`` of ``total`` (unknown: ``None``), with a short text beside it."""
        now_s = time.monotonic()
        finished = total is not None and done >= total
        if now_s - self._last_s < self._interval_s and not finished:
            return
        self._last_s = now_s
        if self._live:
            self._draw(done, total, text, now_s)
        else:
            share = f" {done * 100 // total}%" if total else ""
            note(f"{self.label}{share} {text}".rstrip())

    def _draw(self, done: int, total: int | None, text: str, now_s: float) -> None:
        try:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns
        except OSError:
            columns = 80
        elapsed_s = int(now_s - self._started_s)
        clock = f"{elapsed_s // 60}:{elapsed_s % 60:02d}"
        if total:
            width = 24
            filled = min(width, done * width // total)
            bar = "█" * filled + "░" * (width - filled)
            shown = f"{self.label} {bar} {min(100, done * 100 // total):3d}% {clock} {text}"
        else:
            shown = f"{self.label} {clock} {text}"
        sys.stderr.write("\r\x1b[K" + shown[: columns - 1])
        sys.stderr.flush()
        self._drawn = True
