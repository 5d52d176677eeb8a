"""Figures of experts on disk: counters against tokens and time."""

from __future__ import annotations

from llama_ai.monitor.experts import ExpertFigures, ExpertRates
from llama_ai.monitor.sample import Engine, Sample
from llama_ai.monitor.sampler import Look
from llama_ai.monitor.speeds import Figures
from llama_ai.monitor.text import plain_text
from llama_ai.monitor.watch import Reading, View
from llama_ai.tui.shown import Shown
from llama_ai.tui.widgets.speed import totals

GENERATING = Figures(prompt_tps=0.0, gen_tps=10.0)


def view(at_s: float, *, busy: int = 1, generation: int = 1, **counters: float) -> View:
    values = {f"llama_ai:expert_{name}": value for name, value in counters.items()}
    values["llamacpp:requests_processing"] = busy
    return View(metrics=Reading(value=values, at_s=at_s), generation=generation)


def at(seconds: float, **more: int) -> View:
    """An engine that reads 50 MB and waits 0.25 s in each second."""
    return view(
        seconds,
        hits_total=3 * seconds,
        misses_total=seconds,
        read_bytes_total=50e6 * seconds,
        stall_seconds_total=0.25 * seconds,
        resident_bytes=6 << 30,
        budget_bytes=8 << 30,
        **more,
    )


def test_bytes_a_token_and_the_share_of_waiting() -> None:
    rates = ExpertRates()
    first = rates.update(at(1), GENERATING)
    assert (first.hit_ratio, first.read_bytes_per_token, first.stall_share) == (0.75, None, None)
    assert rates.update(at(2), GENERATING) == ExpertFigures(
        hit_ratio=0.75,
        read_bytes_per_token=5_000_000,
        stall_share=0.25,
        resident_bytes=6 << 30,
        budget_bytes=8 << 30,
    )


def test_while_a_prompt_is_read_the_bytes_belong_to_nobody() -> None:
    rates = ExpertRates()
    both = Figures(prompt_tps=100.0, gen_tps=10.0)
    rates.update(at(1), both)
    assert rates.update(at(2), both).read_bytes_per_token is None
    assert rates.update(at(3), GENERATING).read_bytes_per_token == 5_000_000
    # Afterwards the last figure stays, and nothing waits.
    idle = rates.update(at(4, busy=0), Figures(prompt_tps=0.0, gen_tps=0.0))
    assert (idle.read_bytes_per_token, idle.stall_share) == (5_000_000, None)


def test_another_engine_starts_anew_and_one_without_knows_nothing() -> None:
    rates = ExpertRates()
    rates.update(at(1), GENERATING)
    rates.update(at(2), GENERATING)
    assert rates.update(at(3, generation=2), GENERATING).read_bytes_per_token is None
    assert rates.update(view(4, generation=3), GENERATING) == ExpertFigures()


def test_the_figures_are_shown() -> None:
    engine = Engine(
        state="ready",
        expert_hit_ratio=0.75,
        expert_read_bytes_per_token=5e6,
        expert_stall_share=0.25,
        expert_resident_bytes=6 << 30,
        expert_budget_bytes=8 << 30,
    )
    sample = Sample(at_s=0.0, engine=engine)
    text = plain_text(sample)
    assert "experts   75.0% hit" in text
    assert "6.00 / 8.00 GiB in memory, 5.0 MB read a token, waiting 25% of the time" in text
    shown = "".join(span[0] for span in totals(Shown(look=Look(sample=sample))))
    assert "expert hits 75%" in shown
    assert "MB/token 5.0" in shown
    assert "disk wait 25%" in shown
