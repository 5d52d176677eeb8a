"""The last line: the keys, or a word about what was just done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.draw import width_of
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.tui.draw import Line, Span
    from llama_ai.tui.shown import Shown

MAIN_KEYS = (
    ("?", "help"),
    ("q", "quit"),
    ("e", "plan"),
    ("l", "log"),
    ("p", "pause"),
    ("/", "search"),
    ("f", "level"),
    ("s", "sort"),
    ("t", "theme"),
    ("c", "copy"),
)


class KeyBar(Panel):
    """Shows the most important keys first, and only whole ones."""

    def __init__(
        self,
        shown: Shown,
        keys: Sequence[tuple[str, str]] = MAIN_KEYS,
        *,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(shown, id=id)
        self.keys = keys
        self._said: str | None = None
        self._left = 0

    def say(self, text: str) -> None:
        """Show ``text`` for the next few ticks."""
        self._said, self._left = text, 3
        self.redraw()

    def tick(self) -> None:
        """A tick went by."""
        if self._said is not None:
            self._left -= 1
            if self._left <= 0:
                self._said = None
        self.redraw()

    def lines(self, width: int, height: int) -> list[Line]:
        del height
        if self._said is not None:
            return [((self._said, "warn"),)]
        spans: list[Span] = []
        for key, name in self.keys:
            more: list[Span] = [(key, "key"), (f" {name}  ", "label")]
            if width_of((*spans, *more)) > width + 2:
                break
            spans += more
        return [tuple(spans)]
