"""Speeds and shares from the engine's counters. Pure: readings in, figures out.

``/metrics`` counts a request's generated tokens when it ends, ``/slots`` counts them while it runs;
the sum of both grows steadily. Prompt tokens are counted by ``/metrics`` once the prompt is done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llama_ai.monitor.rates import Rate, Rising
from llama_ai.monitor.sample import Slot

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.monitor.logtail import SlotFacts
    from llama_ai.monitor.parse import SlotReading
    from llama_ai.monitor.sample import SlotState
    from llama_ai.monitor.watch import View

HELD_S = 10.0
"""How long the speed of a finished request is shown where ``/slots`` is off."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Tokens per second over all slots; ``None`` until two readings are there."""

    prompt_tps: float | None = None
    gen_tps: float | None = None
    slots: tuple[Slot, ...] = ()


class _SlotRates:
    def __init__(self) -> None:
        self.task_id: int | None = None
        self.prompt, self.generated = Rate(), Rate()
        self.seen_prompt = self.seen_generated = 0
        self.prompt_tps: float | None = None
        self.gen_tps: float | None = None
        self.shown: SlotReading | None = None

    def update(self, slot: SlotReading, now_s: float) -> tuple[int, int]:
        """Take a reading in; return how many tokens were read and generated since the last."""
        if slot.task_id != self.task_id:
            self.__init__()  # type: ignore[misc] # another task: everything starts anew
            self.task_id = slot.task_id
        prompt, generated = slot.read_tokens or 0, slot.generated_tokens or 0
        grown = max(0, prompt - self.seen_prompt), max(0, generated - self.seen_generated)
        self.seen_prompt, self.seen_generated = prompt, generated
        prompt_tps = self.prompt.update(now_s, prompt)
        gen_tps = self.generated.update(now_s, generated)
        if slot.busy:
            self.prompt_tps = prompt_tps if not generated else None
            self.gen_tps = gen_tps if generated else None
        else:
            self.prompt_tps = self.gen_tps = None
        self._remember(slot)
        return grown

    def _remember(self, slot: SlotReading) -> None:
        """A released slot says 0 for everything: go on showing what its last turn came to."""
        counts = (slot.cached_tokens, slot.read_tokens, slot.generated_tokens)
        if slot.busy or any(counts):
            self.shown = slot
            return
        last = self.shown
        self.shown = replace(
            slot,
            cached_tokens=last.cached_tokens if last else None,
            read_tokens=last.read_tokens if last else None,
            generated_tokens=last.generated_tokens if last else None,
            remaining_tokens=None,
        )


class Speeds:
    """Keeps what is needed between readings."""

    def __init__(self) -> None:
        self._generation = -1
        self._clear()

    def _clear(self) -> None:
        self._at_s: float | None = None
        self._slots: dict[int, _SlotRates] = {}
        self._prompt, self._generated = Rate(), Rate()
        self._prompt_sum, self._generated_sum = Rising(), Rising()
        self._alone = [0, 0]
        self._before: Mapping[str, float] | None = None
        self._held_until_s = float("-inf")
        self._figures = Figures()

    def update(self, view: View, facts: SlotFacts) -> Figures:
        """The figures for what is known now; the last ones again when nothing new came."""
        if view.generation != self._generation:
            self._clear()
            self._generation = view.generation
        metrics, slots = view.metrics, view.slots
        if slots.off:
            if metrics.at_s is not None and metrics.at_s != self._at_s:
                self._at_s = metrics.at_s
                self._by_metrics(metrics.value or {}, metrics.at_s)
        elif slots.at_s is not None and slots.at_s != self._at_s:
            # /slots is asked after /metrics. Only when both are of one round do they add up.
            together = metrics.value if metrics.problem is None else None
            if together is None or (metrics.at_s or 0.0) <= slots.at_s:
                self._at_s = slots.at_s
                self._by_slots(slots.value, together, slots.at_s, facts)
        return self._figures

    def _by_slots(
        self,
        readings: tuple[SlotReading, ...],
        metrics: Mapping[str, float] | None,
        now_s: float,
        facts: SlotFacts,
    ) -> None:
        shown = []
        for reading in readings:
            rates = self._slots.setdefault(reading.id, _SlotRates())
            grown = rates.update(reading, now_s)
            self._alone = [self._alone[0] + grown[0], self._alone[1] + grown[1]]
            shown.append(_slot(rates.shown or reading, rates, facts))
        if metrics is None:
            prompt, generated = float(self._alone[0]), float(self._alone[1])
        else:
            busy = [reading for reading in readings if reading.busy]
            prompt = metrics.get("llamacpp:prompt_tokens_total", 0.0) + sum(
                reading.read_tokens or 0 for reading in busy if not reading.generated_tokens
            )
            generated = metrics.get("llamacpp:tokens_predicted_total", 0.0) + sum(
                reading.generated_tokens or 0 for reading in busy
            )
        self._figures = Figures(
            prompt_tps=self._prompt.update(now_s, self._prompt_sum.update(prompt)),
            gen_tps=self._generated.update(now_s, self._generated_sum.update(generated)),
            slots=tuple(shown),
        )

    def _by_metrics(self, now: Mapping[str, float], now_s: float) -> None:
        """Without ``/slots``: the speed of the requests that ended since the last reading."""
        before, self._before = self._before, now
        if before is None:
            return
        prompt_tps = _speed(before, now, "llamacpp:prompt_tokens_total", "llamacpp:prompt_seconds")
        gen_tps = _speed(
            before, now, "llamacpp:tokens_predicted_total", "llamacpp:tokens_predicted_seconds"
        )
        if prompt_tps is not None or gen_tps is not None:
            self._held_until_s = now_s + HELD_S
            self._figures = Figures(prompt_tps=prompt_tps, gen_tps=gen_tps)
        elif now_s > self._held_until_s:
            idle = not now.get("llamacpp:requests_processing")
            self._figures = Figures(prompt_tps=0.0, gen_tps=0.0) if idle else Figures()


def _speed(
    before: Mapping[str, float], now: Mapping[str, float], tokens: str, seconds: str
) -> float | None:
    seconds += "_total"
    grown = now.get(tokens, 0.0) - before.get(tokens, 0.0)
    took_s = now.get(seconds, 0.0) - before.get(seconds, 0.0)
    return grown / took_s if grown > 0 and took_s > 0 else None


def _slot(reading: SlotReading, rates: _SlotRates, facts: SlotFacts) -> Slot:
    state: SlotState = "idle"
    if reading.busy:
        state = "generating" if reading.generated_tokens else "prompt"
    cached, read = reading.cached_tokens, reading.read_tokens
    return Slot(
        id=reading.id,
        state=state,
        task_id=reading.task_id,
        user=reading.user,
        ctx_tokens=reading.ctx_tokens,
        ctx_used_tokens=reading.ctx_used_tokens,
        cached_tokens=cached,
        read_tokens=read,
        # While the prompt is read, nobody knows yet how much there is to read.
        cache_hit_ratio=None if state == "prompt" else ratio(cached, read),
        cache_tier=facts.cache_tier.get(reading.id),
        miss_reason=facts.miss_reason.get(reading.id),
        generated_tokens=reading.generated_tokens,
        remaining_tokens=reading.remaining_tokens,
        prompt_tps=_rounded(rates.prompt_tps),
        gen_tps=_rounded(rates.gen_tps),
        draft_acceptance=facts.draft_acceptance.get(reading.id),
    )


def ratio(part: float | None, rest: float | None) -> float | None:
    """``part / (part + rest)``; ``None`` when either is unknown or both are zero."""
    if part is None or rest is None or part + rest <= 0:
        return None
    return round(part / (part + rest), 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)
