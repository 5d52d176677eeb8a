"""How long it takes to read a header: ours, ours from the cache, and upstream's ``gguf`` package.

    header_speed.py MODEL.gguf ... [--runs N] [--skip-gguf]

Prints a Markdown table; each figure is the fastest of its runs, in a warm page cache.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.gguf.cache import read_header_cached
from llama_ai.gguf.header import FileSource, open_source, read_header
from llama_ai.gguf.parse import parse

if TYPE_CHECKING:
    from collections.abc import Callable


def fastest_ms(runs: int, work: Callable[[], object]) -> float:
    """The fastest of some runs, in milliseconds."""
    best = float("inf")
    for _ in range(runs):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best * 1e3


class Counted:
    """A source that counts its reads."""

    def __init__(self, source: FileSource) -> None:
        self._source = source
        self.name = source.name
        self.size_bytes = source.size_bytes
        self.reads = 0

    def read_at(self, offset: int, length: int) -> bytes:
        self.reads += 1
        return self._source.read_at(offset, length)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--skip-gguf", action="store_true")
    options = parser.parse_args()
    print("| model | header MiB | reads | ours, ms | cached, ms | gguf package, ms | times |")
    print("|---|---|---|---|---|---|---|")
    for path in options.models:
        with open_source(path) as source:
            counted = Counted(source)
            size = parse(counted).data_offset
        ours = fastest_ms(options.runs, lambda: read_header(path))  # noqa: B023
        with tempfile.TemporaryDirectory() as folder:
            read_header_cached(path, Path(folder))
            cached = fastest_ms(options.runs, lambda: read_header_cached(path, Path(folder)))  # noqa: B023
        theirs = "", ""
        if not options.skip_gguf:
            from gguf import GGUFReader

            slow = fastest_ms(1, lambda: GGUFReader(path))  # noqa: B023
            theirs = f"{slow:.0f}", f"{slow / ours:.0f}"
        print(
            f"| {path.stem} | {size / 2**20:.1f} | {counted.reads} | {ours:.1f} | {cached:.2f} |"
            f" {theirs[0]} | {theirs[1]} |"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
