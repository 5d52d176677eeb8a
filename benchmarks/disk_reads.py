"""A model's disk as expert residency uses it: its rate, and what is in the page cache."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.gguf.header import read_header

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096
HUGE = 2 << 20


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Where the experts of one file lie: ``spans`` holds (offset, bytes), a unit's spans (gate,
    up, down of one expert of one layer) one after the other."""

    spans: tuple[tuple[int, int], ...]
    units: int

    @property
    def total_bytes(self) -> int:
        """All experts together."""
        return sum(size for _, size in self.spans)

    @property
    def unit_bytes(self) -> float:
        """The mean size of a unit."""
        return self.total_bytes / self.units


def expert_slices(model: Path) -> Slices:
    """The experts of a model in one file."""
    by_layer: dict[str, list[tuple[int, int, int]]] = {}
    for tensor in read_header(model).tensors:
        if tensor.name.endswith("_exps.weight"):
            experts = tensor.shape[-1]
            at = (tensor.offset, tensor.size_bytes // experts, experts)
            by_layer.setdefault(tensor.name.split(".ffn_")[0], []).append(at)
    spans = [
        (offset + expert * size, size)
        for tensors in by_layer.values()
        for expert in range(tensors[0][2])
        for offset, size, _ in tensors
    ]
    return Slices(spans=tuple(spans), units=sum(t[0][2] for t in by_layer.values()))


def read_rate(model: Path, slices: Slices, threads: int, seconds: float) -> float:
    """Bytes of slices per second, read unit by unit at random, each past the page cache.

    Reads start and end at multiples of 4 KiB; only the slices' own bytes count.
    """
    count = len(slices.spans) // slices.units
    order = list(range(slices.units))
    random.Random(1).shuffle(order)  # noqa: S311
    jobs = [span for unit in order for span in slices.spans[unit * count : (unit + 1) * count]]
    turn = itertools.count()
    descriptor = os.open(model, os.O_RDONLY | os.O_DIRECT)
    began_s = time.perf_counter()

    def work() -> int:
        done = 0
        # Huge pages: scattered small ones split each request (a third of the rate was seen).
        room = math.ceil((max(size for _, size in jobs) + 2 * PAGE) / HUGE) * HUGE
        # Python's default would be shared memory, which gets none.
        buffer = mmap.mmap(-1, room + HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        buffer.madvise(mmap.MADV_HUGEPAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        aligned = -start % HUGE
        with memoryview(buffer)[aligned : aligned + room] as whole:
            while time.perf_counter() - began_s < seconds:
                offset, size = jobs[next(turn) % len(jobs)]
                first = offset // PAGE * PAGE
                length = math.ceil((offset + size) / PAGE) * PAGE - first
                with whole[:length] as part:
                    if os.preadv(descriptor, [part], first) < offset + size - first:
                        raise OSError(f"{model.name} is shorter than its header says")
                done += size
        return done

    try:
        with ThreadPoolExecutor(threads) as pool:
            read = sum(worker.result() for worker in [pool.submit(work) for _ in range(threads)])
        return read / (time.perf_counter() - began_s)
    finally:
        os.close(descriptor)


def drop_page_cache(path: Path) -> None:
    """The file leaves the page cache, or this is an error (somebody has it mapped)."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if (share := cached_share(path)) > 0.01:
        raise OSError(f"{share:.0%} of {path.name} stays in the page cache: is it in use?")


def cached_share(path: Path) -> float:
    """The share of a file's pages that is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as stream:
        protection = mmap.PROT_READ | mmap.PROT_WRITE  # ctypes wants a writable one; it is private
        mapping = mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE, protection)
    pages = math.ceil(len(mapping) / mmap.PAGESIZE)
    present = (ctypes.c_ubyte * pages)()
    start = ctypes.c_char.from_buffer(mapping)
    length = ctypes.c_size_t(len(mapping))
    failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(start)), length, present)
    del start
    mapping.close()
    if failed:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return sum(byte & 1 for byte in bytes(present)) / pages
