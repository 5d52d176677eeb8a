"""Read a log file from its end, and go on as it grows and rotates."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 1 << 16


def last_lines(path: Path, count: int) -> bytes:
    """The last ``count`` lines of the file, with their ends. Errors are :class:`OSError`."""
    with path.open("rb") as stream:
        end = stream.seek(0, os.SEEK_END)
        return _last_lines(stream.fileno(), end, count)


def follow(path: Path, count: int, *, interval_s: float = 0.2) -> Iterator[bytes]:
    """The last ``count`` lines, then whatever is added, for ever.

    When the file is rotated, the rest of the old one and then the new one are read.
    """
    stream = path.open("rb")
    try:
        end = stream.seek(0, os.SEEK_END)
        yield _last_lines(stream.fileno(), end, count)
        while True:
            if block := stream.read(_BLOCK):
                yield block
                continue
            try:
                now = path.stat()
            except FileNotFoundError:
                now = None
            if now is not None and now.st_ino != os.fstat(stream.fileno()).st_ino:
                if block := stream.read():
                    yield block
                stream.close()
                stream = path.open("rb")
                continue
            time.sleep(interval_s)
    finally:
        stream.close()


def _last_lines(handle: int, end: int, count: int) -> bytes:
    if count == 0:
        return b""
    start, tail = end, b""
    # One end of line more than lines: the one before the first that is wanted.
    while start > 0 and tail.count(b"\n") <= count:
        size = min(_BLOCK, start)
        start -= size
        tail = os.pread(handle, size, start) + tail
    lines = tail.splitlines(keepends=True)
    return b"".join(lines[-count:])
