"""Versions of the drivers around the kernel: Vulkan's driver files, Mesa, GPU firmware.

Only ``doctor`` asks for them, so that detection stays fast. Files are read, no command is run;
RPM's database is not a text file, so on such systems versions stay ``None`` unless Mesa's own
library names tell.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

ICD_DIRECTORIES = (
    "usr/share/vulkan/icd.d",
    "etc/vulkan/icd.d",
    "usr/local/share/vulkan/icd.d",
    "run/opengl-driver/share/vulkan/icd.d",  # NixOS
)
LIBRARY_DIRECTORIES = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "run/opengl-driver/lib",
)
DPKG_STATUS = "var/lib/dpkg/status"
PACMAN = "var/lib/pacman/local"

MESA_PACKAGES = ("mesa-vulkan-drivers", "vulkan-radeon")
FIRMWARE_PACKAGES = ("linux-firmware-amdgpu", "linux-firmware", "firmware-amd-graphics")

_DPKG_LIMIT_BYTES = 64 << 20
_GALLIUM = re.compile(r"libgallium-([0-9]+\.[0-9]+\.[0-9]+)", re.ASCII)
_NUMBERS = re.compile(r"(?:[0-9]+:)?([0-9]+)\.([0-9]+)(?:\.([0-9]+))?", re.ASCII)
_DATE = re.compile(r"(?<![0-9])(20[0-9]{6})(?![0-9])", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SoftwareFacts:
    """Drivers outside the kernel."""

    has_icd_directory: bool
    """Whether any directory of Vulkan driver files is there; without one nothing is known."""
    icds: tuple[str, ...]
    """Vulkan driver files, by name (``radeon_icd.x86_64.json``)."""
    vulkan_version: str | None
    """The API version that RADV's driver file states."""
    mesa: tuple[int, int, int] | None
    firmware_date: int | None
    """linux-firmware's date as a number, ``20251125``."""

    @property
    def radv(self) -> str | None:
        """RADV's driver file."""
        return next((name for name in self.icds if name.startswith("radeon_icd")), None)

    @property
    def mesa_text(self) -> str | None:
        """``25.1.4``."""
        return ".".join(str(part) for part in self.mesa) if self.mesa else None


def read_software(root: Root) -> SoftwareFacts:
    """Read the facts."""
    icds = {
        name: directory
        for directory in ICD_DIRECTORIES
        for name in root.listdir(directory)
        if name.endswith(".json")
    }
    radv = next((name for name in sorted(icds) if name.startswith("radeon_icd")), None)
    packages = _packages(root, MESA_PACKAGES + FIRMWARE_PACKAGES)
    mesa = _first(packages, MESA_PACKAGES)
    firmware = _first(packages, FIRMWARE_PACKAGES)
    date = _DATE.search(firmware or "")
    return SoftwareFacts(
        has_icd_directory=any(root.is_dir(directory) for directory in ICD_DIRECTORIES),
        icds=tuple(sorted(icds)),
        vulkan_version=None if radv is None else _api_version(root, f"{icds[radv]}/{radv}"),
        mesa=_version(mesa) or _gallium_version(root),
        firmware_date=int(date[1]) if date else None,
    )


def _api_version(root: Root, path: str) -> str | None:
    try:
        version = json.loads(root.read_text(path) or "")["ICD"]["api_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return version if isinstance(version, str) and version.isprintable() else None


def _gallium_version(root: Root) -> tuple[int, int, int] | None:
    """Since 24.2 Mesa names a library after its version."""
    for directory in LIBRARY_DIRECTORIES:
        for name in root.listdir(directory):
            match = _GALLIUM.match(name)
            if match:
                return _version(match[1])
    return None


def _packages(root: Root, wanted: tuple[str, ...]) -> dict[str, str]:
    """Installed versions by package name, from dpkg's or pacman's database."""
    found: dict[str, str] = {}
    for name in root.listdir(PACMAN):
        package, _, rest = name.rpartition("-")
        package, _, version = package.rpartition("-")
        if package in wanted:
            found[package] = f"{version}-{rest}"
    name = ""
    for line in (root.read_text(DPKG_STATUS, limit=_DPKG_LIMIT_BYTES) or "").splitlines():
        if line.startswith("Package: "):
            name = line[9:].strip()
        elif name in wanted and line.startswith("Version: "):
            found[name] = line[9:].strip()
    return found


def _first(packages: dict[str, str], names: tuple[str, ...]) -> str | None:
    return next((packages[name] for name in names if name in packages), None)


def _version(text: str | None) -> tuple[int, int, int] | None:
    match = _NUMBERS.match(text or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None
