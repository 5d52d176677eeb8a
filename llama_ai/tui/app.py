"""The monitor as an application: feed in, screens out, keys, signals."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING, ClassVar

from textual.app import App
from textual.binding import Binding

from llama_ai.monitor.text import plain_text
from llama_ai.tui.help_text import help_lines
from llama_ai.tui.palette import DARK, PLAIN, THEMES
from llama_ai.tui.plan_text import plan_lines
from llama_ai.tui.screens.main import MainScreen
from llama_ai.tui.screens.reading import ReadingScreen
from llama_ai.tui.shown import HISTORY, Shown

if TYPE_CHECKING:
    from llama_ai.monitor.feed import Feed
    from llama_ai.monitor.sampler import Look
    from llama_ai.tui.draw import Line
    from llama_ai.tui.palette import Palette

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MonitorApp(App[None]):
    """Draws what the feed gives, once an interval. It reads nothing itself, so it never waits."""

    CSS_PATH = "llama_ai.tcss"
    TITLE = "llama-ai monitor"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # a key must never end up in the search line unasked
    BINDINGS: ClassVar[list[Binding]] = [  # type: ignore[assignment]
        Binding("q,ctrl+c", "quit", "quit", priority=False),
        Binding("question_mark,f1", "help", "help"),
        Binding("e", "plan", "plan"),
        Binding("p", "pause", "pause"),
        Binding("t", "theme", "theme"),
        Binding("c", "copy", "copy"),
    ]

    def __init__(self, feed: Feed, *, palette: Palette = DARK) -> None:
        super().__init__()
        self.animation_level = "none"
        self._feed = feed
        self._palette = palette
        self._held: list[Look] = []
        self._last_look_s = time.monotonic()
        self.shown = Shown(interval_s=feed.interval_s)
        for known in (*THEMES.values(), PLAIN):
            self.register_theme(known.theme())
        self.theme = palette.name

    def on_mount(self) -> None:
        """Start the feed, the timer and the signal handlers."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end, number)
        self.push_screen(MainScreen(self.shown, self._palette))
        self._feed.start()
        self.set_interval(self._feed.interval_s, self._tick)
        # The first look is there in a moment; do not show an empty screen for a whole interval.
        self.set_timer(min(0.25, self._feed.interval_s), self._tick)

    def on_unmount(self) -> None:
        """End the feed; it does not wait for a slow server."""
        self._feed.close()

    def _end(self, number: int) -> None:
        self.exit(return_code=128 + number)

    def _tick(self) -> None:
        looks = self._feed.take()
        now_s = time.monotonic()
        if looks:
            self._last_look_s = now_s
        self._held = [*self._held, *looks][-HISTORY:]
        self.shown.note = self._feed.note
        ended = self._feed.note is not None and self._feed.note.endswith("(end)")
        self.shown.sample_age_s = 0.0 if ended else now_s - self._last_look_s
        if not self.shown.paused:
            for look in self._held:
                self.shown.take(look)
            self._held = []
        self._redraw()

    def action_pause(self) -> None:
        """Freeze the display, or let it go on."""
        self.shown.paused = not self.shown.paused
        self._redraw()

    def action_theme(self) -> None:
        """The next theme; with NO_COLOR there is only one."""
        if self._palette is PLAIN:
            self._say("NO_COLOR is set: one theme only")
            return
        names = list(THEMES)
        self._palette = THEMES[names[(names.index(self._palette.name) + 1) % len(names)]]
        self.theme = self._palette.name
        for screen in self.screen_stack:
            if isinstance(screen, MainScreen | ReadingScreen):
                screen.repaint(self._palette)
        self._say(f"theme {self._palette.name}")

    def action_help(self) -> None:
        """Show the keys and what the figures mean."""
        self.push_screen(ReadingScreen(self.shown, help_lines, self._palette))

    def action_plan(self) -> None:
        """Explain the plan."""
        self.push_screen(ReadingScreen(self.shown, self._plan_lines, self._palette))

    def action_copy(self) -> None:
        """Put this moment, or the log, into the clipboard (by the terminal, OSC 52)."""
        screen = self.screen
        if isinstance(screen, MainScreen) and screen.log_alone:
            self.copy_to_clipboard(screen.log_text())
            self._say("the log was copied")
        elif self.shown.look is not None:
            self.copy_to_clipboard(plain_text(self.shown.look.sample))
            self._say("this moment was copied as text")

    def _plan_lines(self, width: int) -> list[Line]:
        look = self.shown.look
        return plan_lines(look.plan if look else None, look.sample if look else None, width)

    def _redraw(self) -> None:
        # While the app ends, a last tick can find no screen.
        stack = self.screen_stack
        screen = stack[-1] if stack else None
        if isinstance(screen, MainScreen | ReadingScreen):
            screen.tick()

    def _say(self, text: str) -> None:
        if isinstance(self.screen, MainScreen):
            self.screen.say(text)


def run_monitor(feed: Feed) -> int:
    """Run until the user or a signal ends it; returns the exit code."""
    plain = bool(os.environ.get("NO_COLOR"))
    # Textual would turn every colour grey; we have a theme without any.
    os.environ.pop("NO_COLOR", None)
    app = MonitorApp(feed, palette=PLAIN if plain else DARK)
    try:
        app.run(mouse=False)
    finally:
        feed.close()
    return app.return_code or 0
