"""The line in which a word to search for is typed."""

from __future__ import annotations

from dataclasses import dataclass

from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input


class SearchLine(Input):
    """Posts the word as it is typed, and :class:`Closed` at its end."""

    BINDINGS = [Binding("escape", "give_up", "clear", show=False)]  # noqa: RUF012 - as Textual wants it

    @dataclass
    class Closed(Message):
        """``word`` is what to search for; empty clears the search."""

        word: str

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - Textual's name
        # A cursor that blinks would wake the machine twice a second.
        super().__init__(placeholder="search the log, Enter keeps, Esc clears", id=id, compact=True)
        self.cursor_blink = False

    def action_give_up(self) -> None:
        """Clear the search."""
        self.value = ""
        self.post_message(self.Closed(""))

    async def action_submit(self) -> None:
        """Keep the search."""
        self.post_message(self.Closed(self.value))
