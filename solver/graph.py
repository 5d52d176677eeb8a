"""A small stand-in for the engine's graph allocator.

The engine reserves one buffer a device for all intermediate results of a forward pass: each result
gets the smallest free gap that holds it, and returns it after its last use; some operations write
over their input. The peak of that process is what it allocates, so we run the same process over a
sketch of the graph (:mod:`solver.blocks`), which also gives the gaps that a mere sum would miss.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

ALIGNMENT: Final = 128
LARGEST_RESULT: Final = 4 << 30
"""Bytes from which a Vulkan device leaves a result to the host."""

_OPEN_END: Final = 1 << 62
_MAX_CHUNKS: Final = 16


class Graph:
    """Results in the order in which they are computed; a result is named by its index."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._sources: list[tuple[int, ...]] = []
        self._in_place: list[bool] = []
        self._uses: list[int] = []
        self._inputs: list[int] = []

    def input(self, size_bytes: int) -> int:
        """Something handed in: allocated before everything else, in this order."""
        index = self.add(size_bytes)
        self._inputs.append(index)
        return index

    def add(self, size_bytes: int, *sources: int, in_place: bool = False) -> int:
        """A result computed from ``sources``.

        ``in_place``: written over the first source of the same size that nothing else still needs.
        A result that is never used is never freed.
        """
        self._sizes.append(-(-size_bytes // ALIGNMENT) * ALIGNMENT)
        self._sources.append(sources)
        self._in_place.append(in_place)
        self._uses.append(0)
        for source in sources:
            self._uses[source] += 1
        return len(self._sizes) - 1

    def size_of(self, index: int) -> int:
        """Bytes of a result, as allocated."""
        return self._sizes[index]

    def peak_bytes(self, chunk_bytes: int = _OPEN_END) -> int:
        """Size of the buffers that hold every result while it is needed."""
        sizes, uses = self._sizes, list(self._uses)
        heap = _Heap(chunk_bytes)
        offsets: dict[int, _Place] = {index: heap.take(sizes[index]) for index in self._inputs}
        inputs = set(self._inputs)
        for index, sources in enumerate(self._sources):
            if index in inputs:
                continue
            reused = None
            if self._in_place[index]:
                for source in sources:
                    if uses[source] == 1 and sizes[source] == sizes[index] and source in offsets:
                        reused = source
                        break
            if reused is not None:
                offsets[index] = offsets.pop(reused)
            else:
                offsets[index] = heap.take(sizes[index])
            for source in sources:
                uses[source] -= 1
                if uses[source] == 0 and source in offsets:
                    heap.give(offsets.pop(source), sizes[source])
        return heap.peak


class _Heap:
    """Offsets in buffers that grow: the smallest gap that fits, else the open end of one.

    A driver limits how much one buffer may hold, so a large heap has several chunks, and no result
    straddles two of them.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._chunks: list[_Chunk] = []

    @property
    def peak(self) -> int:
        return sum(chunk.used for chunk in self._chunks)

    def take(self, size: int) -> _Place:
        if size == 0:
            return _NOWHERE
        found: tuple[_Chunk, int] | None = None
        for chunk in self._chunks:
            gap = chunk.best_gap(size)
            if gap is not None:
                found = (chunk, gap)
        if found is None:
            found = self._open_end(size)
        chunk, index = found
        return chunk, chunk.cut(index, size)

    def _open_end(self, size: int) -> tuple[_Chunk, int]:
        """The chunk that grows least, or a new one."""
        found = best = None
        for chunk in self._chunks:
            if not chunk.free:
                continue
            offset, length = chunk.free[-1]
            spare = chunk.used - offset - size
            better = best is None or (best < 0 and spare > best) or 0 <= spare < best
            if length >= size and better:
                best, found = spare, (chunk, len(chunk.free) - 1)
        if found is None:
            last = len(self._chunks) == _MAX_CHUNKS - 1
            room = _OPEN_END if last else max(size, self._chunk_bytes)
            self._chunks.append(_Chunk(room))
            found = (self._chunks[-1], 0)
        return found

    @staticmethod
    def give(place: _Place, size: int) -> None:
        chunk, offset = place
        if chunk is not None:
            chunk.release(offset, size)


class _Chunk:
    """One buffer: its gaps by offset, the last of them open-ended, and how far it was used."""

    def __init__(self, room: int) -> None:
        self.free = [(0, room)]
        self.used = 0

    def best_gap(self, size: int) -> int | None:
        # This, `cut` and `release` run a thousand times an estimate, hence their bare form.
        best, best_length = None, _OPEN_END
        end = len(self.free) - 1
        for index, (_, length) in enumerate(self.free):
            if size <= length <= best_length and index != end:
                best, best_length = index, length
        return best

    def cut(self, index: int, size: int) -> int:
        offset, length = self.free[index]
        end = offset + size
        if length == size:
            del self.free[index]
        else:
            self.free[index] = (end, length - size)
        if end > self.used:
            self.used = end
        return offset

    def release(self, offset: int, size: int) -> None:
        free = self.free
        end = offset + size
        at = bisect_left(free, (offset, 0))
        if at < len(free) and free[at][0] == end:
            size += free[at][1]
            del free[at]
        if at > 0:
            before, length = free[at - 1]
            if before + length == offset:
                free[at - 1] = (before, length + size)
                return
        free.insert(at, (offset, size))


_Place = tuple[_Chunk | None, int]
_NOWHERE: Final[_Place] = (None, 0)
