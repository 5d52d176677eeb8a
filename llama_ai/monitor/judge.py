"""From what was seen to one word and one line: the state of the server. Pure.

With a supervisor its own word counts: ``building``, ``loading``, ``restarting``, ``failed``,
``stopping``, ``stopped`` and ``orphaned`` (see :mod:`llama_ai.supervisor.state`). It is overruled
when it says ``ready`` and the server does not answer: the supervisor may look less often than we.

Without one, and then too: ``ready``, ``loading`` (503), ``sleeping`` (its model is unloaded until
the next request), ``hung`` (connected, no answer in time), ``unreachable`` (no connection),
``unauthorised`` (our key is refused), ``foreign`` (another program answers), ``connecting`` (not
known yet) and ``absent`` (there is nothing to ask).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Instance


class Connection(StrEnum):
    """What came of the last attempt to talk to the server."""

    UNKNOWN = "unknown"
    OK = "ok"
    LOADING = "loading"
    SLEEPING = "sleeping"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    UNAUTHORISED = "unauthorised"
    FOREIGN = "foreign"


_WORDS = {
    Connection.UNKNOWN: "connecting",
    Connection.OK: "ready",
    Connection.LOADING: "loading",
    Connection.SLEEPING: "sleeping",
    Connection.REFUSED: "unreachable",
    Connection.TIMEOUT: "hung",
    Connection.UNAUTHORISED: "unauthorised",
    Connection.FOREIGN: "foreign",
}

_ANSWERING = {"ready", "degraded", "orphaned"}
"""Supervisor's states in which the server should answer."""


def judge(
    instance: Instance | None, connection: Connection, detail: str | None, *, has_target: bool
) -> tuple[str, str | None]:
    """The state's word and a line about it; ``detail`` is what the connection says."""
    if not has_target and instance is None:
        return "absent", detail or "no server runs here: `llama-ai serve MODEL` starts one"
    if instance is None:
        return _WORDS[connection], detail
    said = instance.detail or instance.last_failure
    if instance.state not in _ANSWERING:
        return instance.state, said
    if connection in (Connection.OK, Connection.UNKNOWN):
        return instance.state, instance.detail
    return _WORDS[connection], detail or instance.detail
