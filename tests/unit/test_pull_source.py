"""Sharing a vocabulary between the headers of one repository: taken only where it is the same."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from llama_ai.cli.remote_source import RangeSource, Vocabulary
from llama_ai.gguf.parse import parse
from llama_ai.models.hub import Hub, RemoteFile
from tests.support.gguf_files import ARR, I32, STR, File, llama_kv, llama_tensors

COUNT = 50_000


def content(tmp_path: Path, *, title: str = "a", first: str = "t", count: int = COUNT) -> bytes:
    """A model with a large vocabulary whose second token begins as asked."""
    tokens = [f"t{index:06d}" for index in range(count)]
    tokens[1] = first + tokens[1][1:]
    kv = llama_kv(
        more={
            "general.name": (STR, title),
            "tokenizer.ggml.tokens": (ARR, (STR, tokens)),
            "tokenizer.ggml.token_type": (ARR, (I32, [1] * count)),
            "tokenizer.ggml.merges": (ARR, (STR, tokens)),
            "tokenizer.ggml.model": (STR, "gpt2"),
        }
    )
    return File(kv=kv, tensors=llama_tensors()).write(tmp_path / "x.gguf").read_bytes()


class Local(RangeSource):
    """A source whose bytes are at hand; ``asked_bytes`` counts what would have come over."""

    def __init__(self, data: bytes) -> None:
        file = RemoteFile(name="x.gguf", size_bytes=len(data), sha256=None, git_sha1=None)
        super().__init__(Hub({}), httpx.Client(), "http://127.0.0.1:9/x", file)
        self.data = data
        self.asked_bytes = 0

    def _get(self, offset: int, end: int) -> bytes:
        self.asked_bytes += end - offset
        return self.data[offset:end]


def vocabulary(data: bytes) -> Vocabulary:
    source = Local(data)
    header = parse(source)
    found = Vocabulary.of(source.start(header.data_offset))
    assert found is not None
    return found


def test_a_shared_vocabulary_gives_the_same_header_for_less(tmp_path: Path) -> None:
    known = vocabulary(content(tmp_path))
    data = content(tmp_path, title="another name, longer")
    shared, plain = Local(data), Local(data)
    assert shared.share(known)
    assert parse(shared) == parse(plain)
    assert shared.asked_bytes < plain.asked_bytes // 2


@pytest.mark.parametrize(
    "other", [{"first": "u"}, {"count": COUNT - 1}, {"count": COUNT + 5}], ids=str
)
def test_another_vocabulary_is_not_taken(tmp_path: Path, other: dict[str, str]) -> None:
    known = vocabulary(content(tmp_path))
    assert not Local(content(tmp_path, **other)).share(known)  # type: ignore[arg-type]


def test_a_header_without_a_vocabulary_has_none_to_share() -> None:
    data = File(kv=llama_kv(), tensors=llama_tensors()).data()
    assert Vocabulary.of(data) is None
    assert Vocabulary.of(data + b"tokenizer.ggml.tokens\x09") is None
