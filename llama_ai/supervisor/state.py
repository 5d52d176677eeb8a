"""What an instance is and how others see it: states, events, and the instance files.

Each running instance has one JSON file in :func:`llama_ai.paths.runtime_dir`, written by its
supervisor alone, whole or not at all. It holds no secret. A file whose supervisor is gone is
stale: if its engine is gone too it is removed by whoever sees it; if the engine still runs, the
engine is an orphan, which is named, never adopted, and ended by ``llama-ai stop``.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Self

from llama_ai import paths
from llama_ai.errors import AlreadyRunningError, UsageError
from llama_ai.supervisor.identity import is_alive, start_id
from llama_ai.supervisor.notify import Patience

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class State(StrEnum):
    """Where an instance is in its life. Only the supervisor's loop changes it."""

    STOPPED = "stopped"
    """No process; the end of every orderly stop. No file has this state."""
    BUILDING = "building"
    """Claimed by a supervisor that still prepares (plans, builds the engine); no engine process."""
    LOADING = "loading"
    """The engine's process runs and its model is not loaded: ``/health`` refuses or says 503."""
    READY = "ready"
    """``/health`` says 200 and, as far as can be seen, work makes progress."""
    DEGRADED = "degraded"
    """Was ready; now ``/health`` fails or work stands still, not yet for long enough to restart."""
    RESTARTING = "restarting"
    """The engine ended or was ended because of a failure; waiting for the back-off's delay."""
    FAILED = "failed"
    """Given up; the supervisor ends. The file stays so that ``status`` can tell the reason."""
    STOPPING = "stopping"
    """Asked to stop; the engine's process group is being ended."""


ORPHANED = "orphaned"
"""What ``status`` shows for an engine whose supervisor died; never written by a supervisor."""


@dataclass(frozen=True, kw_only=True)
class LastFailure:
    """The most recent failure: its kind, one line about it, and when (ISO 8601, UTC)."""

    kind: str
    message: str
    at: str


@dataclass(frozen=True, kw_only=True)
class InstanceRecord:
    """The content of an instance file.

    ``pid`` and ``pid_start`` identify the supervisor, ``engine_pid`` and ``engine_start`` the
    engine (``None`` while there is none). ``restarts`` counts starts after the first. ``profile``
    is whatever summary the planner gave, ``detail`` a line about the present state.
    """

    name: str
    state: State
    pid: int
    pid_start: str | None
    host: str
    port: int
    url: str
    started_at: str
    model: str | None = None
    profile: Mapping[str, Any] | None = None
    log_path: str | None = None
    engine_pid: int | None = None
    engine_start: str | None = None
    restarts: int = 0
    last_failure: LastFailure | None = None
    detail: str | None = None

    @property
    def supervised(self) -> bool:
        """Whether its supervisor lives and has not given up."""
        return self.state is not State.FAILED and is_alive(self.pid, self.pid_start)

    @property
    def engine_alive(self) -> bool:
        """Whether its engine lives."""
        return is_alive(self.engine_pid, self.engine_start)

    @property
    def orphaned(self) -> bool:
        """Whether the engine lives without its supervisor."""
        return self.engine_alive and not self.supervised


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that the user may want to see.

    ``kind`` is ``state`` (the state changed), ``note`` or ``warning``; ``message`` is one line.
    """

    kind: Literal["state", "note", "warning"]
    state: State
    message: str
    record: InstanceRecord


def default_name(port: int) -> str:
    """An instance without a name of its own is called by its port."""
    return str(port)


def default_log_path(name: str) -> Path:
    """Where the engine's output of instance ``name`` goes; rotated files stand beside it."""
    return paths.state_dir() / "logs" / f"{_checked(name)}.log"


def record_path(name: str) -> Path:
    """The instance file of ``name``."""
    return paths.runtime_dir() / f"{_checked(name)}.json"


def now_text() -> str:
    """The present time as ISO 8601 in UTC, whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_record(record: InstanceRecord) -> None:
    """Write the instance file atomically. Errors are :class:`OSError`."""
    path = record_path(record.name)
    paths.write_atomic(path, (json.dumps(asdict(record), indent=1) + "\n").encode())


def read_record(path: Path) -> InstanceRecord | None:
    """Parse an instance file; ``None`` when it is gone or is not one of ours."""
    try:
        data = json.loads(path.read_bytes())
        failure = data.get("last_failure")
        known = {entry.name for entry in fields(InstanceRecord)}
        values = {key: value for key, value in data.items() if key in known}
        values["state"] = State(values["state"])
        values["last_failure"] = LastFailure(**failure) if failure else None
        return InstanceRecord(**values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def instances() -> list[InstanceRecord]:
    """All instances that still mean something, by name: supervised, orphaned, or failed.

    Stale files (supervisor and engine gone without having said ``failed``) are removed on the way.
    """
    found = []
    try:
        files = sorted(paths.runtime_dir().glob("*.json"))
    except OSError:
        return []
    for path in files:
        record = read_record(path)
        if record is None or path.stem != record.name:
            continue
        if record.supervised or record.engine_alive or record.state is State.FAILED:
            found.append(record)
        else:
            path.unlink(missing_ok=True)
    return found


def describe(record: InstanceRecord) -> str:
    """A few words that tell a user which process holds something."""
    if record.orphaned:
        return (
            f"the engine (pid {record.engine_pid}) of instance '{record.name}', "
            "whose supervisor died"
        )
    return f"llama-ai instance '{record.name}' (pid {record.pid}, {record.model or 'no model'})"


class Claim:
    """The right to run instance ``name`` on ``port``, held until closed or until the process ends.

    It is an exclusive lock on a file each for the name and for the port, which the kernel releases
    even after ``kill -9``, and the instance file. Use it as a context manager.
    """

    def __init__(self, record: InstanceRecord, locks: list[int]) -> None:
        self.record = record
        self._locks = locks
        self._keep = False
        self._patience = Patience("building: preparing the engine")
        self.write_error: OSError | None = None

    def update(self, **changes: Any) -> InstanceRecord:
        """Change fields of the record and rewrite the file.

        A file that cannot be written (full disk) stops nothing: ``write_error`` holds the problem
        until a later write succeeds.
        """
        self.record = replace(self.record, **changes)
        self._keep = self.record.state is State.FAILED
        if self.record.state is not State.BUILDING:
            self._patience.close()
        try:
            write_record(self.record)
            self.write_error = None
        except OSError as error:
            self.write_error = error
        return self.record

    def close(self) -> None:
        """Give the claim up: the file goes, unless it failed or its engine still lives."""
        self._patience.close()
        if not self._keep and not self.record.engine_alive:
            record_path(self.record.name).unlink(missing_ok=True)
        for lock in self._locks:
            os.close(lock)
        self._locks = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claim(
    *,
    name: str,
    host: str,
    port: int,
    url: str,
    model: str | None = None,
    profile: Mapping[str, Any] | None = None,
    log_path: Path | None = None,
) -> Claim:
    """Claim ``name`` and ``port`` for this process and write the instance file (state building).

    Raises :class:`~llama_ai.errors.AlreadyRunningError` naming the holder: a living instance of
    that name or port, or the orphaned engine of an earlier one.
    """
    directory = paths.private(paths.runtime_dir())
    locks: list[int] = []
    try:
        for key in (f"name-{_checked(name)}", f"port-{port}"):
            lock = os.open(directory / f"{key}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            locks.append(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _taken(name, port) from None
        _refuse_living(name, port)
        record = InstanceRecord(
            name=name,
            state=State.BUILDING,
            pid=os.getpid(),
            pid_start=start_id(os.getpid()),
            host=host,
            port=port,
            url=url,
            model=model,
            profile=profile,
            log_path=None if log_path is None else str(log_path),
            started_at=now_text(),
        )
        held = Claim(record, locks)
        held.update()
    except BaseException:
        for lock in locks:
            os.close(lock)
        raise
    return held


def _refuse_living(name: str, port: int) -> None:
    found = read_record(record_path(name))
    if found is not None and (found.supervised or found.engine_alive):
        raise _taken(name, port)


def _taken(name: str, port: int) -> AlreadyRunningError:
    for record in instances():
        if record.name == name or record.port == port:
            return AlreadyRunningError(
                f"{describe(record)} already runs on {record.url}",
                hint=f"run `llama-ai stop {record.name}` first, or choose another --port",
            )
    return AlreadyRunningError(
        f"another llama-ai is just starting on port {port}",
        hint="wait for it, or choose another --port",
    )


def _checked(name: str) -> str:
    if not name or len(name) > 64 or name[0] in ".-" or not set(name) <= _NAME:
        raise UsageError(
            f"{name!r} is not a name for an instance",
            hint="use up to 64 letters, digits, dots, dashes and underscores",
        )
    return name


_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
