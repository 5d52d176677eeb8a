"""Hostile files: whatever the bytes, the answer is a header or one clear error."""

from __future__ import annotations

import struct
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.facts import facts_of
from llama_ai.gguf.header import Header, Shard
from llama_ai.gguf.parse import FileHeader, parse
from llama_ai.gguf.solver_model import model_from_facts
from solver.memory import estimate
from solver.types import Layout
from tests.support.gguf_files import ARR, F32, STR, U8, U32, U64, File, llama, llama_kv
from tests.support.recorded import recorded


class Bytes:
    """A source in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.name = "m.gguf"
        self.size_bytes = len(data)
        self.read_bytes = 0

    def read_at(self, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return self.data[offset : offset + length]


def accepted(data: bytes) -> FileHeader | None:
    """The header, or ``None`` when it was refused as it should be."""
    source = Bytes(data)
    try:
        header = parse(source)
    except BadModelFileError:
        return None
    finally:
        assert source.read_bytes <= 2 * len(data) + 64
    for tensor in header.tensors:
        assert header.data_offset <= tensor.offset
        assert tensor.offset + tensor.size_bytes <= len(data)
    return header


GOOD = llama(1).data()
TEXT = File(
    kv=llama_kv(
        more={
            "words": (ARR, (STR, ["word"] * 200)),
            "numbers": (ARR, (F32, [1.0] * 2000)),
            "text": (STR, "a template"),
        }
    )
).data()


@given(data=st.binary(max_size=400))
def test_any_bytes(data: bytes) -> None:
    """parse(bytes) ∈ {header, BadModelFileError}."""
    accepted(data)
    accepted(struct.pack("<4sI", b"GGUF", 3) + data)


@given(
    base=st.sampled_from((GOOD, TEXT)),
    changes=st.lists(
        st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=8)), max_size=4
    ),
    end=st.integers(0, 20_000),
)
def test_a_good_file_with_changed_bytes(
    base: bytes, changes: list[tuple[int, bytes]], end: int
) -> None:
    """The same for a real file with bytes written over and its end cut off."""
    data = bytearray(base)
    for position, change in changes:
        start = position % len(data)
        data[start : start + len(change)] = change
    accepted(bytes(data[: max(end, 1)]))
    accepted(bytes(data))


@given(
    position=st.integers(0, len(GOOD) // 8),
    number=st.one_of(
        st.integers(0, 2**64 - 1), st.sampled_from((0, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1))
    ),
)
def test_lengths_and_counts_that_lie(position: int, number: int) -> None:
    """The same for every aligned or unaligned number replaced by another."""
    for base in (GOOD, TEXT):
        for shift in (0, 4):
            at = (8 * position + shift) % (len(base) - 8)
            accepted(base[:at] + struct.pack("<Q", number) + base[at + 8 :])


VALUES = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from((0, 1, 7, 64, 2**31, 2**32 - 1)),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.lists(st.integers(-5, 2**32), max_size=6).map(tuple),
    st.lists(st.booleans(), max_size=6).map(tuple),
    st.none(),
)


@given(data=st.data())
def test_metadata_of_any_type_and_tensors_of_any_shape(data: st.DataObject) -> None:
    """facts(header) and estimate(facts) answer or refuse, whatever metadata and table say."""
    item = data.draw(st.sampled_from((*recorded("zoo"), *recorded("headers"))))
    kv = dict(item.facts.header.kv)
    keys = [key for key in kv if not key.startswith("tokenizer.")]
    for key in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=3)):
        value = data.draw(VALUES)
        if value is None:
            kv.pop(key, None)
        else:
            kv[key] = value
    tensors = list(item.facts.header.tensors)
    for index in data.draw(st.lists(st.integers(0, len(tensors) - 1), max_size=2)):
        shape = data.draw(st.sampled_from(((), (1,), (7, 7), (1, 1, 1, 1), (2**40, 3))))
        name = data.draw(st.sampled_from([tensor.name for tensor in item.facts.header.tensors]))
        tensors[index] = tensors[index]._replace(shape=shape, name=name)
    header = Header(
        version=3,
        big_endian=False,
        kv=kv,
        tensors=tuple(tensors),
        shards=(Shard(path=Path("m"), size_bytes=1, mtime_ns=0, alignment=32, data_offset=0),),
    )
    try:
        model = model_from_facts(facts_of(header))
    except BadModelFileError:
        return
    for layout in (Layout(ctx_size=4096), Layout(ctx_size=4096, gpu_layers=99, mtp=True)):
        memory = estimate(model, layout)
        assert memory.host.total_bytes > 0


@given(
    kv=st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.one_of(
            st.tuples(st.just(U8), st.integers(0, 255)),
            st.tuples(st.just(U32), st.integers(0, 2**32 - 1)),
            st.tuples(st.just(U64), st.integers(0, 2**64 - 1)),
            st.tuples(st.just(STR), st.text(max_size=20)),
        ),
        max_size=6,
    ),
    order=st.sampled_from("<>"),
)
def test_what_was_written_is_read(kv: dict[str, tuple[int, object]], order: str) -> None:
    """parse(write(metadata)) = metadata, in both byte orders."""
    header = accepted(File(kv=kv, order=order).data())
    assert header is not None
    assert dict(header.kv) == {key: value for key, (_, value) in kv.items()}
