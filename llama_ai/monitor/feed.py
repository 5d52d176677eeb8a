"""Samples on a timer, in a thread of their own, for whoever draws them; or just one."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from llama_ai.monitor.sampler import Look, Sampler


class Feed(Protocol):
    """Where a screen gets its samples from: live or a recording."""

    @property
    def interval_s(self) -> float:
        """Seconds between two samples."""

    def start(self) -> None:
        """Begin."""

    def close(self) -> None:
        """End; never waits for a slow server."""

    def take(self) -> list[Look]:
        """The looks since the last call, oldest first; empty when there is nothing new."""

    @property
    def note(self) -> str | None:
        """A word about the feed itself: recorded, at its end; ``None`` for a live one."""


class LiveFeed:
    """Samples on a timer. The newest :attr:`KEPT` looks wait for a reader that is slow."""

    KEPT = 120

    def __init__(self, sampler: Sampler, interval_s: float) -> None:
        self._sampler = sampler
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._looks: list[Look] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="monitor-sampler", daemon=True)
        self.error: BaseException | None = None

    @property
    def interval_s(self) -> float:
        """Seconds between two samples."""
        return self._interval_s

    @property
    def note(self) -> str | None:
        """Live: nothing to say, unless sampling ended by a fault of ours."""
        return None if self.error is None else f"sampling stopped: {self.error!r}"

    def start(self) -> None:
        """Begin."""
        self._sampler.start()
        self._thread.start()

    def close(self) -> None:
        """End, without waiting for anything that could be stuck."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(0.2)
        self._sampler.close()

    def take(self) -> list[Look]:
        """The looks since the last call."""
        with self._lock:
            looks, self._looks = self._looks, []
        return looks

    def _run(self) -> None:
        due_s = time.monotonic()
        try:
            while not self._stop.is_set():
                look = self._sampler.look()
                with self._lock:
                    self._looks = [*self._looks[-self.KEPT :], look]
                due_s = max(due_s + self._interval_s, time.monotonic())
                self._stop.wait(due_s - time.monotonic())
        except Exception as error:  # noqa: BLE001 - shown to the user by `note`
            self.error = error


def look_once(sampler: Sampler, *, window_s: float, patience_s: float = 5.0) -> Look:
    """One sample whose rates span ``window_s``, from a sampler that is not started yet.

    The sampler's own interval should be half of that, so that two readings fall into the window.

    Waits until the server was heard, or it is known why not, at most ``patience_s``.
    """
    sampler.start()
    try:
        look = sampler.look()
        deadline_s = time.monotonic() + patience_s
        while sampler.watch.target is not None and not sampler.watch.view().settled:
            if time.monotonic() > deadline_s:
                break
            time.sleep(0.02)
        sampler.look()  # the first point of every rate
        time.sleep(window_s)
        last = sampler.look()
        return replace(last, log=(*look.log, *last.log))
    finally:
        sampler.close()
