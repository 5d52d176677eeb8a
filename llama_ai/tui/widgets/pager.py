"""Text that is longer than the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_ai.tui.draw import Line
    from llama_ai.tui.shown import Shown


class Pager(Panel):
    """Shows what ``content(width)`` gives, from a line on; the last line tells the place."""

    def __init__(
        self,
        shown: Shown,
        content: Callable[[int], list[Line]],
        *,
        id: str | None = None,  # noqa: A002 - Textual's name
    ) -> None:
        super().__init__(shown, id=id)
        self._content = content
        self.top = 0

    def lines(self, width: int, height: int) -> list[Line]:
        lines = self._content(width)
        if len(lines) <= height:
            self.top = 0
            return lines
        room = height - 1
        self.top = max(0, min(self.top, len(lines) - room))
        shown = lines[self.top : self.top + room]
        end = self.top + len(shown)
        more = "" if end == len(lines) else "  ↓ more"
        return [*shown, ((f"lines {self.top + 1}-{end} of {len(lines)}{more}", "faint"),)]

    def scroll_lines(self, down: int) -> None:
        """Down by so many lines; negative is up."""
        self.top = max(0, self.top + down)
        self.redraw()
