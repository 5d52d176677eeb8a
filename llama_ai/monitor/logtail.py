"""The engine's log, line by line as it grows: level, text, and what a line says about a slot."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llama_ai.monitor.parse import clean

Level = Literal["debug", "info", "warning", "error", "ours"]

READ_LIMIT_BYTES = 256 << 10
"""Read at most this much a tick; a flood beyond it is skipped and said."""

FIRST_BYTES = 64 << 10

# A line of the engine: time since its start, a letter, a component, a text.
_LINE = re.compile(r"(?:[0-9]+\.){2,4}[0-9]+ ([DIWETV]) (.*)", re.ASCII)
_LEVELS: dict[str, Level] = {"D": "debug", "T": "debug", "V": "debug", "I": "info"}
_LEVELS.update({"W": "warning", "E": "error"})
_OURS = "--- llama-ai: "


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """A line without its time stamp."""

    level: Level
    text: str


def parse_line(text: str) -> LogLine:
    """A line of the log. What does not look like one (a driver's message) is of level info."""
    if text.startswith(_OURS):
        return LogLine(level="ours", text=clean(text[len(_OURS) :]))
    if match := _LINE.fullmatch(text):
        return LogLine(level=_LEVELS[match[1]], text=clean(match[2]))
    return LogLine(level="info", text=clean(text))


class LogTail:
    """Reads a file from its end on, over rotations. Never blocks for long, never raises."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._handle: int | None = None
        self._offset = 0
        self._rest = b""
        self.problem: str | None = None
        """Why there is nothing to read."""

    def read(self) -> list[str]:
        """The lines that came since the last call; at first, the end of the file."""
        lines: list[str] = []
        try:
            if self._handle is None:
                self._open(FIRST_BYTES)
            lines += self._drain()
            if self._replaced():
                self._close()
                self._open(READ_LIMIT_BYTES)
                lines += self._drain()
            self.problem = None
        except OSError as error:
            self._close()
            self.problem = f"cannot read {self._path.name}: {error.strerror}"
        return lines

    def close(self) -> None:
        """Let the file go."""
        self._close()

    def _open(self, tail_bytes: int) -> None:
        self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        size = os.fstat(self._handle).st_size
        self._offset = max(0, size - tail_bytes)
        self._rest = b""
        if self._offset:  # the line that is cut in two is nobody's
            head = os.pread(self._handle, 1 << 16, self._offset)
            self._offset += head.find(b"\n") + 1

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _replaced(self) -> bool:
        if self._handle is None:
            return False
        opened = os.fstat(self._handle)
        try:
            now = self._path.stat()
        except FileNotFoundError:
            return False  # between two files; the old one is still ours
        return now.st_ino != opened.st_ino or opened.st_size < self._offset

    def _drain(self) -> list[str]:
        if self._handle is None:
            return []
        lines: list[str] = []
        behind = os.fstat(self._handle).st_size - self._offset
        if behind > READ_LIMIT_BYTES:
            skipped = behind - READ_LIMIT_BYTES
            lines.append(f"{_OURS}{skipped} bytes of log were skipped here: too much at once")
            self._offset += skipped
            self._rest = b""
        block = self._rest + os.pread(self._handle, READ_LIMIT_BYTES, self._offset)
        self._offset += len(block) - len(self._rest)
        whole, end, self._rest = block.rpartition(b"\n")
        if end:
            lines += [line.decode("utf-8", "replace") for line in whole.split(b"\n")]
        return [line for line in lines if line.strip()]


_CACHE = re.compile(r"kv-cache: slot ([0-9]+): (hot|warm|cold|miss), [^:]*(?:: (.*))?", re.ASCII)
_DRAFT = re.compile(r"id +([0-9]+) \|.*draft acceptance = ([01]\.[0-9]+)", re.ASCII)


class SlotFacts:
    """What the log says about a slot and ``/slots`` does not."""

    def __init__(self) -> None:
        self.draft_acceptance: dict[int, float] = {}
        self.cache_tier: dict[int, str] = {}
        self.miss_reason: dict[int, str] = {}

    def take(self, line: str) -> None:
        """Look at one line."""
        if "draft acceptance" in line and (match := _DRAFT.search(line)):
            self.draft_acceptance[int(match[1])] = float(match[2])
        elif "kv-cache: slot" in line and (match := _CACHE.search(line)):
            slot_id = int(match[1])
            self.cache_tier[slot_id] = match[2]
            self.miss_reason.pop(slot_id, None)
            if match[2] == "miss" and match[3]:
                self.miss_reason[slot_id] = clean(match[3], 200)

    def clear(self) -> None:
        """The engine was started anew."""
        self.draft_acceptance.clear()
        self.cache_tier.clear()
        self.miss_reason.clear()
