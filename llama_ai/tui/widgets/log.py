"""The engine's log: newest at the bottom, filtered by level and by a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import wrap
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_ai.monitor.logtail import Level, LogLine
    from llama_ai.tui.draw import Line, Span
    from llama_ai.tui.shown import Shown

LEVELS: tuple[tuple[str, frozenset[Level]], ...] = (
    ("all", frozenset({"debug", "info", "warning", "error", "ours"})),
    ("info", frozenset({"info", "warning", "error", "ours"})),
    ("warnings", frozenset({"warning", "error", "ours"})),
    ("errors", frozenset({"error"})),
)

_MARKS: dict[str, tuple[str, str]] = {
    "debug": ("D", "faint"),
    "info": ("I", "label"),
    "warning": ("W", "warn"),
    "error": ("E", "bad"),
    "ours": ("»", "title"),
}


class LogPane(Panel):
    """Follows the end until it is scrolled up; its title tells filter, word and place."""

    def __init__(self, shown: Shown, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(shown, id=id)
        self.level = 0
        self.word = ""
        self.back = 0
        """Lines scrolled up from the end; 0 follows."""
        self._seen = 0

    def lines(self, width: int, height: int) -> list[Line]:
        if height < 1:
            return []
        chosen = list(self._chosen())
        self._hold(chosen)
        self.back = max(0, min(self.back, len(chosen) - 1))
        rows: list[Line] = []
        end = len(chosen) - self.back
        for line in reversed(chosen[:end]):
            if len(rows) >= height - 1:
                break
            rows = [*self._draw(line, width), *rows]
        body = rows[-(height - 1) :] if height > 1 else []
        return [self._title(len(chosen), width), *body]

    def scroll_lines(self, up: int) -> None:
        """Up by so many lines; negative is down, to the end at most."""
        self.back = max(0, self.back + up)
        self.redraw()

    def text(self) -> str:
        """All lines that the filter lets through, for the clipboard."""
        return "\n".join(f"{_MARKS[line.level][0]} {line.text}" for line in self._chosen())

    def _chosen(self) -> Iterator[LogLine]:
        levels, word = LEVELS[self.level][1], self.word.casefold()
        for line in self.shown.log:
            if line.level in levels and (not word or word in line.text.casefold()):
                yield line

    def _hold(self, chosen: list[LogLine]) -> None:
        """Scrolled up, the view stays where it is while lines come in below it."""
        new, self._seen = self.shown.log_count - self._seen, self.shown.log_count
        if self.back and new > 0:
            arrived = set(map(id, list(self.shown.log)[-new:]))
            self.back += sum(1 for line in chosen[-new:] if id(line) in arrived)

    def _title(self, count: int, width: int) -> Line:
        title: list[Span] = [("LOG ", "title")]
        why = self.shown.missing("log")
        if why is not None and not count:
            return (*title, (f"none: {why}", "faint"))
        title.append((f"{LEVELS[self.level][0]} ", "label"))
        if self.word:
            title.append((f"with “{self.word}” ", "warn"))
        title.append((f"{count} lines", "faint"))
        if self.back:
            title.append((f", {self.back} below", "warn"))
        if why is not None:
            title.append((f"  {why}", "warn"))
        del width
        return tuple(title)

    def _draw(self, line: LogLine, width: int) -> list[Line]:
        mark, style = _MARKS[line.level]
        body = "text" if style == "label" else style
        pieces = wrap(line.text, width - 2)
        return [
            (
                (f"{mark if not number else ' '} ", style),
                *_highlighted(piece, self.word, body),
            )
            for number, piece in enumerate(pieces)
        ]


def _highlighted(text: str, word: str, style: str) -> Line:
    if not word:
        return ((text, style),)
    spans: list[Span] = []
    rest, folded, needle = text, text.casefold(), word.casefold()
    # Folding can change the length of rare letters; then nothing is marked.
    while len(folded) == len(rest) and (at := folded.find(needle)) >= 0:
        spans += [(rest[:at], style), (rest[at : at + len(word)], "match")]
        rest, folded = rest[at + len(word) :], folded[at + len(needle) :]
    return (*spans, (rest, style))
