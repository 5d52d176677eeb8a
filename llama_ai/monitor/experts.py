"""Figures of experts that are read from disk, from the engine's counters. Pure.

The engine counts bytes and waiting time; here they are set against tokens and time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.monitor.rates import Rate
from llama_ai.monitor.speeds import ratio

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.monitor.speeds import Figures
    from llama_ai.monitor.watch import View


@dataclass(frozen=True, kw_only=True)
class ExpertFigures:
    """All ``None`` for an engine that reads no experts from disk."""

    hit_ratio: float | None = None
    """Over the engine's life."""
    read_bytes_per_token: float | None = None
    """While generating, over the last seconds; the last such figure afterwards."""
    stall_share: float | None = None
    """Of the time, over the last seconds: the computation waited for the disk. Idle: ``None``."""
    resident_bytes: int | None = None
    budget_bytes: int | None = None


class ExpertRates:
    """Keeps what is needed between readings."""

    def __init__(self) -> None:
        self._generation = -1
        self._clear()

    def _clear(self) -> None:
        self._at_s: float | None = None
        self._bytes, self._stall = Rate(), Rate()
        self._figures = ExpertFigures()
        self._per_token: float | None = None

    def update(self, view: View, figures: Figures) -> ExpertFigures:
        """The figures for what is known now; the last ones again when nothing new came."""
        if view.generation != self._generation:
            self._clear()
            self._generation = view.generation
        at_s, values = view.metrics.at_s, view.metrics.value or {}
        if at_s is not None and at_s != self._at_s:
            self._at_s = at_s
            self._figures = self._of(values, at_s, figures)
        return self._figures

    def _of(self, values: Mapping[str, float], now_s: float, figures: Figures) -> ExpertFigures:
        read = values.get("llama_ai:expert_read_bytes_total")
        waited = values.get("llama_ai:expert_stall_seconds_total")
        bytes_s = None if read is None else self._bytes.update(now_s, read)
        stall = None if waited is None else self._stall.update(now_s, waited)
        # While a prompt is read as well, nobody can tell whose bytes these were.
        if bytes_s is not None and figures.gen_tps and not figures.prompt_tps:
            self._per_token = bytes_s / figures.gen_tps
        busy = bool(values.get("llamacpp:requests_processing"))
        return ExpertFigures(
            hit_ratio=_hits(values),
            read_bytes_per_token=None if self._per_token is None else round(self._per_token),
            stall_share=round(min(1.0, stall), 3) if busy and stall is not None else None,
            resident_bytes=_whole(values, "llama_ai:expert_resident_bytes"),
            budget_bytes=_whole(values, "llama_ai:expert_budget_bytes"),
        )


def _hits(values: Mapping[str, float]) -> float | None:
    """The engine's own figure, or its counters of experts found in memory and not."""
    stated = values.get("llama_ai:expert_hit_ratio")
    if stated is not None:
        return stated
    return ratio(
        values.get("llama_ai:expert_hits_total"), values.get("llama_ai:expert_misses_total")
    )


def _whole(values: Mapping[str, float], name: str) -> int | None:
    value = values.get(name)
    return None if value is None else round(value)
