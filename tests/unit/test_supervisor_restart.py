"""The restart policy: pure, with times that are passed in."""

from __future__ import annotations

import pytest

from llama_ai.supervisor.failures import Failure, Kind
from llama_ai.supervisor.restart import RestartPolicy, RestartTracker, Verdict
from llama_ai.supervisor.state import State


def failure(kind: Kind, returncode: int | None = 1) -> Failure:
    return Failure(kind=kind, message="it failed", state=State.READY, returncode=returncode)


def test_delays_grow_up_to_the_cap() -> None:
    tracker = RestartTracker(
        RestartPolicy(first_delay_s=1, factor=3, max_delay_s=20, max_identical=99)
    )
    delays = [tracker.failed(failure(Kind.CRASH), ready_s=None).delay_s for _ in range(5)]
    assert delays == [1, 3, 9, 20, 20]


def test_gives_up_after_identical_failures_and_says_how_many() -> None:
    tracker = RestartTracker(RestartPolicy(max_identical=3))
    decisions = [tracker.failed(failure(Kind.CRASH, -11), ready_s=1) for _ in range(3)]
    assert [decision.verdict for decision in decisions] == [
        Verdict.RESTART,
        Verdict.RESTART,
        Verdict.GIVE_UP,
    ]
    assert "3 times" in decisions[-1].reason


def test_another_failure_starts_the_count_of_identical_ones_again() -> None:
    tracker = RestartTracker(RestartPolicy(max_identical=2))
    kinds = [Kind.CRASH, Kind.HANG, Kind.CRASH, Kind.HANG]
    verdicts = [tracker.failed(failure(kind), ready_s=None).verdict for kind in kinds]
    assert Verdict.GIVE_UP not in verdicts


def test_alternating_failures_do_not_go_on_for_ever() -> None:
    tracker = RestartTracker(RestartPolicy(max_identical=2, max_in_a_row=6))
    kinds = [Kind.CRASH, Kind.HANG] * 3
    verdicts = [tracker.failed(failure(kind), ready_s=None).verdict for kind in kinds]
    assert verdicts.index(Verdict.GIVE_UP) == 5


def test_an_engine_that_ran_well_for_long_starts_a_new_row() -> None:
    policy = RestartPolicy(max_identical=2, stable_after_s=60)
    tracker = RestartTracker(policy)
    for _ in range(50):
        decision = tracker.failed(failure(Kind.CRASH), ready_s=60)
        assert decision.verdict is Verdict.RESTART
        assert decision.delay_s == policy.first_delay_s
    assert tracker.failed(failure(Kind.CRASH), ready_s=59).verdict is Verdict.GIVE_UP


def test_kills_by_others_do_not_count_against_an_engine_that_was_ready() -> None:
    tracker = RestartTracker(RestartPolicy(max_identical=2))
    for _ in range(10):
        assert tracker.failed(failure(Kind.KILLED, -9), ready_s=0.5).verdict is Verdict.RESTART
    assert tracker.failed(failure(Kind.KILLED, -9), ready_s=None).verdict is Verdict.GIVE_UP


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind.final])
def test_what_cannot_be_cured_does_not_loop(kind: Kind) -> None:
    decision = RestartTracker(RestartPolicy()).failed(failure(kind), ready_s=None)
    assert decision.verdict is Verdict.GIVE_UP


@pytest.mark.parametrize("kind", [Kind.OUT_OF_MEMORY, Kind.DEVICE_LOST, Kind.GPU_TIMEOUT])
def test_what_a_smaller_setting_cures_asks_for_one(kind: Kind) -> None:
    tracker = RestartTracker(RestartPolicy(max_identical=2))
    assert tracker.failed(failure(kind), ready_s=None).verdict is Verdict.SMALLER
    tracker.forgive()  # a smaller setting was found
    assert tracker.failed(failure(kind), ready_s=None).verdict is Verdict.SMALLER
    assert tracker.failed(failure(kind), ready_s=None).verdict is Verdict.GIVE_UP
