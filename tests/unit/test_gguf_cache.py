"""Remembered headers: the same answer, and never a stale or foreign one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai.gguf import cache
from llama_ai.gguf.cache import read_header_cached
from llama_ai.gguf.header import Header, read_header
from tests.support.gguf_files import ARR, F32, STR, File, llama, llama_kv
from tests.unit.test_gguf_header import split


def model(path: Path, name: str = "one") -> Path:
    more: dict[str, tuple[int, object]] = {
        "general.name": (STR, name),
        "long": (ARR, (F32, [0.5] * 3000)),
        "short": (ARR, (STR, ["a", "b"])),
    }
    return replace(llama(), kv=llama_kv(more=more)).write(path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The models that were really read."""
    seen: list[Path] = []

    def counted(path: Path) -> Header:
        seen.append(path)
        return read_header(path)

    monkeypatch.setattr(cache, "read_header", counted)
    return seen


def test_the_second_answer_is_the_same_without_reading(tmp_path: Path, reads: list[Path]) -> None:
    path = model(tmp_path / "m.gguf")
    first = read_header_cached(path, tmp_path / "cache")
    assert read_header_cached(path, tmp_path / "cache") == first == read_header(path)
    assert len(reads) == 1


def test_a_split_model(tmp_path: Path, reads: list[Path]) -> None:
    paths = split(tmp_path)
    folder = tmp_path / "cache"
    first = read_header_cached(paths[1], folder)
    assert read_header_cached(paths[1], folder) == first
    assert len(reads) == 1
    os.utime(paths[2], ns=(1, 1))
    assert read_header_cached(paths[1], folder).shards[2].mtime_ns == 1
    assert len(reads) == 2


@pytest.mark.parametrize("change", ["content", "time"])
def test_a_changed_file_is_read_again(tmp_path: Path, reads: list[Path], change: str) -> None:
    path = model(tmp_path / "m.gguf")
    read_header_cached(path, tmp_path / "cache")
    if change == "content":
        before = path.stat()
        model(path, "another" * 9)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(path, ns=(5, 5))
    header = read_header_cached(path, tmp_path / "cache")
    assert header.kv["general.name"] == ("another" * 9 if change == "content" else "one")
    assert len(reads) == 2


@pytest.mark.parametrize(
    "junk",
    [b"", b"{", b"null", b"[]", b'{"format":1}', b"\xff\xfe", b"[" * 100_000, b'{"format":0}'],
)
def test_a_corrupt_entry_is_ignored_and_replaced(
    tmp_path: Path, reads: list[Path], junk: bytes
) -> None:
    path = model(tmp_path / "m.gguf")
    folder = tmp_path / "cache"
    first = read_header_cached(path, folder)
    (entry,) = folder.iterdir()
    entry.write_bytes(junk)
    assert read_header_cached(path, folder) == first
    assert read_header_cached(path, folder) == first
    assert len(reads) == 2


def test_an_entry_of_another_model_is_ignored(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    one, two = model(tmp_path / "one.gguf", "one"), model(tmp_path / "two.gguf", "two")
    read_header_cached(one, folder)
    (entry,) = folder.iterdir()
    stolen = entry.read_bytes()
    read_header_cached(two, folder)
    (other,) = set(folder.iterdir()) - {entry}
    other.write_bytes(stolen)
    assert read_header_cached(two, folder).kv["general.name"] == "two"


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    path = model(tmp_path / "m.gguf")
    (tmp_path / "file").write_text("")
    assert read_header_cached(path, tmp_path / "file" / "cache") == read_header(path)


def test_the_cache_does_not_grow_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MAX_ENTRIES", 3)
    folder = tmp_path / "cache"
    for number in range(6):
        path = File(kv=llama_kv()).write(tmp_path / f"{number}.gguf")
        read_header_cached(path, folder)
    assert len(list(folder.iterdir())) == 3
