"""What runs, how it is, since when; and what is wrong, if anything."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from llama_ai.tui.draw import duration, spread
from llama_ai.tui.widgets.panel import Panel

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Sample
    from llama_ai.tui.draw import Line, Span
    from llama_ai.tui.shown import Shown

# Each state has its own shape, so that no colour is needed to tell them apart.
STATES = {
    "ready": ("●", "good"),
    "degraded": ("▲", "warn"),
    "orphaned": ("▲", "warn"),
    "hung": ("▲", "bad"),
    "loading": ("◌", "busy"),
    "building": ("◌", "busy"),
    "connecting": ("◌", "busy"),
    "restarting": ("↻", "warn"),
    "stopping": ("■", "warn"),
    "stopped": ("■", "label"),
    "absent": ("○", "label"),
    "sleeping": ("○", "label"),
    "unreachable": ("✖", "bad"),
    "failed": ("✖", "bad"),
    "unauthorised": ("✖", "bad"),
    "foreign": ("✖", "bad"),
}


class Header(Panel):
    """Two lines, and a third when there is something to say."""

    def lines(self, width: int, height: int) -> list[Line]:
        look = self.shown.look
        if look is None:
            return [(("○ ", "label"), ("waiting for the first sample", "label"))]
        sample = look.sample
        drawn = [self._first(sample, width), self._second(sample, width)]
        notes = problems(self.shown)
        if notes:
            drawn.append((("▲ ", "warn"), ("  ·  ".join(notes), "warn")))
        return drawn[:height]

    def _first(self, sample: Sample, width: int) -> Line:
        engine, instance = sample.engine, sample.instance
        symbol, style = STATES.get(engine.state, ("?", "warn"))
        left: Line = (
            (f"{symbol} {engine.state.upper()}", style),
            ("  ", "text"),
            (engine.model or "no model", "value" if engine.model else "label"),
        )
        right: list[Span] = []
        if self.shown.paused:
            right.append(("‖ PAUSED  ", "warn"))
        if instance is not None:
            since = _since_s(instance.started_at, sample.at_s)
            if since is not None and engine.state != "stopped":
                right += [("up ", "label"), (duration(since), "value"), ("  ", "text")]
            many = instance.restarts > 0
            right += [
                ("restarts ", "label"),
                (str(instance.restarts), "warn" if many else "value"),
            ]
        return spread(left, tuple(right), width)

    def _second(self, sample: Sample, width: int) -> Line:
        engine, instance = sample.engine, sample.instance
        words = [engine.url or "no server"]
        if instance is not None and instance.summary:
            words.append(instance.summary)
        elif engine.build:
            words.append(f"llama.cpp {engine.build}")
        note = self.shown.note
        right: Line = () if note is None else ((note, "warn"),)
        return spread(((" · ".join(words), "label"),), right, width)


def problems(shown: Shown) -> list[str]:
    """What a user should know now, most urgent first."""
    if shown.look is None:
        return []
    sample = shown.look.sample
    notes = []
    if shown.stuck:
        notes.append(f"sampling is stuck: everything here is {shown.sample_age_s:.0f} s old")
    if sample.engine.detail:
        notes.append(sample.engine.detail)
    if sample.late:
        oldest = max(sample.late, key=lambda late: late.age_s)
        what = " and ".join(late.what for late in sample.late)
        notes.append(f"{what} {oldest.age_s:.0f} s old: {oldest.why}")
    instance = sample.instance
    failure = None if instance is None else instance.last_failure
    if failure is not None and failure != sample.engine.detail:
        notes.append(f"last failure: {failure}")
    notes += [f"no {what}: {why}" for what in ("metrics", "slots") if (why := shown.missing(what))]
    return notes


def _since_s(text: str | None, now_s: float) -> float | None:
    if text is None:
        return None
    try:
        return now_s - datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
