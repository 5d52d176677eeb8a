"""Runs the monitor's screens without a terminal and compares what they show with kept texts.

``recordings/generating.jsonl`` was recorded from the real engine (SmolLM2-135M, three slots, CPU)
while it generated; only paths were replaced. Other situations are made from it.

``UPDATE_SNAPSHOTS=1 pytest tests/tui`` writes the texts anew: look at the difference before keeping
it.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ai.monitor.recording import ReplayFeed
from llama_ai.monitor.sample import Late
from llama_ai.tui.app import MonitorApp
from llama_ai.tui.palette import DARK

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from textual.pilot import Pilot

    from llama_ai.monitor.sampler import Look
    from llama_ai.tui.palette import Palette

HERE = Path(__file__).parent


class Playing:
    """An app that shows a recording, its clock in the test's hand."""

    def __init__(self, looks: list[Look], size: tuple[int, int], palette: Palette = DARK) -> None:
        self.now_s = 0.0
        # The test calls tick itself: the app's own timer never comes.
        self.feed = ReplayFeed(looks, 3600.0, clock=lambda: self.now_s)
        self.app = MonitorApp(self.feed, palette=palette)
        self.size = size
        self.pilot: Pilot[None]

    async def play(self, looks: int) -> None:
        """Let so many more looks come, and draw."""
        for _ in range(looks):
            self.now_s += 3600.0
            self.app._tick()
        await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def text(self) -> str:
        """The screen as a reader sees it."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips) + "\n"

    def styled(self, word: str) -> str:
        """The style in which ``word`` stands on the screen."""
        for strip in self.app.screen._compositor.render_strips():
            for segment in strip:
                if word in segment.text:
                    return str(segment.style)
        raise AssertionError(f"{word!r} is not on the screen:\n{self.text()}")


def show(
    looks: list[Look],
    size: tuple[int, int],
    script: Callable[[Playing], Awaitable[None]],
    palette: Palette = DARK,
) -> None:
    """Run ``script`` with the app showing the first of ``looks``."""

    async def run() -> None:
        playing = Playing(looks, size, palette)
        async with playing.app.run_test(size=size) as pilot:
            playing.pilot = pilot
            await pilot.pause()
            playing.app._tick()
            await pilot.pause()
            await script(playing)

    asyncio.run(run())


def with_state(look: Look, state: str, detail: str | None = None, **instance: Any) -> Look:
    """The look with another state of the server, as the sampler would give it."""
    engine = replace(look.sample.engine, state=state, detail=detail)
    changed = look.sample.instance
    if changed is not None:
        changed = replace(changed, **instance)
    return replace(look, sample=replace(look.sample, engine=engine, instance=changed))


def late(look: Look, age_s: float, why: str) -> Look:
    """The look with counters that are late."""
    marks = tuple(Late(what=what, age_s=age_s, why=why) for what in ("metrics", "slots"))
    return replace(look, sample=replace(look.sample, late=marks))


def compare(name: str, text: str) -> None:
    """``text`` must be what ``snapshots/NAME.txt`` holds."""
    path = HERE / "snapshots" / f"{name}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no {path.name}: run with UPDATE_SNAPSHOTS=1 and look at it"
    assert text == path.read_text(encoding="utf-8")
