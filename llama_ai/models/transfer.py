"""Fetch one file: by ranges, from where an earlier attempt stopped, and only the right bytes.

A file is written beside its place as ``<etag>.incomplete`` and moved there when its size and its
hash are right. What is incomplete stays for the next attempt; what is wrong does not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from llama_ai.errors import AlreadyRunningError, LlamaAiError
from llama_ai.models.hub import MAX_TRIES, HubError, refused, wait_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import httpx

    from llama_ai.models.hub import Hub, RemoteFile

_CHUNK: Final = 1 << 20
_RETRIED: Final = frozenset({408, 429, 500, 502, 503, 504})


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


class WrongContentError(LlamaAiError):
    """What came is not what the hub had listed; it was not kept."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a file comes from."""

    hub: Hub
    client: httpx.Client
    url: str
    file: RemoteFile


def incomplete_path(target: Path) -> Path:
    """What is there of ``target`` so far."""
    return target.with_name(target.name + ".incomplete")


def have_bytes(target: Path, file: RemoteFile) -> int:
    """How much of ``file`` is on disk already, whole or in part."""
    for path in (target, incomplete_path(target)):
        try:
            size = path.stat().st_size
        except OSError:
            continue
        if path is target and size == file.size_bytes:
            return size
        if path is not target and size <= file.size_bytes:
            return size
    return 0


def fetch(source: Source, target: Path, on_bytes: Callable[[int], None]) -> None:
    """Fetch ``source`` to ``target``; ``on_bytes(so_far)`` follows it.

    A broken or stalled connection is taken up again a few times. Raises
    :class:`~llama_ai.models.hub.HubError` (the part stays), :class:`WrongContentError` (it does
    not), or :class:`~llama_ai.errors.AlreadyRunningError` when another process fetches this file.
    """
    file = source.file
    if have_bytes(target, file) == file.size_bytes and target.exists():
        on_bytes(file.size_bytes)
        return
    part = incomplete_path(target)
    with _locked(part) as descriptor:
        digest = _digest(file)
        _take_what_is_there(descriptor, file, digest)
        _fill(source, descriptor, digest, on_bytes)
        if digest.hexdigest() != file.etag:
            part.unlink(missing_ok=True)
            raise WrongContentError(
                f"{file.name} has a wrong hash and was not kept",
                hint="it changed on the hub, or was damaged on the way: run the same command again",
            )
        os.fsync(descriptor)
        part.replace(target)


def _fill(
    source: Source, descriptor: int, digest: _Digest, on_bytes: Callable[[int], None]
) -> None:
    import httpx

    file = source.file
    tries = MAX_TRIES
    while (at := os.lseek(descriptor, 0, os.SEEK_CUR)) < file.size_bytes:
        on_bytes(at)
        try:
            _stream(source, descriptor, digest, at, on_bytes)
        except _AgainError as error:
            tries -= 1
            if tries <= 0:
                raise HubError(error.said, hint="run the same command later: it goes on") from None
            source.hub.wait(error.wait_s)
            continue
        except httpx.HTTPError as error:
            moved = os.lseek(descriptor, 0, os.SEEK_CUR) > at
            tries = MAX_TRIES if moved else tries - 1
            if tries <= 0:
                raise HubError(
                    f"the connection broke while {file.name} was fetched: "
                    f"{str(error) or type(error).__name__}",
                    hint="run the same command again: it goes on from where it stopped",
                ) from error
            source.hub.tell(f"the connection broke at {at} bytes, going on")
            source.hub.sleep(min(8.0, 0.5 * 2 ** (MAX_TRIES - tries)))
            continue
        if os.lseek(descriptor, 0, os.SEEK_CUR) == at:
            tries -= 1
            if tries <= 0:
                raise HubError(
                    f"the hub sends nothing more of {file.name}",
                    hint="run the same command later: it goes on from where it stopped",
                )
            source.hub.sleep(0.5)
    on_bytes(file.size_bytes)


class _AgainError(Exception):
    def __init__(self, wait_s: float, said: str) -> None:
        super().__init__(said)
        self.wait_s = wait_s
        self.said = said


def _stream(
    source: Source, descriptor: int, digest: _Digest, at: int, on_bytes: Callable[[int], None]
) -> None:
    """One request, written to the file as it comes, up to the file's size and not beyond."""
    file = source.file
    # Compression would make a range of something else.
    headers = {"Accept-Encoding": "identity", "Range": f"bytes={at}-"}
    with source.client.stream("GET", source.url, headers=headers) as response:
        status = response.status_code
        if status in _RETRIED:
            wait_s = wait_of(response.headers)
            raise _AgainError(1.0 if wait_s is None else wait_s, f"the hub answers {status}")
        if status not in {200, 206}:
            raise refused(status, file.name)
        _check_same(response, file, at)
        skip = at if status == 200 else 0  # the server knows no ranges: pass over what we have
        # In the pieces that arrive: a larger one would be lost with the connection.
        for data in response.iter_raw():
            if skip:
                passed = min(skip, len(data))
                skip -= passed
                data = data[passed:]  # noqa: PLW2901
            if at + len(data) > file.size_bytes:
                raise WrongContentError(
                    f"{file.name} is larger than its {file.size_bytes} bytes; the rest was refused",
                    hint="it changed on the hub: run the same command again",
                )
            _write(descriptor, data)
            digest.update(data)
            at += len(data)
            on_bytes(at)


def _check_same(response: httpx.Response, file: RemoteFile, at: int) -> None:
    """What answers must be the file that was listed: its tag, its size, the place asked for."""
    first = response.history[0] if response.history else response
    tag = (first.headers.get("x-linked-etag") or "").removeprefix("W/").strip('"')
    changed = bool(tag) and tag != file.etag
    if response.status_code == 206:
        place, _, total = response.headers.get("content-range", "").partition("/")
        changed = changed or not place.startswith(f"bytes {at}-")
        changed = changed or (total.isdigit() and int(total) != file.size_bytes)
    elif (length := response.headers.get("content-length", "")).isdigit():
        changed = changed or int(length) != file.size_bytes
    if changed:
        raise WrongContentError(
            f"{file.name} changed on the hub while it was fetched",
            hint="run the same command again: it fetches the new one",
        )


def _write(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            raise LlamaAiError(
                f"cannot write the file: {error.strerror}",
                hint="make space, then run the same command: it goes on from where it stopped",
            ) from error


def _digest(file: RemoteFile) -> _Digest:
    if file.sha256 is not None:
        return hashlib.sha256()
    # Git names a small file by the hash of a header and its content.
    digest = hashlib.sha1(usedforsecurity=False)
    digest.update(f"blob {file.size_bytes}\0".encode())
    return digest


def _take_what_is_there(descriptor: int, file: RemoteFile, digest: _Digest) -> None:
    """Hash the part that an earlier attempt left; one that is too long is no part of this file."""
    if os.fstat(descriptor).st_size > file.size_bytes:
        os.ftruncate(descriptor, 0)
    while data := os.read(descriptor, _CHUNK):
        digest.update(data)


@contextmanager
def _locked(part: Path) -> Iterator[int]:
    """The part's file, for this process alone."""
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LlamaAiError(
            f"cannot write below {part.parent}: {error.strerror}",
            hint="HF_HUB_CACHE names another place",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AlreadyRunningError(
                "another process fetches this file", hint="wait for it, or stop it"
            ) from None
        yield descriptor
    except WrongContentError:
        part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
