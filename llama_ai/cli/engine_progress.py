"""Shows the engine's steps (fetch, unpack, configure, compile) as they happen, on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from llama_ai.cli import output

if TYPE_CHECKING:
    from llama_ai.engine.events import Step

LABELS = {
    "fetch": "engine source",
    "unpack": "unpacking",
    "configure": "configuring",
    "compile": "building the engine",
}


class EngineProgress:
    """A context manager whose :meth:`show` takes the engine's steps; a new stage, a new line."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._progress: output.Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def show(self, step: Step) -> None:
        """Draw one step; a note becomes a line of its own."""
        if step.stage == "note":
            self._end()
            output.note(f"note: {step.text}")
            return
        if step.stage != self._stage or self._progress is None:
            self._end()
            self._stage = step.stage
            self._progress = output.Progress(LABELS[step.stage])
        self._progress.update(step.done, step.total, step.text)

    def _end(self) -> None:
        if self._progress is not None:
            self._progress.__exit__()
        self._progress = None
