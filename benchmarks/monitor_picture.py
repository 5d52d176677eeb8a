"""Draws the main screen of the monitor from a recording, as the picture of the docs.

monitor_picture.py RECORDING.jsonl OUT.svg [--size 160x48] [--looks N] [--theme dark]
"""

from __future__ import annotations

import argparse
import asyncio
import re
from pathlib import Path

from llama_ai.monitor.recording import ReplayFeed, read_recording
from llama_ai.tui.app import MonitorApp
from llama_ai.tui.palette import THEMES

# The font's files lie on another's server; the reader's own font will do.
FONT_FACE = re.compile(r"@font-face\s*\{.*?\}\s*", re.DOTALL)


async def picture(options: argparse.Namespace) -> str:
    width, height = (int(part) for part in options.size.split("x"))
    looks = read_recording(options.recording)[1][: options.looks]
    now_s = 0.0
    feed = ReplayFeed(looks, 1.0, clock=lambda: now_s)
    app = MonitorApp(feed, palette=THEMES[options.theme])
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause()
        now_s = 1e6
        await pilot.pause(1.2)
        app.shown.note = None  # that it is a recording is said below the picture
        app.screen.query_one("#header").redraw()  # type: ignore[attr-defined]
        await pilot.pause()
        svg = app.export_screenshot(title="llama-ai monitor")
    return FONT_FACE.sub("", svg).replace("Fira Code", "ui-monospace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="160x48")
    parser.add_argument("--looks", type=int)
    parser.add_argument("--theme", choices=sorted(THEMES), default="dark")
    options = parser.parse_args()
    options.out.write_text(asyncio.run(picture(options)), encoding="utf-8")


if __name__ == "__main__":
    main()
