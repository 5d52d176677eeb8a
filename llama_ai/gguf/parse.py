"""One GGUF file: its metadata and its tensor table, read from anything that can ``read_at``.

Hostile files are normal input. Every count and length is checked against what is left of the file
before it is believed, nothing recurses, and a header longer than :data:`MAX_HEADER_BYTES` is
refused, so that time and memory stay bounded whatever a file claims. What is accepted follows what
the engine accepts (GGUF v2 and v3, at most four dimensions, tensors laid out one after the other);
a file that passes here can be loaded there. Big-endian files are read too, although an engine on a
little-endian host refuses them.

Long arrays (vocabularies) are skipped: numbers by their size, strings by walking their lengths.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.quants import TENSOR_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_HEADER_BYTES: Final = 256 << 20
"""Longest header that is read. The largest published one (a 262k vocabulary) is below 20 MiB."""

MAX_KV: Final = 1 << 16
MAX_TENSORS: Final = 1 << 17
MAX_KEPT_ARRAY: Final = 1024
MAX_KEPT_STRINGS: Final = 64
MAX_KEPT_STRING_BYTES: Final = 1 << 20
MAX_NAME_BYTES: Final = 63
MAX_DIMS: Final = 4
DEFAULT_ALIGNMENT: Final = 32

_HINT: Final = "download the file again, or check it with gguf-dump"
_READ: Final = 1 << 20  # larger ones are slower: fresh pages, and past the processor's cache
_INT64_MAX: Final = (1 << 63) - 1
_STRING: Final = 8
_ARRAY: Final = 9
# GGUF value type -> (name, struct code). Bool is read as a byte: any value but 0 is true.
_SCALARS: Final[Mapping[int, tuple[str, str]]] = {
    0: ("u8", "B"),
    1: ("i8", "b"),
    2: ("u16", "H"),
    3: ("i16", "h"),
    4: ("u32", "I"),
    5: ("i32", "i"),
    6: ("f32", "f"),
    7: ("bool", "B"),
    10: ("u64", "Q"),
    11: ("i64", "q"),
    12: ("f64", "d"),
}


RUN: Final = 64
"""Strings that are stepped over at once."""
_LONGEST_IN_RUN: Final = 63
# One branch for each length, the frequent ones first: its eight bytes, then as many of any kind.
# Nothing is given back (``+``), so a match is what a walk over the lengths would have found.
_RUN: Final = re.compile(
    b"(?s:"
    + b"|".join(
        re.escape(struct.pack("<Q", length)) + b".{%d}" % length
        for length in sorted(range(_LONGEST_IN_RUN + 1), key=lambda length: abs(length - 7))
    )
    + b"){%d}+" % RUN
)


class Source(Protocol):
    """Bytes that can be read by range: a local file, or a remote one through range requests."""

    @property
    def name(self) -> str:
        """What to call it in an error."""

    @property
    def size_bytes(self) -> int:
        """Its whole size."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end."""


class Skipped(NamedTuple):
    """A value that was not kept: its element type and its length (of a text, in bytes)."""

    type: str
    length: int


Scalar = int | float | bool | str
Value = Scalar | tuple[int, ...] | tuple[float, ...] | tuple[bool, ...] | tuple[str, ...] | Skipped


class TensorInfo(NamedTuple):
    """One row of a tensor table. (A tuple: a large model has thousands.)

    ``shape`` is in GGML's order, the contiguous dimension first; ``offset`` counts from the start
    of the file ``shard`` (0 for the first); ``type`` is a key of ``quants.TENSOR_TYPES``.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int
    size_bytes: int
    shard: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FileHeader:
    """What one file says. ``data_offset`` is where its tensor data starts."""

    version: int
    big_endian: bool
    alignment: int
    data_offset: int
    kv: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]


# Few of them are used often; a file can make up any number of others (the lengths of its arrays).
_struct = lru_cache(maxsize=64)(struct.Struct)


class _Cursor:
    """A forward reader with a large buffer: few reads, and never more than asked for at once."""

    __slots__ = ("_base", "_buf", "_end", "_pos", "_source", "order")

    def __init__(self, source: Source) -> None:
        self._source = source
        self._end = min(source.size_bytes, MAX_HEADER_BYTES)
        self._buf = b""
        self._base = 0
        self._pos = 0
        self.order = "<"

    @property
    def offset(self) -> int:
        return self._base + self._pos

    @property
    def remaining(self) -> int:
        return self._end - self.offset

    def fail(self, what: str) -> BadModelFileError:
        return BadModelFileError(f"{self._source.name}: {what}", hint=_HINT)

    def past_end(self) -> BadModelFileError:
        if self._source.size_bytes > self._end:
            return self.fail(f"its header claims to be longer than {MAX_HEADER_BYTES >> 20} MiB")
        return self.fail("the file ends within its header (truncated, or its lengths are wrong)")

    def ensure(self, length: int) -> None:
        """Have ``length`` bytes in the buffer, or all that are left."""
        have = len(self._buf) - self._pos
        if have >= length:
            return
        start = self._base + max(self._pos, len(self._buf))
        want = min(max(length - max(have, 0), _READ), self._end - start)
        rest = self._buf[self._pos :]
        self._base, self._pos = self.offset, 0
        self._buf = rest + (self._source.read_at(start, want) if want > 0 else b"")

    def skip(self, length: int) -> None:
        if length > self.remaining:
            raise self.past_end()
        self._pos += length

    def have(self, length: int) -> int:
        """Where the next ``length`` bytes are in the buffer; they are stepped over."""
        start = self._pos
        if start + length > len(self._buf):
            if length > self.remaining:
                raise self.past_end()
            self.ensure(length)
            start = self._pos
            if start + length > len(self._buf):
                raise self.past_end()
        self._pos = start + length
        return start

    def take(self, length: int) -> bytes:
        start = self.have(length)
        return self._buf[start : start + length]

    def unpack(self, codes: str) -> tuple[int, ...]:
        form = _struct(self.order + codes)
        start = self.have(form.size)
        return form.unpack_from(self._buf, start)

    def text(self, limit: int, what: str) -> str:
        (length,) = self.unpack("Q")
        if length > limit:
            raise self.past_end() if length > self.remaining else self.fail(f"{what} is too long")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise self.fail(f"{what} is not UTF-8") from None

    def value_text(self) -> str | Skipped:
        (length,) = self.unpack("Q")
        if length > MAX_KEPT_STRING_BYTES:
            self.skip(length)
            return Skipped("str", length)
        return self.take(length).decode(errors="replace")

    def skip_strings(self, count: int) -> None:
        """Step over ``count`` length-prefixed strings.

        This is the whole cost of reading a header with a large vocabulary. A run of strings is one
        match of :data:`_RUN` (20 ns a string); a run with an odd one, the rest, and a big-endian
        file go through a bare loop (90 ns), where running off the buffer is noticed by the
        exception.
        """
        length_at = struct.Struct(self.order + "Q").unpack_from
        left = count
        while left:
            if left * 8 > self.remaining:
                raise self.past_end()
            self.ensure(8)
            buf, pos, todo = self._buf, self._pos, left
            if self.order == "<" and left >= RUN:
                match = _RUN.match(buf, pos)
                while match is not None:
                    pos, todo = match.end(), todo - RUN
                    match = _RUN.match(buf, pos) if todo >= RUN else None
                left, todo = todo, min(todo, RUN)
            done = 0
            try:
                for done in range(todo):  # noqa: B007 (counts what was done before a stop)
                    pos += 8 + length_at(buf, pos)[0]
                done = todo
            except (struct.error, OverflowError, IndexError):
                if self._base + len(buf) >= self._end:
                    raise self.past_end() from None
            left -= done
            self.skip(pos - self._pos)


def parse(source: Source, *, shard: int = 0) -> FileHeader:
    """Read the header of one file.

    Raises :class:`BadModelFileError` for anything that the engine would not load, and lets the
    source's own errors (an unreadable disk, a lost connection) through.
    """
    cur = _Cursor(source)
    if source.size_bytes == 0:
        raise cur.fail("the file is empty")
    if cur.take(min(4, source.size_bytes)) != b"GGUF":
        raise cur.fail("not a GGUF file (it does not start with GGUF)")
    (version,) = cur.unpack("I")
    # A version in the upper half only means that the file was written in the other byte order.
    big_endian = version & 0xFFFF == 0 and version != 0
    if big_endian:
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
        cur.order = ">"
    if version not in (2, 3):
        raise cur.fail(f"GGUF version {version} is not supported (2 and 3 are)")
    n_tensors, n_kv = cur.unpack("QQ")
    # The smallest pair is 8 + 1 + 4 + 1 bytes, the smallest table row 8 + 4 + 8 + 4 + 8.
    if n_kv > MAX_KV or n_tensors > MAX_TENSORS:
        raise cur.fail(f"it claims {n_kv} metadata values and {n_tensors} tensors")
    if n_kv * 14 + n_tensors * 32 > cur.remaining:
        raise cur.past_end()
    kv: dict[str, Value] = {}
    for _ in range(n_kv):
        key = cur.text(1 << 16, "a metadata key")
        if not key:
            raise cur.fail("a metadata key is empty")
        if key in kv:
            raise cur.fail(f"metadata key {key[:80]!r} appears twice")
        kv[key] = _value(cur, key)
    alignment = kv.get("general.alignment", DEFAULT_ALIGNMENT)
    if (
        isinstance(alignment, bool)
        or not isinstance(alignment, int)
        or alignment <= 0
        or alignment & (alignment - 1)
    ):
        raise cur.fail(f"general.alignment is {alignment!r}, not a power of two")
    rows = [_row(cur) for _ in range(n_tensors)]
    data_offset = _padded(cur.offset, alignment)
    tensors = _table(cur, rows, data_offset, alignment, source.size_bytes, shard)
    return FileHeader(
        version=version,
        big_endian=big_endian,
        alignment=alignment,
        data_offset=data_offset,
        kv=kv,
        tensors=tensors,
    )


def _padded(size: int, alignment: int) -> int:
    return (size + alignment - 1) & -alignment


def _value(cur: _Cursor, key: str) -> Value:
    (kind,) = cur.unpack("I")
    if kind == _STRING:
        return cur.value_text()
    if kind in _SCALARS:
        name, code = _SCALARS[kind]
        (scalar,) = cur.unpack(code)
        return bool(scalar) if name == "bool" else scalar
    if kind != _ARRAY:
        raise cur.fail(f"metadata key {key[:80]!r} has an unknown type ({kind})")
    element, count = cur.unpack("IQ")
    if element == _STRING:
        if count > MAX_KEPT_STRINGS:
            cur.skip_strings(count)
            return Skipped("str", count)
        if count * 8 > cur.remaining:
            raise cur.past_end()
        values = [cur.value_text() for _ in range(count)]
        texts = tuple(value for value in values if isinstance(value, str))
        return texts if len(texts) == count else Skipped("str", count)
    if element not in _SCALARS:  # arrays of arrays are refused by the engine too
        raise cur.fail(f"metadata key {key[:80]!r} is an array of an unknown type ({element})")
    name, code = _SCALARS[element]
    if count > MAX_KEPT_ARRAY:
        cur.skip(count * struct.calcsize("<" + code))
        return Skipped(name, count)
    numbers = cur.unpack(f"{count}{code}")
    return tuple(bool(n) for n in numbers) if name == "bool" else numbers


def _row(cur: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cur.text(MAX_NAME_BYTES, "a tensor's name")
    (n_dims,) = cur.unpack("I")
    if n_dims > MAX_DIMS:
        raise cur.fail(f"tensor {name!r} has {n_dims} dimensions (at most {MAX_DIMS})")
    row = cur.unpack(f"{n_dims}QIQ")
    return name, row[:n_dims], row[n_dims], row[n_dims + 1]


def _table(
    cur: _Cursor,
    rows: list[tuple[str, tuple[int, ...], int, int]],
    data_offset: int,
    alignment: int,
    file_bytes: int,
    shard: int,
) -> tuple[TensorInfo, ...]:
    """Check shapes, types and places; the engine wants each tensor right behind the one before."""
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    expected = 0
    for name, shape, type_id, offset in rows:
        if not name or name in names:
            raise cur.fail(f"tensor name {name!r} is empty or appears twice")
        names.add(name)
        kind = TENSOR_TYPES.get(type_id)
        if kind is None:
            raise cur.fail(f"tensor {name!r} has an unknown type ({type_id})")
        elements = 1
        for dim in shape:
            elements *= dim
        if not 0 < elements <= _INT64_MAX:
            raise cur.fail(f"tensor {name!r} has the impossible shape {list(shape)}")
        if (shape[0] if shape else 1) % kind.block_elements:
            raise cur.fail(
                f"tensor {name!r}: rows of {shape[0] if shape else 1} are not whole blocks of"
                f" {kind.name} ({kind.block_elements})"
            )
        size = elements // kind.block_elements * kind.block_bytes
        if offset != expected:
            raise cur.fail(
                f"tensor {name!r} starts at {offset} where {expected} is expected"
                " (tensors overlap or leave holes)"
            )
        if data_offset + offset + size > file_bytes:
            raise cur.fail(
                f"tensor {name!r} ends past the end of the file: the download is incomplete,"
                " or the table lies"
            )
        tensors.append(TensorInfo(name, shape, type_id, data_offset + offset, size, shard))
        expected += _padded(size, alignment)
    return tuple(tensors)
