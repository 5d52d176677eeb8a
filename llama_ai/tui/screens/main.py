"""The main screen: everything at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen

from llama_ai.tui.arrange import Needs, arrange, column_width, slots_width
from llama_ai.tui.shown import SORTS
from llama_ai.tui.widgets.hardware import HardwarePanel, hardware_lines
from llama_ai.tui.widgets.header import Header, problems
from llama_ai.tui.widgets.keybar import KeyBar
from llama_ai.tui.widgets.log import LEVELS, LogPane
from llama_ai.tui.widgets.memory import MemoryPanel, memory_lines
from llama_ai.tui.widgets.panel import Panel
from llama_ai.tui.widgets.search import SearchLine
from llama_ai.tui.widgets.slots import SlotsPanel, wanted_height
from llama_ai.tui.widgets.speed import SpeedPanel

if TYPE_CHECKING:
    from textual import events
    from textual.app import ComposeResult
    from textual.widgets import Input

    from llama_ai.tui.arrange import Arrangement
    from llama_ai.tui.palette import Palette
    from llama_ai.tui.shown import Shown


class MainScreen(Screen[None]):
    """Header, memory, hardware, speed, slots, log, keys."""

    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("l", "toggle_log", "log"),
        Binding("f", "level", "log level"),
        Binding("s", "sort", "sort"),
        Binding("escape", "clear", show=False),
        Binding("up,k", "move(1)", show=False),
        Binding("down,j", "move(-1)", show=False),
        Binding("pageup", "page(1)", show=False),
        Binding("pagedown", "page(-1)", show=False),
        Binding("home,g", "move(100000)", show=False),
        Binding("end,G", "move(-100000)", show=False),
    ]

    def __init__(self, shown: Shown, palette: Palette) -> None:
        super().__init__()
        self.shown = shown
        self._palette = palette
        self._arranged: tuple[Arrangement, bool] | None = None
        self.log_alone = False

    def compose(self) -> ComposeResult:
        """All parts; :meth:`divide` gives them their places."""
        yield Header(self.shown, id="header")
        with Horizontal(id="top"):
            with Vertical(id="left"):
                yield MemoryPanel(self.shown, id="memory")
                yield HardwarePanel(self.shown, id="hardware")
            yield SpeedPanel(self.shown, id="speed")
        yield SlotsPanel(self.shown, id="slots")
        yield LogPane(self.shown, id="log")
        yield SearchLine(id="search")
        yield KeyBar(self.shown, id="keys")

    def on_mount(self) -> None:
        """Titles of the frames, and the theme."""
        for name in ("memory", "hardware", "speed", "slots"):
            self.query_one(f"#{name}").border_title = name
        self.query_one("#search").display = False
        self.set_focus(None)
        self.divide()
        self.repaint(self._palette)

    def on_resize(self, event: events.Resize) -> None:
        """Divide anew."""
        del event
        self.divide()

    def repaint(self, palette: Palette) -> None:
        """Use another theme."""
        for panel in self.query(Panel):
            panel.repaint(palette)

    def tick(self) -> None:
        """Draw what changed."""
        if not self.is_mounted or self._arranged is None:
            return  # not composed yet
        self.divide()
        for panel in self.query(Panel):
            if isinstance(panel, KeyBar):
                panel.tick()
            else:
                panel.redraw()

    def divide(self) -> None:
        """Give each part its height; nothing happens while the needs stay the same."""
        width, height = self.size.width, self.size.height
        column = column_width(width, height)
        needs = Needs(
            header=3 if problems(self.shown) else 2,
            memory=max(1, len(memory_lines(self.shown, column))),
            hardware=max(1, len(hardware_lines(self.shown, column))),
            slots=wanted_height(self.shown, slots_width(width, height)),
        )
        arrangement = arrange(width, height, needs)
        if self._arranged == (arrangement, self.log_alone):
            return
        self._arranged = arrangement, self.log_alone
        self.set_class(arrangement.wide, "wide")
        self.set_class(arrangement.gap, "gap")
        self.set_class(self.log_alone, "log-alone")
        for name in ("header", "memory", "hardware", "speed", "slots"):
            self.query_one(f"#{name}").styles.height = getattr(arrangement, name)

    @property
    def _log_pane(self) -> LogPane:
        return self.query_one(LogPane)

    def log_text(self) -> str:
        """The log as the filter shows it."""
        return self._log_pane.text()

    def say(self, text: str) -> None:
        """A word about what was just done."""
        self.query_one(KeyBar).say(text)

    def action_toggle_log(self) -> None:
        """The log alone, and back."""
        self.log_alone = not self.log_alone
        self.divide()

    def action_level(self) -> None:
        """The next level of the log."""
        self._log_pane.level = (self._log_pane.level + 1) % len(LEVELS)
        self._log_pane.back = 0
        self._log_pane.redraw()

    def action_sort(self) -> None:
        """The next order of the slots."""
        self.shown.sort = SORTS[(SORTS.index(self.shown.sort) + 1) % len(SORTS)]
        self.query_one(SlotsPanel).redraw()
        self.say(f"slots sorted by {self.shown.sort}")

    def _open_search(self, line: SearchLine) -> None:
        line.display = True
        line.focus()

    def action_clear(self) -> None:
        """Clear the search, go back to the end, leave the log alone."""
        if not self._log_pane.word and not self._log_pane.back and self.log_alone:
            self.action_toggle_log()
        self._search("")

    def on_key(self, event: events.Key) -> None:
        """Open the search line, and give it what is typed before it has the focus.

        A binding would open it only after the keys behind it went elsewhere.
        """
        line = self.query_one(SearchLine)
        if not line.display:
            if event.key != "slash":
                return
            self._open_search(line)
        elif line.has_focus or not event.is_printable or event.character is None:
            return
        else:
            line.insert_text_at_cursor(event.character)
        event.stop()
        event.prevent_default()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Search while typing."""
        self._search(event.value)

    def on_search_line_closed(self, event: SearchLine.Closed) -> None:
        """The word is complete, or given up."""
        line = self.query_one(SearchLine)
        line.display = False
        self.set_focus(None)
        self._search(event.word)

    def _search(self, word: str) -> None:
        self._log_pane.word = word
        self._log_pane.back = 0
        self._log_pane.redraw()

    def action_move(self, lines: int) -> None:
        """Scroll the log by lines, upwards."""
        self._log_pane.scroll_lines(lines)

    def action_page(self, pages: int) -> None:
        """Scroll the log by pages, upwards."""
        self._log_pane.scroll_lines(pages * max(1, self._log_pane.content_size.height - 2))
