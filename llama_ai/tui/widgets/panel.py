"""The base of the drawn widgets: lines in, and only the lines that changed go to the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from llama_ai.tui.draw import fit
from llama_ai.tui.palette import DARK

if TYPE_CHECKING:
    from textual import events

    from llama_ai.tui.draw import Line
    from llama_ai.tui.palette import Palette
    from llama_ai.tui.shown import Shown


class Panel(Widget):
    """Draws what :meth:`lines` gives. Textual's own layout of rich text costs many times more."""

    def __init__(self, shown: Shown, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        super().__init__(id=id)
        self.shown = shown
        self.palette: Palette = DARK
        self._drawn: list[Line] = []

    def lines(self, width: int, height: int) -> list[Line]:
        """What to show now; at most ``height`` lines, each cut to ``width``."""
        raise NotImplementedError

    def redraw(self) -> None:
        """Draw anew what changed."""
        width, height = self.content_size.width, self.content_size.height
        if not width or not height:
            return
        lines = [fit(line, width) for line in self.lines(width, height)[:height]]
        lines += [fit((), width)] * (height - len(lines))
        before, self._drawn = self._drawn, lines
        if len(before) != len(lines):
            self.refresh()
            return
        changed = [
            Region(0, y, width, 1)
            for y, (old, new) in enumerate(zip(before, lines, strict=True))
            if old != new
        ]
        if changed:
            self.refresh(*changed)

    def repaint(self, palette: Palette) -> None:
        """Use another theme."""
        self.palette = palette
        self._drawn = []
        self.redraw()
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        del event
        self._drawn = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        """A line as Textual wants it."""
        width = self.content_size.width
        if y >= len(self._drawn):
            return Strip([Segment(" " * width, self.palette.styles["text"])], width)
        styles = self.palette.styles
        line = self._drawn[y]
        return Strip([Segment(text, styles[style]) for text, style in line if text], width)
