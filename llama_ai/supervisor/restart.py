"""When to start again, when to give up: pure, with the time passed in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from llama_ai.supervisor.failures import Failure, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.command import Command


@dataclass(frozen=True, kw_only=True)
class RestartPolicy:
    """The constants. Delays grow from ``first_delay_s`` by ``factor`` up to ``max_delay_s``.

    After ``max_identical`` failures of the same identity in a row the supervisor gives up, and
    after ``max_in_a_row`` of whatever kind. An engine that was ready for ``stable_after_s`` starts
    a new row. One that was ready at all and was then killed by somebody starts one too: that
    tells nothing about the engine.
    """

    first_delay_s: float = 0.25
    factor: float = 4.0
    max_delay_s: float = 60.0
    max_identical: int = 5
    max_in_a_row: int = 20
    stable_after_s: float = 60.0


@dataclass(frozen=True, kw_only=True)
class Smaller:
    """What the planner offers against a curable failure: a command that asks for less.

    ``message`` says what was lowered (``ubatch 512 -> 256``).
    """

    command: Command
    message: str
    profile: Mapping[str, Any] | None = None
    """The summary for ``status``, when it changes."""


class Verdict(StrEnum):
    """What to do after a failure."""

    RESTART = "restart"
    SMALLER = "smaller"
    """Ask the planner for a smaller setting; restart as before when it has none."""
    GIVE_UP = "give-up"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The verdict, the delay before the next start, and why (one line, for giving up)."""

    verdict: Verdict
    delay_s: float
    reason: str


class RestartTracker:
    """Counts failures and decides. Has no clock: the caller says how long the engine was ready."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._in_a_row = 0
        self._identical = 0
        self._last: tuple[Kind, int | None] | None = None

    def failed(self, failure: Failure, *, ready_s: float | None) -> Decision:
        """Count ``failure``; ``ready_s``: how long the engine had been ready, ``None`` if never."""
        policy = self._policy
        outlived = ready_s is not None and (
            ready_s >= policy.stable_after_s or failure.kind is Kind.KILLED
        )
        if outlived:
            self.forgive()
        self._identical = self._identical + 1 if failure.identity == self._last else 1
        self._last = failure.identity
        self._in_a_row += 1
        delay_s = min(
            policy.max_delay_s, policy.first_delay_s * policy.factor ** (self._in_a_row - 1)
        )
        if failure.kind.final:
            return Decision(verdict=Verdict.GIVE_UP, delay_s=0, reason="starting again cannot help")
        if self._identical >= policy.max_identical:
            return Decision(
                verdict=Verdict.GIVE_UP,
                delay_s=0,
                reason=f"the same failure {self._identical} times in a row",
            )
        if self._in_a_row >= policy.max_in_a_row:
            return Decision(
                verdict=Verdict.GIVE_UP, delay_s=0, reason=f"{self._in_a_row} failures in a row"
            )
        verdict = Verdict.SMALLER if failure.kind.curable else Verdict.RESTART
        return Decision(verdict=verdict, delay_s=delay_s, reason=failure.message)

    def forgive(self) -> None:
        """Start a new row: the engine has proved itself, or runs with other settings now."""
        self._in_a_row = 0
        self._identical = 0
        self._last = None
