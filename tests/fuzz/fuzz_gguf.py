"""Coverage-guided fuzzing of the GGUF reader; needs ``atheris``.

    python tests/fuzz/fuzz_gguf.py [-max_total_time=SECONDS] [CORPUS_DIR ...]

Anything but a header or :class:`BadModelFileError` is a crash; so is reading more than the file has
a few times over, and what takes longer than libFuzzer's ``-timeout``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["llama_ai.gguf", "solver"]):
    from llama_ai.gguf.errors import BadModelFileError
    from llama_ai.gguf.facts import facts_of
    from llama_ai.gguf.header import Header, Shard
    from llama_ai.gguf.parse import parse
    from llama_ai.gguf.solver_model import model_from_facts

from tests.support.gguf_files import ARR, F32, STR, llama, llama_kv


class Bytes:
    """A source in memory."""

    name = "fuzz.gguf"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)
        self.read_bytes = 0

    def read_at(self, offset: int, length: int) -> bytes:
        self.read_bytes += length
        return self.data[offset : offset + length]


def once(data: bytes) -> None:
    """One input."""
    source = Bytes(data)
    try:
        found = parse(source)
        shard = Shard(
            path=Path("fuzz.gguf"),
            size_bytes=len(data),
            mtime_ns=0,
            alignment=found.alignment,
            data_offset=found.data_offset,
        )
        header = Header(
            version=found.version,
            big_endian=found.big_endian,
            kv=found.kv,
            tensors=found.tensors,
            shards=(shard,),
        )
        model_from_facts(facts_of(header))
    except BadModelFileError:
        pass
    if source.read_bytes > 2 * len(data) + 64:
        raise AssertionError(f"{source.read_bytes} bytes read of {len(data)}")


def main() -> None:
    """Start from good files, so that the first inputs already reach every part."""
    with tempfile.TemporaryDirectory() as seeds:
        good = llama(1)
        (Path(seeds) / "little").write_bytes(good.data())
        good.order = ">"
        (Path(seeds) / "big").write_bytes(good.data())
        good.order = "<"
        good.kv = llama_kv(
            1,
            {
                "words": (ARR, (STR, ["word"] * 100)),
                "numbers": (ARR, (F32, [0.0] * 1100)),
            },
        )
        (Path(seeds) / "arrays").write_bytes(good.data())
        atheris.Setup([*sys.argv, seeds], once)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
