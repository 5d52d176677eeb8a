"""``doctor``'s checks of the machine: pure functions from facts to :class:`Check`.

Nothing here reads a file, so each check is tested with facts alone and works on recordings. What
only the live machine can answer comes in as a value that may be ``None``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["PASS", "WARN", "FAIL", "UNKNOWN"]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    FAIL means that serving as planned will not work; WARN that it works less well than it could;
    UNKNOWN that the machine (or the recording) does not tell.
    """

    id: str
    status: Status
    expected: str
    observed: str
    hint: str | None = None
    """What to do; ``None`` when there is nothing to do."""

    def to_json(self) -> dict[str, str | None]:
        """An element of ``doctor --json``'s ``checks``."""
        return {
            "id": self.id,
            "status": self.status,
            "expected": self.expected,
            "observed": self.observed,
            "hint": self.hint,
        }
