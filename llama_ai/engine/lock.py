"""One build at a time: a file lock that says who holds it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from llama_ai.engine.events import note

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from llama_ai.engine.events import OnProgress


@contextlib.contextmanager
def exclusive(path: Path, on_progress: OnProgress) -> Iterator[None]:
    """Hold ``path``'s lock; while another process has it, say so once and wait.

    The kernel drops the lock with its holder, so a killed build leaves nothing to clean up.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            note(on_progress, f"another build is running (pid {holder}), waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        os.truncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
