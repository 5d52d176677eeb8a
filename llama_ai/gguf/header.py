"""The header of a model on disk: all its shards, whichever of them is handed in.

Only the first shard of a split model holds the metadata; it may hold no tensor at all. Shards are
looked for beside the path *as given*: in a Hugging Face cache that path is a symbolic link, and the
siblings lie beside the link, not beside its target. File names count shards from 1, the key
``split.no`` from 0.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import ModelNotFoundError
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.parse import FileHeader, TensorInfo, Value, parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of a model. ``data_offset`` is where its tensor data starts."""

    path: Path
    size_bytes: int
    mtime_ns: int
    alignment: int
    data_offset: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """A model's metadata (of its first shard) and the tensors of all its shards, in file order."""

    version: int
    big_endian: bool
    kv: Mapping[str, Value]
    tensors: tuple[TensorInfo, ...]
    shards: tuple[Shard, ...]

    @property
    def path(self) -> Path:
        """The file to hand to the engine: the first shard."""
        return self.shards[0].path

    @property
    def size_bytes(self) -> int:
        """Size of all shards together."""
        return sum(shard.size_bytes for shard in self.shards)


class FileSource:
    """A regular file, read with ``pread``."""

    def __init__(self, path: Path, fd: int, status: os.stat_result) -> None:
        self.path = path
        self.status = status
        self._fd = fd

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size_bytes(self) -> int:
        return self.status.st_size

    def read_at(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(self._fd, length, offset)):
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def open_source(path: Path) -> Iterator[FileSource]:
    """Open a regular file for :func:`llama_ai.gguf.parse.parse`.

    Raises :class:`ModelNotFoundError` when it is missing, unreadable, or not a regular file.
    """
    try:
        # Without O_NONBLOCK opening a FIFO would wait for a writer for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise ModelNotFoundError(
            f"{path}: no such file", hint="give the path of a .gguf file, or see 'llama-ai models'"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFoundError(
            f"{path}: cannot be opened: {reason}", hint="check the file's permissions"
        ) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ModelNotFoundError(
                f"{path}: not a regular file", hint="give the path of a .gguf file"
            )
        yield FileSource(path, fd, status)
    except OSError as error:
        raise BadModelFileError(
            f"{path}: cannot be read: {error.strerror}", hint="check the disk that holds it"
        ) from error
    finally:
        os.close(fd)


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of the model that ``path`` names, first shard first; ``(path,)`` if not split.

    This looks at the name only; :func:`read_header` checks it against the metadata.
    """
    match = _SHARD_NAME.fullmatch(path.name)
    if match is None:
        return (path,)
    no, count = int(match["no"]), int(match["count"])
    if not 1 <= no <= count:
        return (path,)
    return tuple(
        path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)
    )


def read_header(path: Path) -> Header:
    """Read the header of the model that ``path`` (any of its shards) belongs to.

    Raises :class:`ModelNotFoundError` (exit code 4): a file is missing or cannot be opened;
    its subclass :class:`BadModelFileError`: a file is not what it should be.
    """
    with open_source(path) as source:
        given = parse(source)
        given_shard = _shard(source, given)
    count = _split_value(given, "split.count", path)
    if count is None or count <= 1:
        return _header((given,), (given_shard,))
    paths = shard_paths(path)
    no = _split_value(given, "split.no", path)
    if len(paths) != count or no is None or not 0 <= no < count or paths[no] != path:
        raise BadModelFileError(
            f"{path}: one of {count} parts, but its name does not say which",
            hint="name the parts NAME-00001-of-NNNNN.gguf, as they were published",
        )
    headers: list[FileHeader] = []
    shards: list[Shard] = []
    for index, sibling in enumerate(paths):
        if index == no:
            tensors = tuple(t._replace(shard=index) for t in given.tensors)
            headers.append(_with_tensors(given, tensors))
            shards.append(given_shard)
            continue
        try:
            with open_source(sibling) as source:
                headers.append(parse(source, shard=index))
                shards.append(_shard(source, headers[-1]))
        except BadModelFileError:
            raise
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"{path}: part {index + 1} of {count} is missing or unreadable ({sibling.name})",
                hint="put all parts into one directory",
            ) from error
        if _split_value(headers[-1], "split.no", sibling) != index:
            raise BadModelFileError(
                f"{sibling}: does not say that it is part {index + 1} of {count}",
                hint="its name and its content differ: download it again",
            )
    _check_split(headers, path)
    return _header(tuple(headers), tuple(shards))


def _with_tensors(header: FileHeader, tensors: tuple[TensorInfo, ...]) -> FileHeader:
    return FileHeader(
        version=header.version,
        big_endian=header.big_endian,
        alignment=header.alignment,
        data_offset=header.data_offset,
        kv=header.kv,
        tensors=tensors,
    )


def _check_split(headers: list[FileHeader], path: Path) -> None:
    names: set[str] = set()
    total = 0
    for header in headers:
        total += len(header.tensors)
        names.update(tensor.name for tensor in header.tensors)
    if len(names) != total:
        raise BadModelFileError(
            f"{path}: a tensor appears in two parts", hint="the parts belong to different models"
        )
    wanted = _split_value(headers[0], "split.tensors.count", path)
    if wanted is not None and wanted != total:
        raise BadModelFileError(
            f"{path}: its parts hold {total} tensors where {wanted} are expected",
            hint="the parts belong to different models: download them again",
        )
    if len({header.big_endian for header in headers}) > 1:
        raise BadModelFileError(
            f"{path}: its parts differ in byte order", hint="download them again"
        )


def _split_value(header: FileHeader, key: str, path: Path) -> int | None:
    value = header.kv.get(key)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise BadModelFileError(f"{path}: {key} is not a number", hint="download the file again")


def _shard(source: FileSource, header: FileHeader) -> Shard:
    return Shard(
        path=source.path,
        size_bytes=source.status.st_size,
        mtime_ns=source.status.st_mtime_ns,
        alignment=header.alignment,
        data_offset=header.data_offset,
    )


def _header(headers: tuple[FileHeader, ...], shards: tuple[Shard, ...]) -> Header:
    return Header(
        version=headers[0].version,
        big_endian=headers[0].big_endian,
        kv=headers[0].kv,
        tensors=tuple(tensor for header in headers for tensor in header.tensors),
        shards=shards,
    )
