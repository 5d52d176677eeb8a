"""A file on the hub read by range requests, and how the quantisations of one model share a header.

A header is mostly vocabulary (up to 18 MB), and all quantisations of a model have the same one. It
is read once; for the others only what surrounds it, with its edges compared.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from llama_ai.models.hub import HubError, refused, wait_of

if TYPE_CHECKING:
    import httpx

    from llama_ai.models.hub import Hub, RemoteFile

_STEP: Final = 2 << 20
"""Bytes a request at most: a header is read in steps, so that little is read past its end."""
_SMALL_STEP: Final = 256 << 10
_EDGE: Final = 32 << 10
"""Bytes that are compared at either end of a vocabulary."""
_TRIES: Final = 4
_TOKENS: Final = b"tokenizer.ggml.tokens"
_ARRAY, _STRING = 9, 8
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_LARGE_ARRAY: Final = 1000


class RangeSource:
    """A file on the hub, read by range requests; what was read is kept."""

    def __init__(self, hub: Hub, client: httpx.Client, url: str, file: RemoteFile) -> None:
        self._hub = hub
        self._client = client
        self._url = url
        self._file = file
        self._step = _STEP
        self._spans: list[tuple[int, memoryview]] = []

    @property
    def name(self) -> str:
        """The file's name in its repository."""
        return self._file.name

    @property
    def size_bytes(self) -> int:
        """As the hub lists it."""
        return self._file.size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes from ``offset``: as many as asked for, but no more than one step.

        The parser asks for its buffer's size and is content with less, as long as one value (at
        most 1 MiB) is whole. What is not kept yet is fetched in steps: a small one at the start,
        which holds the whole header of all shards but the first, larger ones from there on.
        """
        end = min(offset + min(length, self._step), self.size_bytes)
        parts = bytearray()
        while (at := offset + len(parts)) < end:
            kept = next((span for span in self._spans if span[0] <= at < _end(span)), None)
            if kept is not None:
                parts += kept[1][at - kept[0] : end - kept[0]]
                continue
            reach = min(at + (self._step if at else _SMALL_STEP), self.size_bytes)
            stop = min((start for start, _ in self._spans if at < start < reach), default=reach)
            self._spans.append((at, memoryview(self._get(at, stop))))
        return bytes(parts)

    def start(self, length: int) -> bytes:
        """The file's first ``length`` bytes, all of which were read before."""
        parts = bytearray()
        while len(parts) < length:
            data = self.read_at(len(parts), length - len(parts))
            if not data:
                break
            parts += data
        return bytes(parts)

    def share(self, known: Vocabulary) -> bool:
        """Take the vocabulary from ``known`` where this file has the same one."""
        first = self.read_at(0, _SMALL_STEP)
        at = first.find(_TOKENS)
        if at < 0 or at + _EDGE > len(first):
            return False
        if first[at : at + _EDGE] != known.data[:_EDGE]:
            return False
        end = at + len(known.data)
        if end + _EDGE > self.size_bytes:
            return False
        edge = self._get(end - _EDGE, end + _EDGE)
        if edge[:_EDGE] != known.data[-_EDGE:]:
            return False
        self._spans += [(at, memoryview(known.data)), (end - _EDGE, memoryview(edge))]
        self._step = _SMALL_STEP
        return True

    def _get(self, offset: int, end: int) -> bytes:
        import httpx

        headers = {"Range": f"bytes={offset}-{end - 1}", "Accept-Encoding": "identity"}
        for left in range(_TRIES - 1, -1, -1):
            try:
                with self._client.stream("GET", self._url, headers=headers) as response:
                    status = response.status_code
                    if status == 206:
                        data = response.read()
                        self._check(response, offset, end, data)
                        return data
                    wait_s = wait_of(response.headers)
            except httpx.HTTPError as error:
                if not left:
                    raise self._hub.unreachable(error) from error
                wait_s = 0.5
            else:
                if status == 200:
                    raise HubError(
                        "the hub sends no ranges, so headers cannot be read alone",
                        hint="pull a quantisation by its name instead",
                    )
                if status not in {408, 429, 500, 502, 503, 504} or not left:
                    raise refused(status, self.name)
            self._hub.wait(1.0 if wait_s is None else wait_s)
        raise AssertionError("unreachable")

    def _check(self, response: httpx.Response, offset: int, end: int, data: bytes) -> None:
        place, _, total = response.headers.get("content-range", "").partition("/")
        first = response.history[0] if response.history else response
        tag = first.headers.get("x-linked-etag", "").removeprefix("W/").strip('"')
        if (
            place != f"bytes {offset}-{end - 1}"
            or len(data) != end - offset
            or (total.isdigit() and int(total) != self.size_bytes)
            or (tag and tag != self._file.etag)
        ):
            raise HubError(
                f"{self.name} changed on the hub while it was read", hint="run the command again"
            )


def _end(span: tuple[int, memoryview]) -> int:
    return span[0] + len(span[1])


class Vocabulary:
    """The bytes of a header from the key of the tokens to the end of the large arrays after it."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @classmethod
    def of(cls, header: bytes) -> Vocabulary | None:
        """The vocabulary in a little-endian header; ``None`` where there is none worth sharing."""
        start = header.find(_TOKENS)
        if start < 0:
            return None
        end, at = 0, start + len(_TOKENS)
        try:
            while True:
                kind, element, count = struct.unpack_from("<IIQ", header, at)
                if kind != _ARRAY or count < _LARGE_ARRAY:
                    break
                at += 16
                if element == _STRING:
                    for _ in range(count):
                        at += 8 + struct.unpack_from("<Q", header, at)[0]
                else:
                    at += _SIZES[element] * count
                end = at
                # The next value: its key first.
                at += 8 + struct.unpack_from("<Q", header, at)[0]
        except (struct.error, KeyError):
            return None
        if end - start < 2 * _EDGE or end > len(header):
            return None
        return cls(header[start:end])
