"""Headers that were read before, kept by path, size and modification time of every shard.

A cache entry is only ever a shortcut: a missing, stale, foreign or corrupt one is read again from
the model, and a cache that cannot be written is no error.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_ai.errors import LlamaAiError
from llama_ai.gguf.header import Header, Shard, read_header
from llama_ai.gguf.parse import Skipped, TensorInfo, Value
from llama_ai.paths import cache_dir, private, write_atomic

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMAT: Final = 1
_MAX_ENTRIES: Final = 512
_MAX_ENTRY_BYTES: Final = 32 << 20


def read_header_cached(path: Path, directory: Path | None = None) -> Header:
    """:func:`~llama_ai.gguf.header.read_header`, remembered in the user's cache directory.

    ``directory`` replaces ``<cache>/headers``. Raises what ``read_header`` raises.
    """
    folder = cache_dir() / "headers" if directory is None else directory
    # Not resolved: a link's siblings, and so the model, depend on the path as given.
    absolute = path.absolute()
    entry = folder / (hashlib.sha256(str(absolute).encode(errors="surrogateescape")).hexdigest())
    cached = _load(entry, absolute)
    if cached is not None:
        return cached
    header = read_header(absolute)
    _store(entry, absolute, header)
    return header


def _load(entry: Path, path: Path) -> Header | None:
    try:
        if entry.stat().st_size > _MAX_ENTRY_BYTES:
            return None
        data = json.loads(entry.read_bytes())
        if data["format"] != _FORMAT or data["path"] != str(path):
            return None
        header = _decode(data)
        for shard in header.shards:
            status = shard.path.stat()
            if (status.st_size, status.st_mtime_ns) != (shard.size_bytes, shard.mtime_ns):
                return None
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return header if header.shards else None


def _store(entry: Path, path: Path, header: Header) -> None:
    try:
        data = json.dumps(_encode(path, header), separators=(",", ":")).encode()
        private(entry.parent)
        write_atomic(entry, data, durable=False)
        entries = list(entry.parent.iterdir())
        if len(entries) > _MAX_ENTRIES:
            entries.sort(key=lambda item: item.lstat().st_mtime_ns)
            for old in entries[:-_MAX_ENTRIES]:
                old.unlink(missing_ok=True)
    except (OSError, ValueError, LlamaAiError):
        return


def _encode(path: Path, header: Header) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "path": str(path),
        "version": header.version,
        "big_endian": header.big_endian,
        "kv": [_encode_value(key, value) for key, value in header.kv.items()],
        "tensors": header.tensors,
        "shards": [
            (str(s.path), s.size_bytes, s.mtime_ns, s.alignment, s.data_offset)
            for s in header.shards
        ],
    }


def _encode_value(key: str, value: Value) -> tuple[str, str, object]:
    if isinstance(value, Skipped):
        return key, "skipped", value
    return key, "array" if isinstance(value, tuple) else "scalar", value


def _decode(data: Mapping[str, Any]) -> Header:
    kv: dict[str, Value] = {}
    for key, kind, value in data["kv"]:
        if kind == "skipped":
            kv[key] = Skipped(*value)
        else:
            kv[key] = tuple(value) if kind == "array" else value
    return Header(
        version=data["version"],
        big_endian=data["big_endian"],
        kv=kv,
        tensors=tuple(
            TensorInfo(name, tuple(shape), kind, offset, size, shard)
            for name, shape, kind, offset, size, shard in data["tensors"]
        ),
        shards=tuple(
            Shard(
                path=Path(path),
                size_bytes=size,
                mtime_ns=mtime,
                alignment=alignment,
                data_offset=offset,
            )
            for path, size, mtime, alignment, offset in data["shards"]
        ),
    )
