"""``llama-ai logs``: what the engine said."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli.stop import NameArgument

if TYPE_CHECKING:
    from pathlib import Path

FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="go on as the log grows")]
LinesOption = Annotated[
    int, typer.Option("--lines", "-n", metavar="N", min=0, help="how many lines from the end")
]


def logs(name: NameArgument = None, follow: FollowOption = False, lines: LinesOption = 100) -> None:
    """Print the engine's log of the running instance, or of the last one that ran."""
    from llama_ai.supervisor.tail import follow as follow_log
    from llama_ai.supervisor.tail import last_lines

    path = _log_path(name)
    for block in follow_log(path, lines) if follow else [last_lines(path, lines)]:
        sys.stdout.buffer.write(block)
        sys.stdout.buffer.flush()


def _log_path(name: str | None) -> Path:
    from pathlib import Path

    from llama_ai.errors import LlamaAiError, UsageError
    from llama_ai.supervisor.state import default_log_path, instances

    records = [record for record in instances() if name is None or record.name == name]
    if len(records) > 1:
        names = ", ".join(record.name for record in records)
        raise UsageError(f"several instances run: {names}", hint="name one")
    if records and records[0].log_path is not None:
        path = Path(records[0].log_path)
    elif name is not None:
        path = default_log_path(name)
    else:
        kept = sorted(default_log_path("x").parent.glob("*.log"), key=_age)
        if not kept:
            raise LlamaAiError("no log yet", hint="`llama-ai serve MODEL` starts a server")
        path = kept[-1]
    if not path.is_file():
        raise LlamaAiError(f"there is no log {path}", hint="`llama-ai status` lists what runs")
    return path


def _age(path: Path) -> float:
    return path.stat().st_mtime
