"""Read the headers of the engine's KV files (format: ``native/README.md``, "The KV store").

Only headers: the state itself is the engine's business. A running engine may drop or add files at
any time, so a file that is gone when it is looked at is simply not there.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from llama_ai.errors import LlamaAiError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAGIC = b"llamaiKV"
VERSION = 2
FIXED_BYTES = 512
FLAG_SYSTEM = 1
FLAG_SYSTEM_END = 2
SUFFIX, BAD_SUFFIX = ".kv", ".bad"

# magic, version, sections, checksum, fingerprint, namespace, kind, flags, begin, end, created,
# two keys, tokens checksum, file size, model name
_FIXED = struct.Struct("<8sIIQ16sQIIiiq16s16sQQ64s")


@dataclass(frozen=True, kw_only=True)
class KvFile:
    """One stored part of a conversation."""

    path: Path
    size_bytes: int
    used_s: float
    """When it was last used, seconds since the epoch."""
    kind: Literal["segment", "partial"]
    """``segment``: the cells of ``begin`` to ``end``; ``partial``: state that has no positions."""
    begin: int
    end: int
    """Tokens; the file belongs to a conversation of at least ``end`` tokens."""
    created_s: int
    model: str
    fingerprint: str
    system: bool
    """Part of a system prompt."""
    system_end: bool
    """The part with which a system prompt ends: one of these per system prompt."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A directory's files, and what else lies in it."""

    directory: Path
    files: tuple[KvFile, ...]
    """The most recently used first."""
    damaged: tuple[Path, ...]
    """Set aside by an engine, or unreadable."""
    damaged_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of it, the damaged files included."""
        return sum(file.size_bytes for file in self.files) + self.damaged_bytes


def read_directory(directory: Path) -> Contents:
    """What is stored in ``directory``; empty when there is no such directory.

    Raises :class:`~llama_ai.errors.LlamaAiError` when it cannot be read.
    """
    files: list[KvFile] = []
    damaged: list[Path] = []
    damaged_bytes = 0
    try:
        found = sorted(directory.iterdir())
    except FileNotFoundError:
        found = []
    except OSError as error:
        raise LlamaAiError(
            f"cannot read {directory}: {error.strerror}", hint="name another one with --kv-dir"
        ) from error
    for path in found:
        if path.suffix not in {SUFFIX, BAD_SUFFIX} or path.is_symlink():
            continue
        try:
            status = path.stat()
            file = read_header(path) if path.suffix == SUFFIX else None
        except OSError:
            continue
        if file is None:
            damaged.append(path)
            damaged_bytes += status.st_size
        else:
            files.append(file)
    files.sort(key=lambda file: (-file.used_s, file.path.name))
    return Contents(
        directory=directory,
        files=tuple(files),
        damaged=tuple(damaged),
        damaged_bytes=damaged_bytes,
    )


def read_header(path: Path) -> KvFile | None:
    """The header of one file; ``None`` when it is none of this version, or is cut short."""
    with path.open("rb") as stream:
        fixed = stream.read(FIXED_BYTES)
    status = path.stat()
    if len(fixed) < FIXED_BYTES:
        return None
    (
        magic,
        version,
        _sections,
        _checksum,
        fingerprint,
        _namespace,
        kind,
        flags,
        begin,
        end,
        created_s,
        _start_key,
        _next_key,
        _tokens_checksum,
        file_bytes,
        model,
    ) = _FIXED.unpack_from(fixed)
    if magic != MAGIC or version != VERSION or kind not in {1, 2} or file_bytes != status.st_size:
        return None
    return KvFile(
        path=path,
        size_bytes=status.st_size,
        used_s=status.st_mtime,
        kind="segment" if kind == 1 else "partial",
        begin=begin,
        end=end,
        created_s=created_s,
        model=model.split(b"\0", 1)[0].decode("utf-8", "replace"),
        fingerprint=fingerprint.hex(),
        system=bool(flags & FLAG_SYSTEM),
        system_end=bool(flags & FLAG_SYSTEM_END),
    )


def remove(paths: Iterable[Path]) -> int:
    """Remove files and return how many were there.

    An engine that has one of them in its index has a miss, and no more. Raises
    :class:`~llama_ai.errors.LlamaAiError` at the first that cannot be removed.
    """
    count = 0
    for path in paths:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise LlamaAiError(
                f"cannot remove {path}: {error.strerror}", hint="does it belong to another user?"
            ) from error
        count += 1
    return count
