"""What the screens show: the latest look, the history, and the user's choices."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, get_args

from llama_ai.monitor.logtail import LogLine, parse_line

if TYPE_CHECKING:
    from llama_ai.monitor.sampler import Look

SlotSort = Literal["id", "context", "speed", "user"]
SORTS: tuple[SlotSort, ...] = get_args(SlotSort)

HISTORY = 600
LOG_LINES = 2000


@dataclass(kw_only=True)
class Shown:
    """Changed by the app, read by the widgets."""

    look: Look | None = None
    prompt_tps: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    gen_tps: deque[float | None] = field(default_factory=lambda: deque(maxlen=HISTORY))
    log: deque[LogLine] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    log_count: int = 0
    """Lines ever seen, so that a change of the log is noticed."""
    sort: SlotSort = "id"
    paused: bool = False
    sample_age_s: float = 0.0
    """Since the latest sample was drawn: above a few intervals, sampling itself is stuck."""
    interval_s: float = 1.0
    note: str | None = None

    def take(self, look: Look) -> None:
        """A new look arrived."""
        self.look = look
        self.prompt_tps.append(look.sample.engine.prompt_tps)
        self.gen_tps.append(look.sample.engine.gen_tps)
        for line in look.log:
            self.log.append(parse_line(line))
        self.log_count += len(look.log)

    @property
    def stuck(self) -> bool:
        """Whether the sampler has not come back for long."""
        return self.sample_age_s > 3 * self.interval_s + 1

    def late(self, what: str) -> float | None:
        """The age in seconds of the server's values, when they are late."""
        if self.look is None:
            return None
        for late in self.look.sample.late:
            if late.what == what:
                return late.age_s
        return None

    def missing(self, what: str) -> str | None:
        """Why ``what`` cannot be had."""
        if self.look is None:
            return None
        for missing in self.look.sample.missing:
            if missing.what == what:
                return missing.why
        return None
