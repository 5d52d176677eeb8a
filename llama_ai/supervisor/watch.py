"""Watch one engine's health from its start until something is wrong enough to end it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from llama_ai.supervisor.failures import Failure, Kind
from llama_ai.supervisor.health import Health, HealthSettings, Probe, Progress, monotonic_s
from llama_ai.supervisor.state import State

if TYPE_CHECKING:
    from collections.abc import Callable


async def watch(
    probe: Probe,
    settings: HealthSettings,
    *,
    start_timeout_s: float,
    ours: Callable[[], bool],
    state: Callable[[], State],
    tell: Callable[[State, str], None],
) -> Failure:
    """Look at the engine until it must be ended, and say why.

    ``ours`` tells whether it is our engine that answers on the port, ``state`` the instance's
    present state; ``tell`` is called with each state that is seen (ready, degraded, ready again)
    and a line about it.
    """
    started_s = monotonic_s()
    # Another server on the port must not pass for ours, which is about to fail for its sake.
    while await probe.health() is not Health.OK or not ours():
        waited_s = monotonic_s() - started_s
        if waited_s > start_timeout_s:
            return Failure(
                kind=Kind.LOAD_TIMEOUT,
                message=f"the engine was not ready within {start_timeout_s:g} s",
                state=State.LOADING,
            )
        slower = 1 if waited_s < 2 else 4
        await asyncio.sleep(settings.loading_interval_s * slower)
    tell(State.READY, f"ready after {monotonic_s() - started_s:.1f} s")
    message = await _watch_ready(probe, settings, state, tell)
    return Failure(kind=Kind.HANG, message=message, state=state())


async def _watch_ready(
    probe: Probe,
    settings: HealthSettings,
    state: Callable[[], State],
    tell: Callable[[State, str], None],
) -> str:
    progress = Progress()
    well_s = monotonic_s()
    while True:
        await asyncio.sleep(settings.interval_s)
        answer = await probe.health()
        now_s = monotonic_s()
        trouble = None
        if answer is not Health.OK:
            trouble = f"/health: {answer.value} for {now_s - well_s:.0f} s"
            if now_s - well_s >= settings.unresponsive_after_s:
                return f"the engine does not answer ({trouble})"
        else:
            well_s = now_s
            still_s = await _stillness_s(probe, progress)
            if still_s >= settings.hang_after_s:
                return f"the engine works without getting on (no token for {still_s:.0f} s)"
            if still_s >= settings.hang_after_s / 2:
                trouble = f"no token for {still_s:.0f} s"
        if trouble is not None:
            tell(State.DEGRADED, trouble)
        elif state() is not State.READY:
            tell(State.READY, "well again")


async def _stillness_s(probe: Probe, progress: Progress) -> float:
    try:
        activity = await probe.activity()
    except TimeoutError:
        return progress.unanswered_s(monotonic_s())
    except (OSError, ValueError):
        return 0.0  # the next look at /health tells more
    return progress.still_s(activity, monotonic_s())
