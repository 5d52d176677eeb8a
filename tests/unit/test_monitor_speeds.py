"""Rates and figures from counters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_ai.monitor.limits import from_plan
from llama_ai.monitor.logtail import SlotFacts
from llama_ai.monitor.parse import SlotReading
from llama_ai.monitor.rates import Rate
from llama_ai.monitor.speeds import Figures, Speeds, ratio
from llama_ai.monitor.watch import Reading, View


def reading(
    *,
    busy: bool = True,
    task: int = 1,
    read: int = 0,
    made: int = 0,
    slot: int = 0,
    cached: int = 0,
) -> SlotReading:
    return SlotReading(
        id=slot,
        busy=busy,
        task_id=task,
        user=None,
        ctx_tokens=1000,
        ctx_used_tokens=read + made,
        cached_tokens=cached,
        read_tokens=read,
        generated_tokens=made,
        remaining_tokens=None,
    )


def metrics(read: int = 0, made: int = 0, read_s: float = 0, made_s: float = 0) -> dict[str, float]:
    return {
        "llamacpp:prompt_tokens_total": read,
        "llamacpp:tokens_predicted_total": made,
        "llamacpp:prompt_seconds_total": read_s,
        "llamacpp:tokens_predicted_seconds_total": made_s,
        "llamacpp:requests_processing": 0,
    }


class Server:
    """Hands out views of a server second by second."""

    def __init__(self) -> None:
        self.speeds = Speeds()
        self.now_s = 100.0
        self.generation = 0

    def tick(
        self, slots: tuple[SlotReading, ...] | None, counts: dict[str, float] | None
    ) -> Figures:
        self.now_s += 1
        view = View(
            metrics=Reading(value=counts, at_s=self.now_s)
            if counts is not None
            else Reading(problem="off", off=True, at_s=self.now_s),
            slots=Reading(value=slots, at_s=self.now_s + 0.01)
            if slots is not None
            else Reading(problem="off", off=True, at_s=self.now_s),
            generation=self.generation,
        )
        return self.speeds.update(view, SlotFacts())


def test_a_steady_counter_gives_its_rate() -> None:
    rate = Rate(window_s=3)
    assert rate.update(0, 0) is None
    assert [rate.update(second, 10 * second) for second in range(1, 9)] == [10.0] * 8


def test_a_rate_settles_at_zero_one_window_after_the_end() -> None:
    rate = Rate(window_s=3)
    for second in range(5):
        rate.update(second, 10 * second)
    assert [rate.update(5 + second, 40) for second in range(4)][-1] == 0


def test_a_counter_that_falls_started_anew() -> None:
    rate = Rate(window_s=3)
    rate.update(0, 500)
    rate.update(1, 510)
    assert rate.update(2, 3) is None
    assert rate.update(3, 13) == 10


@given(st.lists(st.tuples(st.floats(0.01, 5), st.integers(0, 1000)), min_size=2, max_size=30))
def test_a_rate_is_never_negative_and_never_above_the_fastest_step(
    steps: list[tuple[float, int]],
) -> None:
    """0 ≤ rate ≤ the largest growth per second between two readings."""
    rate, now_s, total = Rate(window_s=3), 0.0, 0
    rate.update(now_s, total)
    fastest = 0.0
    for span_s, grown in steps:
        now_s, total = now_s + span_s, total + grown
        fastest = max(fastest, grown / span_s)
        got = rate.update(now_s, total)
        assert got is not None
        assert 0 <= got <= fastest * 1.0001 + 1e-6


def test_tokens_are_counted_once_when_a_request_ends() -> None:
    """They move from the slot's count to the total: the speed stays 10 t/s throughout."""
    server = Server()
    made = [0, 10, 20, 30, 40]
    seen = [server.tick((reading(read=5, made=count),), metrics(5, 0)) for count in made]
    # The request ends with 50 tokens; the next one starts at once.
    seen.append(server.tick((reading(busy=False, read=0, made=0),), metrics(5, 50)))
    seen.append(server.tick((reading(task=2, read=5, made=10),), metrics(10, 50)))
    seen.append(server.tick((reading(task=2, read=5, made=20),), metrics(10, 50)))
    assert [figure.gen_tps for figure in seen[2:]] == [pytest.approx(10.0)] * 6


def test_a_request_between_two_counters_gives_no_negative_speed() -> None:
    server = Server()
    server.tick((reading(read=5, made=40),), metrics(5, 100))
    # Released after /metrics and before /slots: in neither of them for one look.
    gone = server.tick((reading(busy=False),), metrics(5, 100))
    back = server.tick((reading(busy=False),), metrics(5, 150))
    assert gone.gen_tps == 0
    assert back.gen_tps == pytest.approx(5.0)


def test_prompt_tokens_count_while_they_are_read() -> None:
    server = Server()
    server.tick((reading(read=0),), metrics(0))
    server.tick((reading(read=512),), metrics(0))
    figures = server.tick((reading(read=1024),), metrics(0))
    assert figures.prompt_tps == pytest.approx(512)
    assert figures.slots[0].state == "prompt"
    assert figures.slots[0].prompt_tps == pytest.approx(512)
    # Done: the tokens are in the total now, and are not counted twice.
    figures = server.tick((reading(read=1024, made=1),), metrics(1024))
    assert figures.prompt_tps == pytest.approx(1024 / 3)
    assert figures.slots[0].state == "generating"


def test_a_new_task_on_a_slot_starts_its_own_speed() -> None:
    server = Server()
    for made in (10, 30, 50):
        server.tick((reading(made=made),), metrics())
    assert server.tick((reading(task=2, made=5),), metrics(0, 60)).slots[0].gen_tps is None


def test_a_released_slot_goes_on_showing_its_last_turn() -> None:
    server = Server()
    server.tick((reading(read=20, made=7, cached=80),), metrics())
    (idle,) = server.tick((reading(busy=False),), metrics(20, 8)).slots
    assert (idle.state, idle.cached_tokens, idle.read_tokens, idle.generated_tokens) == (
        "idle",
        80,
        20,
        7,
    )
    assert idle.cache_hit_ratio == 0.8
    assert idle.gen_tps is None


def test_a_slot_that_never_worked_shows_nothing() -> None:
    (idle,) = Server().tick((reading(busy=False),), metrics()).slots
    assert idle.cached_tokens is idle.generated_tokens is idle.cache_hit_ratio is None


def test_no_share_of_hits_before_the_prompt_is_read() -> None:
    (slot,) = Server().tick((reading(read=0, cached=508),), metrics()).slots
    assert (slot.cached_tokens, slot.cache_hit_ratio) == (508, None)


def test_without_metrics_slots_alone_give_the_speed() -> None:
    server = Server()
    server.tick((reading(made=5),), None)
    server.tick((reading(made=15),), None)
    figures = server.tick((reading(made=25), reading(slot=1, made=20)), None)
    assert figures.gen_tps == pytest.approx((20 + 20) / 2)


def test_without_slots_ended_requests_give_the_speed() -> None:
    server = Server()
    server.tick(None, metrics())
    figures = server.tick(None, metrics(100, 50, read_s=0.5, made_s=2.5))
    assert (figures.prompt_tps, figures.gen_tps) == (200, 20)
    assert server.tick(None, metrics(100, 50, read_s=0.5, made_s=2.5)).gen_tps == 20
    for _ in range(11):
        figures = server.tick(None, metrics(100, 50, read_s=0.5, made_s=2.5))
    assert figures.gen_tps == 0


def test_counters_of_two_rounds_do_not_add_up() -> None:
    """/metrics renewed, /slots still from before: the ended request would count twice."""
    speeds = Speeds()
    slots = Reading(value=(reading(made=50),), at_s=100.1)
    view = View(metrics=Reading(value=metrics(0, 0), at_s=100.0), slots=slots)
    speeds.update(view, SlotFacts())
    # It ended with 60 tokens. These slots were read a second before these metrics.
    mixed = View(
        metrics=Reading(value=metrics(0, 60), at_s=102.0),
        slots=Reading(value=(reading(made=60),), at_s=101.1),
    )
    assert speeds.update(mixed, SlotFacts()).gen_tps is None  # nothing was taken in
    slots = Reading(value=(reading(busy=False),), at_s=102.1)
    assert speeds.update(replace(mixed, slots=slots), SlotFacts()).gen_tps == pytest.approx(5)


def test_another_engine_starts_anew() -> None:
    server = Server()
    for made in (10, 20, 30):
        server.tick((reading(made=made),), metrics(0, 1000))
    server.generation += 1
    assert server.tick((reading(made=1),), metrics(0, 0)).gen_tps is None
    assert server.tick((reading(made=4),), metrics(0, 0)).gen_tps == pytest.approx(3)


@pytest.mark.parametrize(
    ("part", "rest", "expected"),
    [(3, 1, 0.75), (0, 5, 0.0), (0, 0, None), (None, 1, None), (1, None, None)],
)
def test_shares(part: float | None, rest: float | None, expected: float | None) -> None:
    assert ratio(part, rest) == expected


def test_limits_of_a_plan() -> None:
    limits = from_plan(
        {
            "profile": {"cache_ram_mib": 2048, "ctx_size": 8192},
            "memory": {
                "gpu": {"kv_bytes": 10, "budget_bytes": 100},
                "host": {"kv_bytes": 5, "budget_bytes": None},
            },
        }
    )
    assert (limits.kv_bytes, limits.ctx_tokens, limits.cache_ram_bytes) == (15, 8192, 2 << 30)
    assert (limits.gpu_budget_bytes, limits.host_budget_bytes) == (100, None)
    assert from_plan(None).kv_bytes is None
    assert from_plan({"memory": 3, "profile": []}).ctx_tokens is None
