"""Is the port free, and if not, who holds it?"""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.errors import AlreadyRunningError, UsageError
from llama_ai.supervisor.identity import PROC, name_of
from llama_ai.supervisor.state import describe, instances

if TYPE_CHECKING:
    from collections.abc import Iterator

_LISTEN = "0A"


def check_port_free(host: str, port: int, *, proc: Path = PROC) -> None:
    """Return when ``host``:``port`` can be bound; raise otherwise.

    Raises :class:`~llama_ai.errors.AlreadyRunningError` naming the holder as far as it can be
    known, and :class:`~llama_ai.errors.UsageError` for an address that this machine does not have.
    """
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, OverflowError) as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error}") from error
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as probe:
        # As the engine does: connections in TIME_WAIT do not count, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise in_use(host, port, proc=proc) from error
            hint = None
            if error.errno == errno.EACCES:
                hint = "ports below 1024 need privileges; choose a higher --port"
            raise UsageError(
                f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}", hint=hint
            ) from error


def in_use(host: str, port: int, *, proc: Path = PROC) -> AlreadyRunningError:
    """The error for a port that somebody holds, naming the holder."""
    for record in instances():
        if record.port == port and (record.supervised or record.engine_alive):
            return AlreadyRunningError(
                f"port {port} is held by {describe(record)}",
                hint=f"run `llama-ai stop {record.name}` first, or choose another --port",
            )
    holder = listener(port, proc=proc)
    who = "another program"
    if holder is not None:
        who = f"{name_of(holder, proc) or 'a program'} (pid {holder})"
    return AlreadyRunningError(
        f"port {port} on {host} is already used by {who}", hint="choose another --port, or stop it"
    )


def listener(port: int, *, first: int | None = None, proc: Path = PROC) -> int | None:
    """The pid that listens on TCP ``port``; ``None`` when nobody does or it cannot be seen.

    Only the processes of this user can be looked into without privileges. ``first`` is looked at
    before all others: the likely answer, found at once.
    """
    inodes = {f"socket:[{inode}]" for inode in _listening(port, proc)}
    if not inodes:
        return None
    if first is not None and _holds(proc / str(first), inodes):
        return first
    for entry in proc.iterdir():
        if entry.name.isdigit() and _holds(entry, inodes):
            return int(entry.name)
    return None


def listens(group: int, port: int, *, proc: Path = PROC) -> bool | None:
    """Whether it is a process of ``group`` that listens on ``port``; ``None``: it cannot be seen.

    The group and not only its leader, because ``--engine`` may name a script that starts one.
    """
    holder = listener(port, first=group, proc=proc)
    if holder is None:
        return None
    try:
        return os.getpgid(holder) == group
    except ProcessLookupError:
        return None


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(
            str(Path.readlink(descriptor)) in inodes for descriptor in (process / "fd").iterdir()
        )
    except OSError:
        return False


def _listening(port: int, proc: Path) -> Iterator[str]:
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if len(fields) > 9 and fields[3] == _LISTEN:
                _, _, local_port = fields[1].rpartition(":")
                if int(local_port, 16) == port:
                    yield fields[9]
