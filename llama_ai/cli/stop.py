"""``llama-ai stop``: end a running instance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli import output

if TYPE_CHECKING:
    from llama_ai.supervisor.state import InstanceRecord

NameArgument = Annotated[
    str | None, typer.Argument(metavar="[NAME]", help="the instance, as `status` calls it")
]
AllOption = Annotated[bool, typer.Option("--all", help="stop every instance")]


def stop(name: NameArgument = None, every: AllOption = False) -> None:
    """Stop an instance and wait for its end (15 s at most).

    Ends an engine whose supervisor died, too. Exit code 0 when stopped, 1 when nothing runs.
    """
    from llama_ai.supervisor.stopping import Outcome, stop_instance

    texts = {
        Outcome.STOPPED: "stopped",
        Outcome.ORPHAN_ENDED: "its supervisor was gone; the engine was ended",
        Outcome.FORGOTTEN: "was not running any more; its failure is forgotten",
    }
    for record in _chosen(name, every):
        output.line(f"{record.name}: {texts[stop_instance(record)]}")


def _chosen(name: str | None, every: bool) -> list[InstanceRecord]:
    from llama_ai.errors import LlamaAiError, UsageError
    from llama_ai.supervisor.state import instances

    records = instances()
    if name is not None and every:
        raise UsageError("NAME and --all exclude each other")
    if every:
        return records
    if name is not None:
        records = [record for record in records if record.name == name]
        if not records:
            raise LlamaAiError(
                f"no instance '{name}' is running", hint="`llama-ai status` lists what runs"
            )
        return records
    # A failed instance is only a note: it must not be in the way of the one that runs.
    running = [record for record in records if record.supervised or record.orphaned]
    if len(running) > 1:
        names = ", ".join(record.name for record in running)
        raise UsageError(f"several instances run: {names}", hint="name one, or use --all")
    chosen = running or records
    if not chosen:
        raise LlamaAiError("nothing is running", hint="`llama-ai serve MODEL` starts a server")
    return chosen
