"""A screen with a text to read: help, and the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.screen import Screen

from llama_ai.tui.widgets.keybar import KeyBar
from llama_ai.tui.widgets.pager import Pager
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from llama_ai.tui.draw import Line
    from llama_ai.tui.palette import Palette
    from llama_ai.tui.shown import Shown

_KEYS = (("Esc", "back"), ("↑↓ PgUp PgDn", "scroll"), ("q", "quit"))


class ReadingScreen(Screen[None]):
    """Escape, or the key that opened it, goes back."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("escape,question_mark,e,enter", "dismiss", "back", show=False),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown,space", "page(1)", show=False),
        Binding("home,g", "move(-100000)", show=False),
        Binding("end,G", "move(100000)", show=False),
    ]

    def __init__(
        self, shown: Shown, content: Callable[[int], list[Line]], palette: Palette
    ) -> None:
        super().__init__()
        self._shown = shown
        self._content = content
        self._palette = palette

    def compose(self) -> ComposeResult:
        """The text, and the keys."""
        yield Pager(self._shown, self._content, id="text")
        yield KeyBar(self._shown, _KEYS, id="keys")

    def on_mount(self) -> None:
        """Take on the theme."""
        self.repaint(self._palette)

    def repaint(self, palette: Palette) -> None:
        """Use another theme."""
        for panel in self.query(Panel):
            panel.repaint(palette)

    def tick(self) -> None:
        """A new sample: the text may have changed."""
        self.query_one(Pager).redraw()

    def action_move(self, lines: int) -> None:
        """Scroll by lines."""
        self.query_one(Pager).scroll_lines(lines)

    def action_page(self, pages: int) -> None:
        """Scroll by pages."""
        pager = self.query_one(Pager)
        pager.scroll_lines(pages * max(1, pager.content_size.height - 2))

    async def action_dismiss(self, result: None = None) -> None:
        """Go back."""
        self.dismiss(result)
