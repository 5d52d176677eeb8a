"""Known bad combinations of GPU, kernel and firmware (``profiles/devices/known-trouble.toml``)."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_ai import paths
from llama_ai.errors import LlamaAiError

if TYPE_CHECKING:
    from pathlib import Path

Version = tuple[int, int, int]

_KEYS = frozenset({"id", "gfx", "backend", "what", "hint", "source"})
_OPTIONAL = frozenset({"kernel_from", "kernel_below", "firmware_dates"})


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """One row. A bound that is ``None`` or empty does not restrict."""

    id: str
    gfx: frozenset[str]
    backend: str
    kernel_from: Version | None
    kernel_below: Version | None
    firmware_dates: frozenset[int]
    what: str
    hint: str
    source: str

    def applies(self, gfx: str | None, kernel: Version | None, firmware: int | None) -> bool | None:
        """Whether the row fits; ``None`` when a version that it asks for is not known."""
        if gfx not in self.gfx:
            return False
        if kernel is None and (self.kernel_from or self.kernel_below):
            return None
        if kernel is not None and self.kernel_from is not None and kernel < self.kernel_from:
            return False
        if kernel is not None and self.kernel_below is not None and kernel >= self.kernel_below:
            return False
        if self.firmware_dates:
            return None if firmware is None else firmware in self.firmware_dates
        return True


@functools.cache
def known_trouble() -> tuple[Trouble, ...]:
    """The shipped table. Raises :class:`~llama_ai.errors.LlamaAiError` if it is damaged."""
    return load(paths.asset("profiles") / "devices" / "known-trouble.toml")


def load(path: Path) -> tuple[Trouble, ...]:
    """Read and check the table at ``path``; raises :class:`~llama_ai.errors.LlamaAiError`."""
    try:
        with path.open("rb") as stream:
            rows = tomllib.load(stream)["trouble"]
        return tuple(_row(row) for row in rows)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LlamaAiError(
            f"cannot read {path.name}: {error}", hint="install llama-ai again"
        ) from error


def _row(row: dict[str, Any]) -> Trouble:
    keys = set(row)
    if not keys >= _KEYS or not keys <= _KEYS | _OPTIONAL:
        raise ValueError(f"row {row.get('id')!r}: wrong keys {sorted(keys ^ _KEYS)}")
    if row["backend"] not in ("vulkan", "rocm", "any") or not row["gfx"]:
        raise ValueError(f"row {row['id']!r}: backend or gfx is wrong")
    return Trouble(
        id=str(row["id"]),
        gfx=frozenset(str(name) for name in row["gfx"]),
        backend=row["backend"],
        kernel_from=_version(row.get("kernel_from")),
        kernel_below=_version(row.get("kernel_below")),
        firmware_dates=frozenset(int(date) for date in row.get("firmware_dates", [])),
        what=str(row["what"]),
        hint=str(row["hint"]),
        source=str(row["source"]),
    )


def _version(value: object) -> Version | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError(f"a kernel version is three numbers, not {value!r}")
    major, minor, patch = value
    return int(major), int(minor), int(patch)
