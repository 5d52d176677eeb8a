"""Following a log file over everything that happens to log files."""

from __future__ import annotations

import os
from pathlib import Path

from llama_ai.monitor.logtail import FIRST_BYTES, READ_LIMIT_BYTES, LogTail


def add(path: Path, text: str) -> None:
    with path.open("a") as stream:
        stream.write(text)


def test_the_end_first_then_what_comes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, "one\ntwo\n")
    tail = LogTail(path)
    assert tail.read() == ["one", "two"]
    assert tail.read() == []
    add(path, "three\nfo")
    assert tail.read() == ["three"]
    add(path, "ur\n\n")
    assert tail.read() == ["four"]


def test_of_a_long_file_only_the_end_and_no_half_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, "".join(f"line {number}\n" for number in range(20_000)))
    lines = LogTail(path).read()
    assert lines[-1] == "line 19999"
    assert 0 < sum(map(len, lines)) <= FIRST_BYTES
    assert all(line.startswith("line ") for line in lines)


def test_over_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, "old\n")
    tail = LogTail(path)
    tail.read()
    add(path, "last of the old\n")
    path.rename(tmp_path / "log.1")
    add(path, "first of the new\n")
    assert tail.read() == ["last of the old", "first of the new"]


def test_a_file_that_is_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, "a long first line\n")
    tail = LogTail(path)
    tail.read()
    path.write_text("new\n")
    assert tail.read() == ["new"]


def test_a_file_that_comes_later_and_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.read() == []
    assert "No such file" in (tail.problem or "")
    add(path, "here\n")
    assert tail.read() == ["here"]
    assert not tail.problem
    path.unlink()
    assert tail.read() == []  # the open file is still ours


def test_a_flood_is_skipped_and_said(tmp_path: Path) -> None:
    path = tmp_path / "log"
    add(path, "start\n")
    tail = LogTail(path)
    tail.read()
    add(path, "x" * 99 + "\n" + ("y" * 99 + "\n") * (READ_LIMIT_BYTES // 50))
    lines = tail.read()
    assert "were skipped" in lines[0]
    assert sum(len(line) + 1 for line in lines[1:]) <= READ_LIMIT_BYTES
    assert lines[-1] == "y" * 99
    assert tail.read() == []


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00bad\nfine\n")
    assert LogTail(path).read()[-1] == "fine"


def test_a_pipe_in_its_place_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    tail = LogTail(path)
    assert tail.read() == []
    assert tail.problem is not None
