"""``llama-ai status``: what runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption

if TYPE_CHECKING:
    from llama_ai.supervisor.state import InstanceRecord


def status(json: JsonOption = False) -> None:
    """Show the running instances. Exit code 0 when one runs, 1 when none does."""
    from llama_ai.supervisor.state import instances

    records = instances()
    if json:
        output.print_json("status", {"instances": [as_json(record) for record in records]})
    elif not records:
        output.line("nothing is running")
    else:
        _show(records)
    if not any(record.supervised for record in records):
        raise typer.Exit(1)


def as_json(record: InstanceRecord) -> dict[str, Any]:
    """One entry of ``status --json``. ``pid`` is null when the supervisor is gone."""
    from dataclasses import asdict

    failure = record.last_failure
    return {
        "name": record.name,
        "state": _state(record),
        "pid": record.pid if record.supervised else None,
        "engine_pid": record.engine_pid if record.engine_alive else None,
        "url": record.url,
        "model": record.model,
        "profile": _shown_profile(record),
        "restarts": record.restarts,
        "last_failure": None if failure is None else asdict(failure),
        "started_at": record.started_at,
        "detail": record.detail,
        "log_path": record.log_path,
    }


def _shown_profile(record: InstanceRecord) -> dict[str, Any] | None:
    """Name and summary (a router's models too); the whole plan is for the monitor."""
    if record.profile is None:
        return None
    shown = {key: record.profile.get(key) for key in ("name", "summary")}
    if "models" in record.profile:
        shown["models"] = record.profile["models"]
    return shown


def _show(records: list[InstanceRecord]) -> None:
    output.table(
        ("NAME", "STATE", "PID", "ENGINE", "URL", "MODEL", "RESTARTS", "STARTED"),
        [
            (
                record.name,
                _state(record),
                str(record.pid) if record.supervised else "-",
                str(record.engine_pid) if record.engine_alive else "-",
                record.url,
                (record.model or "-").rpartition("/")[2],
                str(record.restarts),
                record.started_at,
            )
            for record in records
        ],
        right=frozenset({2, 3, 6}),
    )
    for record in records:
        _show_models(record)
        if record.last_failure is not None:
            failure = record.last_failure
            output.line(f"{record.name}: last failure {failure.at}: {failure.message}")
        if record.orphaned:
            output.line(
                f"{record.name}: the engine (pid {record.engine_pid}) lost its supervisor; "
                f"`llama-ai stop {record.name}` ends it"
            )


def _show_models(record: InstanceRecord) -> None:
    """The models of a router, each with its plan or the reason why it is refused."""
    for model in (record.profile or {}).get("models") or ():
        what = model.get("summary") or f"refused: {model.get('why_not')}"
        output.line(f"  {model.get('name')}: {what}")


def _state(record: InstanceRecord) -> str:
    from llama_ai.supervisor.state import ORPHANED

    return ORPHANED if record.orphaned else record.state.value
