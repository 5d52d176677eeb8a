"""What a router's log tells of its children: one process for each loaded model.

The router starts, stops and restarts them itself, by request; it writes each child's lines behind
the child's port in brackets. From that we learn which model runs, whether its process ended, and
why, so that a model which ran out of memory can be given less before it is loaded again.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from llama_ai.supervisor.failures import Failure, Kind, Match, classify_exit, from_match, scan
from llama_ai.supervisor.health import monotonic_s
from llama_ai.supervisor.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OF_CHILD: Final = re.compile(rb"\[ *(\d{1,5})\] (.*)", re.DOTALL)
# The router's own lines have a time, a level and a place in front; a child's have the port before.
_ROUTER: Final = rb"[\d.]+ [IW] srv +\w+: "
_START: Final = re.compile(
    _ROUTER + rb"spawning server instance with name=(.*) on port (\d+)", re.DOTALL
)
_END: Final = re.compile(_ROUTER + rb"instance name=(.*) exited with status (-?\d+)", re.DOTALL)
_FORCED: Final = re.compile(
    _ROUTER + rb"(?:force-killing model instance name=(.*) after timeout"
    rb"|model name=(.*) is still loading, force-killing)",
    re.DOTALL,
)
_LOADED: Final = b" llama_server: model loaded"
_START_LINES: Final = 2000
_CAUSES: Final = 64
_EXPLAINS_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class ChildNews:
    """Something happened to the process of the model ``name``.

    ``ready``: it serves, and ``lines`` are what it said until then. ``sick``: it lives, but is of
    no use any more. ``ended``: it failed (one that was asked to end is no news).
    """

    kind: Literal["ready", "sick", "ended"]
    name: str
    failure: Failure | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChildAnswer:
    """What followed: ``messages`` for the user, and the router's new record for ``status``."""

    messages: tuple[str, ...] = ()
    profile: Mapping[str, object] | None = None


@dataclass
class _Child:
    name: str
    ready: bool = False
    sick: bool = False
    forced: bool = False
    matches: deque[tuple[float, Match]] = field(default_factory=lambda: deque(maxlen=_CAUSES))
    lines: deque[bytes] = field(default_factory=lambda: deque(maxlen=_START_LINES))


class Children:
    """Follows the log of one router. ``tell`` is called from the thread that reads the log.

    ``oom_kills`` counts how often the kernel has killed for memory since boot: the router does not
    tell a signal from an exit with status 1.
    """

    def __init__(self, tell: Callable[[ChildNews], None], oom_kills: Callable[[], int]) -> None:
        self._tell = tell
        self._oom_kills = oom_kills
        self._seen_kills = oom_kills()
        self._by_port: dict[int, _Child] = {}

    def take(self, block: bytes) -> None:
        """A block of whole lines."""
        for line in block.splitlines():
            own = _OF_CHILD.match(line)
            if own is not None:
                child = self._by_port.get(int(own[1]))
                if child is not None:
                    self._of_child(child, own[2])
            elif b" name=" in line:
                self._of_router(line)

    def _of_child(self, child: _Child, line: bytes) -> None:
        if not child.ready:
            child.lines.append(line)
            if line.endswith(_LOADED):
                child.ready = True
                lines = tuple(raw.decode("utf-8", "replace") for raw in child.lines)
                child.lines.clear()
                child.matches.clear()
                self._tell(ChildNews(kind="ready", name=child.name, lines=lines))
        for match in scan(line):
            child.matches.append((monotonic_s(), match))
            if match.needle.alive and not child.sick:
                child.sick = True
                failure = from_match(match, _state(child))
                self._tell(ChildNews(kind="sick", name=child.name, failure=failure))

    def _of_router(self, line: bytes) -> None:
        if started := _START.match(line):
            self._by_port[int(started[2])] = _Child(_text(started[1]))
        elif forced := _FORCED.match(line):
            for child in self._named(_text(forced[1] or forced[2])):
                child.forced = True
        elif ended := _END.match(line):
            for child in self._named(_text(ended[1])):
                self._end(child, int(ended[2]))

    def _named(self, name: str) -> list[_Child]:
        return [child for child in self._by_port.values() if child.name == name]

    def _end(self, child: _Child, status: int) -> None:
        self._by_port = {port: one for port, one in self._by_port.items() if one is not child}
        kills = self._oom_kills()
        killed, self._seen_kills = kills > self._seen_kills, kills
        if status == 0 or (child.forced and not child.sick):
            return
        # An allocation that failed an hour ago, and was lived with, explains nothing.
        since_s = monotonic_s() - _EXPLAINS_S if child.ready else float("-inf")
        matches = [match for at_s, match in child.matches if at_s >= since_s]
        if killed and not matches:
            failure = Failure(
                kind=Kind.OUT_OF_MEMORY,
                message="it was killed because the machine ran out of memory",
                state=_state(child),
                returncode=status,
            )
        else:
            failure = classify_exit(status, matches, _state(child), oom_killed=False)
        self._tell(ChildNews(kind="ended", name=child.name, failure=failure))


def is_of_child(line: str) -> bool:
    """Whether a line of a router's log is one of a child's."""
    return _OF_CHILD.match(line.encode("utf-8", "replace")) is not None


def _state(child: _Child) -> State:
    return State.READY if child.ready else State.LOADING


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
