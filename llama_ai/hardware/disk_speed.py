"""How fast a disk is read: measured once by ``doctor``, remembered by device, else assumed by kind.

Reads only, from a file that is there already, past the page cache where the file system lets us.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from llama_ai import paths
from llama_ai.errors import LlamaAiError
from llama_ai.hardware.access import disk_facts
from solver.types import Disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from llama_ai.hardware.access import DiskFacts
    from llama_ai.hardware.root import Root

MIB: Final = 1 << 20
MOST_BYTES: Final = 256 * MIB
"""Of a file, for both measurements together."""
MOST_S: Final = 4.0
GIVE_UP_S: Final = 15.0
"""A disk that sleeps or a network that hangs may keep a single read waiting."""
LEAST_FILE_BYTES: Final = 64 * MIB
BLOCK_BYTES: Final = 4 * MIB
SLICE_BYTES: Final = MIB
"""About one matrix of one expert, in models from 16 to 120 B parameters."""
SLICE_THREADS: Final = 8
HUGE_PAGE_BYTES: Final = 2 * MIB

_STRIDE: Final = 1_000_003
"""A prime: multiples of it, modulo the slices that there are, jump about and meet none twice."""

AGAIN_AFTER_S: Final = 7 * 24 * 3600
"""``doctor`` measures again after a week: the first time, something else may have used the disk."""

_FORMAT: Final = 1

DiskKind = Literal["nvme", "sata", "card", "rotating"]

ASSUMED: Final[dict[DiskKind, tuple[float, float]]] = {
    # Sequential and slice-sized reads, bytes a second: the lower end of what such disks state.
    "nvme": (3.0e9, 2.0e9),
    "sata": (0.5e9, 0.4e9),
    "card": (0.09e9, 0.06e9),
    "rotating": (0.12e9, 0.02e9),
}


@dataclass(frozen=True, kw_only=True)
class DiskSpeed:
    """What was measured."""

    sequential_bytes_s: float
    slices_bytes_s: float
    at_s: float
    """When, in seconds since 1970."""
    direct: bool
    """Past the page cache. Otherwise cached pages were dropped before, as far as that goes."""


class NotMeasuredError(LlamaAiError):
    """The file or its disk cannot be measured; the message says why."""


def measure(
    path: Path,
    *,
    most_bytes: int = MOST_BYTES,
    most_s: float = MOST_S,
    give_up_s: float = GIVE_UP_S,
) -> DiskSpeed:
    """Read a part of ``path``: large blocks in order, then slices in random order by many threads.

    At most ``most_bytes`` and ``most_s`` in all, but for reads that are under way then; raises
    :class:`NotMeasuredError` after ``give_up_s`` without an answer, for a file that is too small
    or full of holes, and for one that cannot be read.
    """
    answer: list[DiskSpeed | Exception] = []

    def work() -> None:
        try:
            answer.append(_measure(path, most_bytes, most_s))
        except (OSError, NotMeasuredError) as error:
            answer.append(error)

    # A read that hangs cannot be taken back: its thread is left behind, and does not hold us up.
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(give_up_s)
    if not answer:
        raise NotMeasuredError(f"the disk did not answer within {give_up_s:g} s")
    found = answer[0]
    if isinstance(found, OSError):
        raise NotMeasuredError(f"{path.name} cannot be read: {found.strerror}") from found
    if isinstance(found, Exception):
        raise found
    return found


def _measure(path: Path, most_bytes: int, most_s: float) -> DiskSpeed:
    handle, direct = _open(path)
    try:
        status = os.fstat(handle)
        if status.st_size < LEAST_FILE_BYTES:
            raise NotMeasuredError(f"{path.name} is too small to measure by")
        if status.st_blocks * 512 < status.st_size // 2:
            raise NotMeasuredError(f"{path.name} is full of holes")
        half_bytes = min(most_bytes, status.st_size) // 2
        if not direct:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        blocks = range(0, half_bytes - BLOCK_BYTES + 1, BLOCK_BYTES)
        sequential = _rate(handle, list(blocks), BLOCK_BYTES, 1, most_s / 2)
        # The second half of the file: nothing in it was read just now.
        first, count = (status.st_size + 1) // 2 // SLICE_BYTES, status.st_size // 2 // SLICE_BYTES
        chosen = [
            (first + index * _STRIDE % count) * SLICE_BYTES
            for index in range(min(half_bytes // SLICE_BYTES, count))
        ]
        parallel = _rate(handle, chosen, SLICE_BYTES, SLICE_THREADS, most_s / 2)
    finally:
        os.close(handle)
    return DiskSpeed(
        sequential_bytes_s=sequential, slices_bytes_s=parallel, at_s=time.time(), direct=direct
    )


def _open(path: Path) -> tuple[int, bool]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            os.preadv(handle, [page], 0)
    except OSError:  # some file systems refuse at the first read only
        os.close(handle)
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False
    return handle, True


@contextlib.contextmanager
def _buffer(length: int) -> Iterator[memoryview]:
    """Memory in huge pages where the kernel gives them, as the engine's: a read into small pages is
    cut into many requests, and takes up to three times as long."""
    # Room for a whole page wherever the memory begins.
    huge = -(-length // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    with mmap.mmap(-1, huge + HUGE_PAGE_BYTES) as area:
        with contextlib.suppress(OSError):
            area.madvise(mmap.MADV_HUGEPAGE)
        first = ctypes.c_char.from_buffer(area)
        start = -ctypes.addressof(first) % HUGE_PAGE_BYTES
        del first  # the memory can only be given back when nothing points to it
        with memoryview(area) as whole, whole[start : start + length] as aligned:
            yield aligned


def _rate(handle: int, offsets: list[int], length: int, threads: int, most_s: float) -> float:
    """Bytes a second while ``threads`` read ``length`` at each of ``offsets``."""
    problems: list[OSError] = []
    read = [0] * threads
    start_s = time.monotonic()

    def work(index: int) -> None:
        with _buffer(length) as buffer:
            for offset in offsets[index::threads]:
                if time.monotonic() - start_s > most_s:
                    return
                try:
                    read[index] += os.preadv(handle, [buffer], offset)
                except OSError as error:
                    problems.append(error)
                    return

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took_s = time.monotonic() - start_s
    if problems:
        raise problems[0]
    if not any(read):
        raise NotMeasuredError("nothing could be read in time")
    return sum(read) / max(took_s, 1e-9)


def kind_of(root: Root, facts: DiskFacts) -> DiskKind | None:
    """The kind of disk, by the kernel's names; below LVM and encryption, that of the first disk.

    ``None`` where nobody can tell: virtual disks, networks, memory.
    """
    name = _physical(root, facts.device or "")
    if facts.rotational:
        return "rotating"
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith("mmcblk"):
        return "card"
    return "sata" if name.startswith("sd") and facts.rotational is False else None


def _physical(root: Root, name: str) -> str:
    for _ in range(4):
        below = root.listdir("sys/class/block", name, "slaves") if name else []
        if not below:
            break
        name = below[0]
    return name


def device_key(root: Root, facts: DiskFacts) -> str | None:
    """What a measurement is remembered by: the device, its model and its size."""
    if facts.device is None:
        return None
    place = ("sys/class/block", facts.device)
    model = root.read_word(*place, "device/model") or root.read_word(*place, "../device/model")
    return f"{facts.device} {model or ''} {root.read_word(*place, 'size') or ''}"


def remembered(key: str | None) -> DiskSpeed | None:
    """What was measured of that device before."""
    entry = _read_cache().get(key or "")
    try:
        found = DiskSpeed(
            sequential_bytes_s=float(entry["sequential_bytes_s"]),  # type: ignore[index]
            slices_bytes_s=float(entry["slices_bytes_s"]),  # type: ignore[index]
            at_s=float(entry["at_s"]),  # type: ignore[index]
            direct=bool(entry["direct"]),  # type: ignore[index]
        )
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.sequential_bytes_s > 0 and found.slices_bytes_s > 0 else None


def remember(key: str, speed: DiskSpeed) -> None:
    """Keep a measurement; a cache that cannot be written is no error."""
    disks = _read_cache()
    disks[key] = asdict(speed)
    text = json.dumps({"format": _FORMAT, "disks": disks}, indent=1)
    with contextlib.suppress(OSError, LlamaAiError):
        paths.private(cache_path().parent)
        paths.write_atomic(cache_path(), text.encode())


def cache_path() -> Path:
    """Where measurements are kept."""
    return paths.cache_dir() / "disks.json"


def _read_cache() -> dict[str, object]:
    try:
        document = json.loads(cache_path().read_bytes())
        disks = document["disks"] if document["format"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return disks if isinstance(disks, dict) else {}


def disk_of(root: Root, path: Path) -> Disk | None:
    """The disk that ``path`` is on: as measured, else by its kind; ``None`` where unknown."""
    facts = disk_facts(root, path.parent)
    known = remembered(device_key(root, facts))
    if known is not None:
        return Disk(
            sequential_bytes_s=known.sequential_bytes_s,
            slices_bytes_s=known.slices_bytes_s,
            measured=True,
        )
    kind = kind_of(root, facts)
    if kind is None:
        return None
    sequential, slices = ASSUMED[kind]
    return Disk(sequential_bytes_s=sequential, slices_bytes_s=slices, measured=False)


@dataclass(frozen=True, kw_only=True)
class ModelDisk:
    """The answer for one disk with models on it; ``speed`` or ``problem``."""

    directory: str
    device: str | None
    speed: DiskSpeed | None
    problem: str | None
    before: bool = False
    """Measured at an earlier time."""


def look_at(
    root: Root, path: Path, *, measure_file: Callable[[Path], DiskSpeed] = measure
) -> ModelDisk:
    """The disk of the model ``path``, measured now unless it was lately."""
    facts = disk_facts(root, path.parent)
    key = device_key(root, facts)
    speed, problem = remembered(key), None
    before = speed is not None and 0 <= time.time() - speed.at_s < AGAIN_AFTER_S
    if not before:
        try:
            speed = measure_file(path)
        except NotMeasuredError as error:
            problem = error.message
        else:
            if key is not None:
                remember(key, speed)
    return ModelDisk(
        directory=str(path.parent),
        device=facts.device,
        speed=speed,
        problem=problem,
        before=before,
    )
