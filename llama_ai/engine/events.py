"""What long engine work (fetch, unpack, compile) tells the one who waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Stage = Literal["fetch", "unpack", "configure", "compile", "note"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One report. A ``note`` is a sentence that the user must see; the others are progress.

    ``done`` and ``total`` count bytes (``fetch``), files (``unpack``) or ninja's steps
    (``compile``); ``total`` is ``None`` while unknown.
    """

    stage: Stage
    done: int = 0
    total: int | None = None
    text: str = ""


OnProgress = Callable[[Step], None]


def note(on_progress: OnProgress, text: str) -> None:
    """Report a sentence that the user must see."""
    on_progress(Step(stage="note", text=text))


def ignore(_: Step) -> None:
    """For callers that do not show progress."""
