"""End an instance from outside: ask its supervisor, or end an engine whose supervisor died."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from enum import StrEnum

from llama_ai.errors import LlamaAiError
from llama_ai.supervisor.identity import is_alive
from llama_ai.supervisor.state import InstanceRecord, read_record, record_path

ORPHAN_GRACE_S = 8.0


class Outcome(StrEnum):
    """What became of an instance that was to be stopped."""

    STOPPED = "stopped"
    """Its supervisor was asked and has ended."""
    ORPHAN_ENDED = "orphan ended"
    """Its supervisor was gone already; the engine was ended."""
    FORGOTTEN = "forgotten"
    """Nothing ran any more; the record of its failure was removed."""


def stop_instance(record: InstanceRecord, *, timeout_s: float = 15.0) -> Outcome:
    """Stop what ``record`` describes and wait for its end.

    Only processes whose pid **and** start time match the record are touched. Raises
    :class:`~llama_ai.errors.LlamaAiError` when the end does not come within ``timeout_s``.
    """
    if record.supervised:
        _signal(record.pid, record.pid_start, signal.SIGTERM)
        if not _wait_for_end(record.pid, record.pid_start, timeout_s):
            raise LlamaAiError(
                f"the supervisor of '{record.name}' (pid {record.pid}) did not end within "
                f"{timeout_s:g} s",
                hint=f"kill it with `kill -9 {record.pid}`, then run "
                f"`llama-ai stop {record.name}` again to end its engine",
            )
        # Somebody may have killed the supervisor before it could end the engine.
        left = read_record(record_path(record.name))
        if left is not None and left.orphaned and left.engine_pid is not None:
            _end_orphan(left.engine_pid, left.engine_start, record.name)
        _remove(record)
        return Outcome.STOPPED
    if record.engine_alive and record.engine_pid is not None:
        _end_orphan(record.engine_pid, record.engine_start, record.name)
        _remove(record)
        return Outcome.ORPHAN_ENDED
    _remove(record)
    return Outcome.FORGOTTEN


def _end_orphan(pid: int, start: str | None, name: str) -> None:
    for number, patience_s in ((signal.SIGTERM, ORPHAN_GRACE_S), (signal.SIGKILL, 5.0)):
        _signal(pid, start, number, group=True)
        if _wait_for_end(pid, start, patience_s):
            return
    raise LlamaAiError(f"the engine of '{name}' (pid {pid}) does not end even after SIGKILL")


def _signal(pid: int, start: str | None, number: signal.Signals, *, group: bool = False) -> None:
    with contextlib.suppress(ProcessLookupError):
        if not hasattr(os, "pidfd_open"):  # pragma: no cover - not Linux
            if is_alive(pid, start):
                os.kill(pid, number)
            return
        # The descriptor names one process for good: checked after it was opened, it cannot come to
        # mean another one before the signal is sent.
        handle = os.pidfd_open(pid)
        try:
            if is_alive(pid, start):
                if group and os.getpgid(pid) == pid:
                    os.killpg(pid, number)
                else:
                    signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _wait_for_end(pid: int, start: str | None, timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while is_alive(pid, start):
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(0.02)
    return True


def _remove(record: InstanceRecord) -> None:
    """Remove the instance file if it is still that instance's."""
    path = record_path(record.name)
    found = read_record(path)
    if found is not None and (found.pid, found.pid_start) == (record.pid, record.pid_start):
        path.unlink(missing_ok=True)
