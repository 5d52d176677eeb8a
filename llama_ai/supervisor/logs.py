"""The engine's output: drained at once, kept in a ring, written to a file that rotates by size.

Two threads, so that neither a slow disk nor a busy loop can stall the engine: one empties the pipe
into memory and looks for needles, the other writes. When the writer falls behind, lines are lost
and counted; the engine never waits.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from llama_ai.supervisor.failures import Match, scan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from io import FileIO
    from pathlib import Path

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 16
_REDACTED = b"[redacted]"
_RETRY_S = 5.0


class LogFile:
    """A file that is moved aside (``.1``, ``.2`` …) when it exceeds ``max_bytes``.

    Used by one thread. A file that cannot be written is tried again every few seconds.
    """

    def __init__(self, path: Path, *, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._stream: FileIO | None = None
        self._size = 0
        self._retry_at_s = float("-inf")
        self.error: OSError | None = None

    def write(self, block: bytes) -> bool:
        """Append whole lines; ``False`` when they could not be written (``error`` tells why)."""
        if self.error is not None and time.monotonic() < self._retry_at_s:
            return False
        try:
            stream = self._open()
            if self._size and self._size + len(block) > self._max_bytes:
                stream = self._rotate()
            left = memoryview(block)
            while left:
                written = stream.write(left) or 0
                self._size += written
                left = left[written:]
            self.error = None
        except OSError as error:
            self.error = error
            self._retry_at_s = time.monotonic() + _RETRY_S
            self.close()
            return False
        return True

    def close(self) -> None:
        """Close the file; a later write opens it again."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _open(self) -> FileIO:
        if self._stream is not None and os.fstat(self._stream.fileno()).st_nlink == 0:
            self.close()  # somebody removed the file: write where it can be read
        if self._stream is None:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
            self._stream = os.fdopen(handle, "ab", buffering=0)
            self._size = os.fstat(handle).st_size
        return self._stream

    def _rotate(self) -> FileIO:
        self.close()
        for number in range(self._keep, 0, -1):
            source = self._numbered(number - 1)
            if source.exists():
                source.replace(self._numbered(number))
        return self._open()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


class LogSink:
    """Takes output from one engine after another; lives as long as the supervisor.

    ``secrets`` never reach the ring or the file. ``on_match`` (with each needle that is found) and
    ``on_block`` (with whole lines) are called from the reading thread.
    """

    def __init__(
        self,
        path: Path,
        *,
        secrets: Sequence[str] = (),
        on_match: Callable[[Match], None] | None = None,
        on_block: Callable[[bytes], None] | None = None,
        ring_lines: int = 2000,
        max_bytes: int = 10 << 20,
        keep: int = 3,
        queue_bytes: int = 8 << 20,
    ) -> None:
        self._secrets = tuple(secret.encode() for secret in secrets if secret)
        self._on_match = on_match
        self._on_block = on_block
        self._file = LogFile(path, max_bytes=max_bytes, keep=keep)
        self._ring: deque[bytes] = deque(maxlen=ring_lines)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._queue_limit = queue_bytes
        self._lost_unsaid = 0
        self._wake = threading.Condition()
        self._closing = False
        self._readers: list[_Reader] = []
        self.lost_lines = 0
        self._writer = threading.Thread(target=self._write_all, name="log-writer", daemon=True)
        self._writer.start()

    @property
    def error(self) -> OSError | None:
        """Why the file cannot be written at present."""
        return self._file.error

    def attach(self, pipe: int) -> _Reader:
        """Drain ``pipe`` (owned from now on) until its end or until the reader is detached."""
        reader = _Reader(pipe, self._take, self._redact)
        self._readers = [*(old for old in self._readers if old.alive), reader]
        return reader

    def say(self, text: str) -> None:
        """A line of our own among the engine's."""
        self._keep(f"--- llama-ai: {text}\n".encode())

    def tail(self, count: int) -> list[str]:
        """The last ``count`` lines."""
        with self._wake:
            lines = list(self._ring)[-count:] if count else []
        return [line.decode("utf-8", "replace") for line in lines]

    def close(self, timeout_s: float = 1.0) -> None:
        """Detach readers, write what is queued, close the file. Never waits longer than told."""
        for reader in self._readers:
            reader.detach(timeout_s=0)
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._writer.join(timeout_s)

    def _take(self, block: bytes) -> None:
        self._keep(block)
        if self._on_match is not None:
            for match in scan(block):
                self._on_match(match)
        if self._on_block is not None:
            self._on_block(block)

    def _keep(self, block: bytes) -> None:
        block = self._redact(block)
        lines = block.splitlines()
        with self._wake:
            self._ring.extend(lines)
            if self._queued_bytes + len(block) > self._queue_limit:
                self._lose(len(lines))
            else:
                self._queue.append(block)
                self._queued_bytes += len(block)
                self._wake.notify()

    def _redact(self, block: bytes) -> bytes:
        for secret in self._secrets:
            block = block.replace(secret, _REDACTED)
        return block

    def _lose(self, count: int) -> None:
        self.lost_lines += count
        self._lost_unsaid += count

    def _write_all(self) -> None:
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue and not self._lost_unsaid:
                    break
                closing = self._closing
                blocks = list(self._queue)
                self._queue.clear()
                self._queued_bytes = 0
                lost, self._lost_unsaid = self._lost_unsaid, 0
            for block in blocks:
                if not self._file.write(block):
                    lost += block.count(b"\n")
                    with self._wake:
                        self.lost_lines += block.count(b"\n")
            if lost and not self._file.write(
                f"--- llama-ai: {lost} lines were lost here: the log could not keep up\n".encode()
            ):
                if closing:
                    break
                with self._wake:
                    self._lost_unsaid += lost
        self._file.close()


class _Reader:
    """The thread that empties one pipe."""

    def __init__(
        self, pipe: int, take: Callable[[bytes], None], redact: Callable[[bytes], bytes]
    ) -> None:
        self._pipe = pipe
        self._redact = redact
        self._take = take
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="log-reader", daemon=True)
        self._detached = False
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it still reads."""
        return self._thread.is_alive()

    def detach(self, *, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the pipe's end, then stop reading whatever holds it open."""
        self._thread.join(timeout_s)
        if not self._detached:
            self._detached = True
            os.close(self._wake_write)
        self._thread.join(1.0)

    def _run(self) -> None:
        os.set_blocking(self._pipe, False)
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        rest = b""
        try:
            while True:
                detached = any(handle == self._wake_read for handle, _ in poll.poll())
                try:
                    chunk = os.read(self._pipe, _CHUNK)
                except BlockingIOError:
                    if detached:
                        break
                    continue
                if not chunk:
                    break
                rest = self._pass_on(rest + chunk)
                if detached:
                    # Somebody still writes: one last pipe's worth is enough.
                    break
        finally:
            if rest:
                self._take(rest + b"\n")
            os.close(self._pipe)
            os.close(self._wake_read)

    def _pass_on(self, block: bytes) -> bytes:
        """Hand over whole lines and return the unfinished one."""
        end = block.rfind(b"\n") + 1
        if end:
            self._take(block[:end])
            block = block[end:]
        if len(block) > _LONGEST_LINE:
            # A line without an end: cut it, but no secret in two. Whole ones go first, and one that
            # is only half here is within the last bytes, which wait.
            block = self._redact(block)
            self._take(block[:-_TAIL] + b"\n")
            block = block[-_TAIL:]
        return block


_TAIL = 4096
