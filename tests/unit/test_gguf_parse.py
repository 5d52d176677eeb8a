"""One file's header: what is read, and what is refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_ai.gguf import parse as parser
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.parse import FileHeader, Skipped, parse
from tests.support.gguf_files import (
    ARR,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STR,
    U8,
    U16,
    U32,
    U64,
    File,
    llama,
    llama_kv,
)


class Bytes:
    """A source in memory that counts what is asked of it."""

    def __init__(self, data: bytes, size_bytes: int | None = None) -> None:
        self.data = data
        self.name = "model.gguf"
        self.size_bytes = len(data) if size_bytes is None else size_bytes
        self.reads: list[tuple[int, int]] = []

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return self.data[offset : offset + length]


def read(file: File) -> FileHeader:
    return parse(Bytes(file.data()))


def refused(file: File | bytes) -> str:
    data = file if isinstance(file, bytes) else file.data()
    with pytest.raises(BadModelFileError) as caught:
        parse(Bytes(data))
    assert caught.value.hint
    return str(caught.value)


SCALARS = {
    "a.u8": (U8, 255),
    "a.i8": (I8, -128),
    "a.u16": (U16, 65535),
    "a.i16": (I16, -32768),
    "a.u32": (U32, 4294967295),
    "a.i32": (I32, -2147483648),
    "a.u64": (U64, 2**64 - 1),
    "a.i64": (I64, -(2**63)),
    "a.f32": (F32, 0.5),
    "a.f64": (F64, 1e300),
    "a.yes": (BOOL, 1),
    "a.no": (BOOL, 0),
    "a.text": (STR, "grüße"),
}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [2, 3])
def test_scalars_of_every_type(order: str, version: int) -> None:
    header = read(File(kv=SCALARS, order=order, version=version))
    assert header.version == version
    assert header.big_endian == (order == ">")
    expected = {key: value for key, (_, value) in SCALARS.items()}
    assert dict(header.kv) == {**expected, "a.yes": True, "a.no": False}
    assert header.kv["a.yes"] is True


def test_short_arrays_are_kept_and_long_ones_skipped_with_their_length() -> None:
    header = read(
        File(
            kv={
                "short": (ARR, (I32, [1, -2, 3])),
                "empty": (ARR, (STR, [])),
                "words": (ARR, (STR, ["a", "bc"])),
                "long": (ARR, (F32, [0.0] * 5000)),
                "vocabulary": (ARR, (STR, [f"token {i}" for i in range(70_000)])),
                "after": (STR, "still here"),
            }
        )
    )
    assert header.kv["short"] == (1, -2, 3)
    assert header.kv["empty"] == ()
    assert header.kv["words"] == ("a", "bc")
    assert header.kv["long"] == Skipped("f32", 5000)
    assert header.kv["vocabulary"] == Skipped("str", 70_000)
    assert header.kv["after"] == "still here"


def test_strings_that_straddle_reads_are_stepped_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "_READ", 97)
    words = ["x" * (i * 7 % 150) for i in range(300)]
    header = read(File(kv={"words": (ARR, (STR, words)), "after": (U32, 7)}))
    assert header.kv == {"words": Skipped("str", 300), "after": 7}


@given(
    st.lists(st.integers(0, parser.RUN + 2), min_size=65, max_size=3 * parser.RUN),
    st.sampled_from(["x", "\0", "\x06"]),
    st.sampled_from([1 << 20, 3000, 700]),
)
def test_runs_of_strings_end_where_a_walk_ends(
    lengths: list[int], letter: str, read_bytes: int
) -> None:
    """Law: whatever the strings' lengths and content, and wherever reads end, the value behind
    them is found; with one string more than there is, the file is refused."""
    words = [letter * length for length in lengths]
    file = File(kv={"words": (ARR, (STR, words)), "after": (U32, 7)})
    data = file.data()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser, "_READ", read_bytes)
        assert parse(Bytes(data)).kv == {"words": Skipped("str", len(words)), "after": 7}
        count = struct.pack("<Q", len(words))
        longer = data.replace(count, struct.pack("<Q", 1 << 40), 1)
        assert longer != data
        with pytest.raises(BadModelFileError):
            parse(Bytes(longer))


def test_a_large_header_takes_few_reads() -> None:
    words = [f"token number {i}" for i in range(200_000)]
    source = Bytes(replace(llama(), kv=llama_kv(more={"words": (ARR, (STR, words))})).data())
    parse(source)
    assert len(source.reads) < 10
    assert sum(length for _, length in source.reads) < 2 * source.size_bytes


def test_the_tensor_table() -> None:
    file = llama(1)
    header = read(file)
    first, second = header.tensors[:2]
    assert (first.name, first.shape, first.type) == ("token_embd.weight", (64, 32), 0)
    assert first.size_bytes == 4 * 64 * 32
    assert first.offset == header.data_offset == len(file.header())
    assert second.offset == first.offset + first.size_bytes
    assert len(header.tensors) == len(file.tensors)


def test_alignment_moves_the_data() -> None:
    file = replace(llama(1), alignment=256, kv=llama_kv(more={"general.alignment": (U32, 256)}))
    header = read(file)
    assert header.alignment == 256
    assert header.data_offset % 256 == 0
    assert all(tensor.offset % 256 == 0 for tensor in header.tensors)


@pytest.mark.parametrize("order", ["<", ">"])
def test_every_truncation_is_refused(order: str) -> None:
    data = replace(llama(1), order=order).data()
    end = len(replace(llama(1), order=order).header())
    for length in [*range(end), len(data) - 1]:
        with pytest.raises(BadModelFileError):
            parse(Bytes(data[:length]))
    parse(Bytes(data))


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (b"", "empty"),
        (b"GG", "not a GGUF"),
        (File(magic=b"GGML"), "not a GGUF"),
        (b"<!DOCTYPE html><html>not found</html>", "not a GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF"),
        (File(version=1), "version 1"),
        (File(version=4), "version 4"),
        (File(version=0), "version 0"),
        (File(n_kv=2**63), "claims"),
        (File(n_tensors=2**63), "claims"),
        (File(n_kv=60_000), "ends within"),
        (File(n_tensors=100_000), "ends within"),
    ],
)
def test_a_wrong_start_is_refused(file: File | bytes, words: str) -> None:
    assert words in refused(file)


@pytest.mark.parametrize("alignment", [0, 3, 24, 1 << 40])
def test_a_wrong_alignment_is_refused(alignment: int) -> None:
    refused(replace(llama(1), kv=llama_kv(more={"general.alignment": (U64, alignment)})))


@pytest.mark.parametrize("value", [(STR, "32"), (BOOL, 1), (F32, 32.0), (I32, -32)])
def test_an_alignment_that_is_no_number_is_refused(value: tuple[int, object]) -> None:
    assert "alignment" in refused(replace(llama(1), kv=llama_kv(more={"general.alignment": value})))


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        ([64] * 5, 0, "dimensions"),
        ([1] * 1_000, 0, "dimensions"),
        ([64, 0], 0, "impossible"),
        ([2**63], 0, "impossible"),
        ([2**32, 2**32], 0, "impossible"),
        ([2**62, 4], 0, "impossible"),
        ([33], 2, "whole blocks"),
        ([255], 12, "whole blocks"),
        ([64], 4, "unknown type"),
        ([64], 9999, "unknown type"),
        ([1 << 40], 0, "past the end"),
    ],
)
def test_an_impossible_tensor_is_refused(shape: list[int], kind: int, words: str) -> None:
    file = File(tensors=[("t", shape, kind, None)], data_bytes=4096)
    assert words in refused(file)


@pytest.mark.parametrize("offset", [0, 32, 128, 2**63, 2**64 - 1])
def test_tensors_that_overlap_or_leave_holes_are_refused(offset: int) -> None:
    file = File(tensors=[("a", [16], 0, None), ("b", [16], 0, offset)], data_bytes=4096)
    assert "expected" in refused(file)


def test_names_must_differ() -> None:
    assert "twice" in refused(File(tensors=[("a", [8], 0, None), ("a", [8], 0, None)]))
    assert "empty" in refused(File(tensors=[("", [8], 0, None)]))
    assert "too long" in refused(File(tensors=[("n" * 64, [8], 0, None)], data_bytes=99))
    one = File(kv={"key": (U32, 1)}).header()[24:]
    pair = File(kv={"key": (U32, 1)}).value(U32, 1)
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, 2)
    data += 2 * (struct.pack("<Q", 3) + b"key" + pair)
    assert "twice" in refused(data + one)


@pytest.mark.parametrize(
    "value",
    [
        struct.pack("<I", 13),
        struct.pack("<IIQ", ARR, ARR, 1) + bytes(64),
        struct.pack("<IIQ", ARR, 77, 1) + bytes(64),
        struct.pack("<IIQ", ARR, STR, 2**61) + bytes(64),
        struct.pack("<IIQ", ARR, U64, 2**61) + bytes(64),
        struct.pack("<IIQ", ARR, U8, 2**40) + bytes(64),
        struct.pack("<IQ", STR, 2**63) + bytes(64),
        struct.pack("<IQ", STR, 2**64 - 1) + bytes(64),
        struct.pack("<IIQQ", ARR, STR, 100, 2**64 - 8) + bytes(2000),
    ],
)
def test_a_lying_value_is_refused(value: bytes) -> None:
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + value
    refused(data)


def test_keys_must_be_text() -> None:
    assert "UTF-8" in refused(File(kv={}, n_kv=1).header()[:24] + b"\1" + bytes(7) + b"\xff" * 40)
    empty = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 0) + File().value(U32, 1) + bytes(64)
    assert "empty" in refused(empty)


def test_a_text_that_is_not_utf8_is_kept_readable() -> None:
    assert read(File(kv={"name": (STR, b"caf\xe9")})).kv["name"] == "caf\ufffd"


def test_a_header_without_end_is_refused_without_reading_it_all() -> None:
    count = 1 << 40
    data = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"k"
    data += struct.pack("<IIQ", ARR, U8, count)
    source = Bytes(data, size_bytes=1 << 42)
    with pytest.raises(BadModelFileError, match="longer than"):
        parse(source)
    assert sum(length for _, length in source.reads) <= 16 << 20


def test_a_source_that_gives_less_than_it_promised_is_refused() -> None:
    data = llama(1).data()
    with pytest.raises(BadModelFileError):
        parse(Bytes(data[:200], size_bytes=len(data)))


def test_the_error_names_the_file(tmp_path: Path) -> None:
    assert refused(b"GGUF").startswith("model.gguf: ")
