"""Draining, ring, rotation, redaction, and reading a log from outside."""

from __future__ import annotations

import os
import re
import threading
from typing import TYPE_CHECKING

import pytest

from llama_ai.supervisor.failures import Kind, Match
from llama_ai.supervisor.logs import LogFile, LogSink
from llama_ai.supervisor.tail import follow, last_lines

if TYPE_CHECKING:
    from pathlib import Path


def feed(sink: LogSink, *blocks: bytes) -> None:
    """Write through a real pipe, and wait until all has been read."""
    read_end, write_end = os.pipe()
    reader = sink.attach(read_end)
    for block in blocks:
        left = memoryview(block)
        while left:
            left = left[os.write(write_end, left) :]
    os.close(write_end)
    reader.detach(timeout_s=30)


def test_lines_reach_the_ring_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.log"
    sink = LogSink(path, ring_lines=2)
    feed(sink, b"one\ntw", b"o\nthree\nfour without an end")
    sink.close()
    assert path.read_bytes() == b"one\ntwo\nthree\nfour without an end\n"
    assert sink.tail(5) == ["three", "four without an end"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_secrets_never_reach_ring_or_file_even_when_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    sink = LogSink(path, secrets=["s3cret-key"])
    # The second line is longer than what is waited for, so it is cut, wherever that may be.
    feed(sink, b"key s3cr", b"et-key used\n", (b"x" * 7 + b"s3cret-key") * 30_000 + b"\n")
    sink.close()
    content = path.read_bytes()
    assert b"s3cret-key" not in content
    assert content.startswith(b"key [redacted] used\n")
    joined = content.replace(b"\n", b"")
    assert b"s3cret-key" not in joined
    assert joined.count(b"[redacted]") == 30_001
    assert joined.count(b"x") == 7 * 30_000
    assert not any("s3cret-key" in line for line in sink.tail(99))


def test_needles_are_reported_from_a_flood(tmp_path: Path) -> None:
    found: list[Match] = []
    sink = LogSink(tmp_path / "a.log", on_match=found.append)
    noise = (b"n" * 80 + b"\n") * 5000
    feed(sink, noise, b"ggml_vulkan: device lost on Vulkan0\n", noise)
    sink.close()
    assert [match.needle.kind for match in found] == [Kind.DEVICE_LOST]


def test_files_rotate_by_size_and_old_ones_go(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "a.log", max_bytes=100, keep=2)
    for number in range(20):
        assert log.write(f"{number:02d} {'x' * 40}\n".encode())
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert (tmp_path / "a.log").read_bytes().startswith(b"18 ")
    assert (tmp_path / "a.log.1").read_bytes().startswith(b"16 ")


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    full = tmp_path / "full.log"
    full.symlink_to("/dev/full")  # every write says ENOSPC
    sink = LogSink(full)
    feed(sink, b"one\ntwo\n")
    sink.close()
    assert sink.error is not None
    assert sink.tail(9) == ["one", "two"]
    assert sink.lost_lines == 2


def test_a_removed_file_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = LogFile(path, max_bytes=1000, keep=1)
    log.write(b"one\n")
    path.unlink()
    log.write(b"two\n")
    log.close()
    assert path.read_bytes() == b"two\n"


def test_a_slow_file_loses_lines_and_the_writer_of_the_pipe_never_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    written: list[bytes] = []

    def slow_write(self: LogFile, block: bytes) -> bool:
        gate.wait(60)
        written.append(block)
        return True

    monkeypatch.setattr(LogFile, "write", slow_write)
    sink = LogSink(tmp_path / "a.log", queue_bytes=1 << 18)
    line = b"l" * 99 + b"\n"
    # While the file is stuck, ten times what the pipe and the queue could hold goes through.
    feed(sink, line * 100_000)
    assert sink.lost_lines > 50_000
    assert sink.tail(1) == ["l" * 99]
    gate.set()
    sink.close(timeout_s=30)
    said = b"".join(written)
    told = sum(int(count) for count in re.findall(rb"(\d+) lines were lost here", said))
    assert told == sink.lost_lines
    assert said.count(line) + sink.lost_lines == 100_000


def test_a_pipe_held_by_somebody_else_does_not_hold_us(tmp_path: Path) -> None:
    sink = LogSink(tmp_path / "a.log")
    read_end, write_end = os.pipe()
    reader = sink.attach(read_end)
    os.write(write_end, b"said\n")
    reader.detach(timeout_s=0.05)
    assert not reader.alive
    with pytest.raises(BrokenPipeError):
        os.write(write_end, b"more\n")
    os.close(write_end)
    sink.close()
    assert sink.tail(9) == ["said"]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 50])
def test_last_lines(tmp_path: Path, count: int) -> None:
    path = tmp_path / "a.log"
    lines = [b"first\n", b"x" * 200_000 + b"\n", b"last without an end"]
    path.write_bytes(b"".join(lines))
    assert last_lines(path, count) == b"".join(lines[-count:] if count else [])


def test_following_goes_on_after_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\n")
    blocks = follow(path, 1, interval_s=0.01)
    assert next(blocks) == b"two\n"
    with path.open("ab") as stream:
        stream.write(b"three\n")
    assert next(blocks) == b"three\n"
    with path.open("ab") as stream:
        stream.write(b"four\n")
    path.rename(tmp_path / "a.log.1")
    path.write_bytes(b"five\n")
    assert next(blocks) == b"four\n"
    assert next(blocks) == b"five\n"
