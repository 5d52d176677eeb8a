"""The shipped device tables: which chip a PCI id is, and what it is called.

Tables live in ``profiles/devices/*.toml``; the schema is checked when they are loaded.
"""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_ai import paths
from llama_ai.errors import LlamaAiError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_PCI_ID = re.compile(r"[0-9a-f]{4}", re.ASCII)
_REVISION = re.compile(r"[0-9a-f]{2}", re.ASCII)
_GFX = re.compile(r"gfx[0-9a-f]{3,5}", re.ASCII)
_GC = re.compile(r"[0-9]{1,2}\.[0-9]{1,2}\.[0-9]{1,2}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Device:
    """One PCI device of AMD's that is an APU's graphics."""

    id: str
    codename: str
    generation: str
    gfx: str
    vk_nodes_per_submit: int
    bandwidth_gb_s: float | None
    """Nominal memory bandwidth in 10^9 bytes a second; ``None``: not in the table."""
    prefill_tflops: float | None
    """Arithmetic that prompt reading reached on it, in 10^12 operations a second."""
    names: Mapping[str, str]
    """PCI revision -> product name."""
    codenames: Mapping[str, str]
    """PCI revision -> codename, where it differs from ``codename``."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Handheld:
    """DMI prefixes of a handheld PC."""

    vendor: str
    product: str
    source: str


@dataclass(frozen=True, kw_only=True)
class DeviceTable:
    """All tables together."""

    devices: Mapping[str, Device]
    gfx_by_gc: Mapping[str, str]
    apu_gfx: frozenset[str]
    handhelds: tuple[Handheld, ...]

    def is_handheld(self, vendor: str | None, product: str | None) -> bool:
        """Whether these DMI strings name a known handheld."""
        if vendor is None or product is None:
            return False
        return any(
            vendor.lower().startswith(one.vendor.lower())
            and product.lower().startswith(one.product.lower())
            for one in self.handhelds
        )


@functools.cache
def device_table() -> DeviceTable:
    """The shipped tables. Raises :class:`~llama_ai.errors.LlamaAiError` if they are damaged."""
    return load(paths.asset("profiles") / "devices")


def load(directory: Path) -> DeviceTable:
    """Read ``amd-apu.toml``, ``gfx.toml`` and ``handhelds.toml`` from ``directory``.

    Raises :class:`~llama_ai.errors.LlamaAiError`, naming file and row, for a table that breaks
    the schema.
    """
    apus = _read(directory / "amd-apu.toml")
    gfx = _read(directory / "gfx.toml")
    handhelds = _read(directory / "handhelds.toml")
    where = "gfx.toml"
    gc = gfx.get("gc")
    apu = gfx.get("apu")
    if not isinstance(gc, dict) or not isinstance(apu, list):
        raise _broken(where, "needs a table gc and a list apu")
    for version, name in gc.items():
        _check(bool(_GC.fullmatch(version)), where, f"bad GC version {version!r}")
        _check(_is(_GFX, name), where, f"bad target {name!r}")
    _check(all(_is(_GFX, name) for name in apu), where, "bad target in apu")
    devices: dict[str, Device] = {}
    for row in _rows(apus, "device", "amd-apu.toml"):
        device = _device(row)
        _check(device.id not in devices, "amd-apu.toml", f"{device.id} stands there twice")
        devices[device.id] = device
    return DeviceTable(
        devices=devices,
        gfx_by_gc=dict(gc),
        apu_gfx=frozenset(apu),
        handhelds=tuple(_handheld(row) for row in _rows(handhelds, "handheld", "handhelds.toml")),
    )


def _device(row: dict[str, Any]) -> Device:
    where = f"amd-apu.toml, device {row.get('id')!r}"
    speeds = {"bandwidth_gb_s", "prefill_tflops"}
    known = {"id", "codename", "generation", "gfx", "vk_nodes_per_submit", "names", "codenames"}
    known |= speeds
    _check(set(row) <= known | {"source"}, where, f"unknown keys {sorted(set(row) - known)}")
    _check(_is(_PCI_ID, row.get("id")), where, "id must be four lower-case hexadecimal digits")
    _check(_is(_GFX, row.get("gfx")), where, "gfx must look like gfx1103")
    for key in ("codename", "generation", "source"):
        _check(isinstance(row.get(key), str) and row[key].strip() != "", where, f"needs {key}")
    nodes = row.get("vk_nodes_per_submit")
    _check(type(nodes) is int and 0 < nodes <= 1000, where, "vk_nodes_per_submit: 1 to 1000")
    for key in speeds & set(row):
        good = isinstance(row[key], int | float) and 0 < row[key] < 10_000
        _check(good, where, f"{key}: a number above 0")
    return Device(
        id=row["id"],
        codename=row["codename"],
        generation=row["generation"],
        gfx=row["gfx"],
        vk_nodes_per_submit=row["vk_nodes_per_submit"],
        bandwidth_gb_s=row.get("bandwidth_gb_s"),
        prefill_tflops=row.get("prefill_tflops"),
        names=_by_revision(row.get("names", {}), f"{where}, names"),
        codenames=_by_revision(row.get("codenames", {}), f"{where}, codenames"),
        source=row["source"],
    )


def _by_revision(table: object, where: str) -> dict[str, str]:
    """Turn ``name -> revisions`` round, refusing a revision that has two names."""
    result: dict[str, str] = {}
    if not isinstance(table, dict):
        raise _broken(where, "must be a table")
    for name, revisions in table.items():
        _check(isinstance(revisions, list) and revisions != [], where, f"{name}: needs revisions")
        for revision in revisions:
            _check(_is(_REVISION, revision), where, f"{name}: bad revision {revision!r}")
            _check(revision not in result, where, f"revision {revision} has two names")
            result[revision] = name
    return result


def _handheld(row: dict[str, Any]) -> Handheld:
    where = "handhelds.toml"
    _check(set(row) == {"vendor", "product", "source"}, where, f"bad keys in {row!r}")
    _check(all(isinstance(value, str) for value in row.values()), where, f"bad values in {row!r}")
    _check(row["vendor"] != "" and row["source"] != "", where, "needs vendor and source")
    return Handheld(**row)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            return tomllib.load(stream)
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise LlamaAiError(
            f"cannot read the device table {path.name}: {error}", hint="install llama-ai again"
        ) from error


def _rows(table: dict[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    rows = table.get(key)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise _broken(where, f"needs [[{key}]] rows")
    return rows


def _is(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _check(good: bool, where: str, what: str) -> None:
    if not good:
        raise _broken(where, what)


def _broken(where: str, what: str) -> LlamaAiError:
    return LlamaAiError(f"device table {where}: {what}", hint="install llama-ai again")
