"""Samples in a file and back: one JSON object a line.

The first line names the format and the interval; then each line is a look: the sample, the log
lines that came with it, and the plan whenever it changed. A recording holds the engine's log, so
the file is private (0600).
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.monitor.sample import Sample, from_json, to_json
from llama_ai.monitor.sampler import Look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SCHEMA = "llama-ai.recording/1"


class Recorder:
    """Writes looks to a new file; an old one is not overwritten."""

    def __init__(self, path: str | os.PathLike[str], interval_s: float) -> None:
        self._path = Path(path)
        self._plan: Mapping[str, Any] | None = None
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise UsageError(f"--record {path}: the file exists", hint="name a new file") from None
        except OSError as error:
            raise UsageError(f"--record {path}: {error.strerror}") from error
        self._stream: TextIO = os.fdopen(handle, "w", encoding="utf-8")
        self._write({"schema": SCHEMA, "interval_s": interval_s})

    def add(self, look: Look) -> None:
        """Append one look; raises :class:`~llama_ai.errors.LlamaAiError` when the disk is full."""
        entry: dict[str, Any] = {"sample": to_json(look.sample)}
        if look.log:
            entry["log"] = list(look.log)
        if look.plan != self._plan:
            entry["plan"] = look.plan
            self._plan = look.plan
        self._write(entry)

    def close(self) -> None:
        """Finish the file."""
        self._stream.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            # Whole lines reach the file as they come, so that a kill loses nothing but the last.
            self._stream.write(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n")
            self._stream.flush()
        except OSError as error:
            raise LlamaAiError(f"cannot write {self._path}: {error.strerror}") from error


def read_recording(path: str | os.PathLike[str]) -> tuple[float, list[Look]]:
    """The interval in seconds and the looks; raises :class:`~llama_ai.errors.UsageError`.

    A last line that was cut off by a kill is left out.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--replay {path}: cannot read it ({error})") from error
    whole = lines[:-1]
    try:
        head = json.loads(whole[0])
        known, interval_s = head["schema"] == SCHEMA, float(head["interval_s"])
    except (IndexError, ValueError, TypeError, KeyError):
        known, interval_s = False, 1.0
    if not known or interval_s <= 0:
        raise UsageError(
            f"--replay {path} is not a recording", hint="`llama-ai monitor --record FILE` makes one"
        )
    looks: list[Look] = []
    plan: Mapping[str, Any] | None = None
    for number, line in enumerate(whole[1:], start=2):
        try:
            entry = json.loads(line)
            plan = entry.get("plan", plan)
            looks.append(
                Look(
                    sample=from_json(Sample, entry["sample"]),
                    log=tuple(str(text) for text in entry.get("log", ())),
                    plan=plan,
                )
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(f"--replay {path}: line {number} is damaged ({error})") from error
    if not looks:
        raise UsageError(f"--replay {path} holds no samples")
    return interval_s, looks


class ReplayFeed:
    """Plays a recording at its own pace, or at ``interval_s`` a sample."""

    def __init__(
        self,
        looks: list[Look],
        interval_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._looks = looks
        self._interval_s = interval_s
        self._clock = clock
        self._started_s: float | None = None
        self._given = 0

    @property
    def interval_s(self) -> float:
        """Seconds between two samples."""
        return self._interval_s

    @property
    def note(self) -> str | None:
        """That this is a recording, and how far it is."""
        ended = " (end)" if self._given >= len(self._looks) else ""
        return f"recording {self._given}/{len(self._looks)}{ended}"

    def start(self) -> None:
        """Begin with the first sample."""
        self._started_s = self._clock()

    def close(self) -> None:
        """Nothing to release."""

    def take(self) -> list[Look]:
        """What would have come by now."""
        if self._started_s is None:
            return []
        due = 1 + int((self._clock() - self._started_s) / self._interval_s)
        start, self._given = self._given, max(self._given, min(due, len(self._looks)))
        return self._looks[start : self._given]


class RecordingFeed:
    """Passes another feed on and records it. A full disk ends the recording, not the monitor."""

    def __init__(self, feed: Any, recorder: Recorder) -> None:
        self._feed = feed
        self._recorder: Recorder | None = recorder
        self._problem: str | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two samples."""
        return float(self._feed.interval_s)

    @property
    def note(self) -> str | None:
        """The feed's own note, or that this is recorded."""
        return self._problem or self._feed.note or "● rec"

    def start(self) -> None:
        """Begin."""
        self._feed.start()

    def close(self) -> None:
        """End, and finish the file."""
        self._feed.close()
        if self._recorder is not None:
            self._recorder.close()

    def take(self) -> list[Look]:
        """The looks since the last call, now recorded."""
        looks: list[Look] = self._feed.take()
        for look in looks:
            if self._recorder is None:
                break
            try:
                self._recorder.add(look)
            except LlamaAiError as error:
                self._problem = error.message
                self._recorder.close()
                self._recorder = None
        return looks
