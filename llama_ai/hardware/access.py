"""What can only be asked of the machine that we run on: may we open the GPU, what disk is this."""

from __future__ import annotations

import grp
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

DEV = Path("/dev/dri")


@dataclass(frozen=True, kw_only=True)
class RenderAccess:
    """Whether this user may use a render node."""

    path: str
    exists: bool
    usable: bool
    """Readable and writable by this user."""
    mode: int | None
    group: str | None


@dataclass(frozen=True, kw_only=True)
class DiskFacts:
    """The file system that holds a directory."""

    directory: str
    free_bytes: int | None
    rotational: bool | None
    """``False`` for an SSD; ``None`` where the device cannot be told (network, overlay, RAM)."""
    device: str | None


def render_access(node: str) -> RenderAccess:
    """Look at ``/dev/dri/<node>`` of this machine."""
    path = DEV / node
    try:
        status = path.stat()
    except OSError:
        return RenderAccess(path=str(path), exists=False, usable=False, mode=None, group=None)
    try:
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        group = str(status.st_gid)
    return RenderAccess(
        path=str(path),
        exists=True,
        usable=os.access(path, os.R_OK | os.W_OK),
        mode=status.st_mode & 0o777,
        group=group,
    )


def disk_facts(root: Root, directory: Path) -> DiskFacts:
    """The disk below ``directory`` (or its nearest parent that exists) on this machine."""
    place = directory
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
        device = place.stat().st_dev
    except OSError:
        return DiskFacts(directory=str(directory), free_bytes=None, rotational=None, device=None)
    number = f"{os.major(device)}:{os.minor(device)}"
    name = root.link_name("sys/dev/block", number) or ""
    if not name:
        name = _source_name(root, number)
    return DiskFacts(
        directory=str(directory),
        free_bytes=free,
        rotational=_rotational(root, name),
        device=name or None,
    )


def _source_name(root: Root, number: str) -> str:
    """File systems without a device number of their own (btrfs) name their device in mountinfo."""
    for line in (root.read_text("proc/self/mountinfo") or "").splitlines():
        before, _, after = line.partition(" - ")
        words, source = before.split(), after.split()
        if len(words) > 2 and words[2] == number and len(source) > 1:
            return Path(source[1]).name if source[1].startswith("/dev/") else ""
    return ""


def _rotational(root: Root, name: str) -> bool | None:
    """``queue/rotational`` of a disk; a partition's disk is the directory above its own."""
    # A virtual disk calls itself rotating whatever lies below it.
    if not name or name.startswith(("vd", "xvd")):
        return None
    for place in ("queue/rotational", "../queue/rotational"):
        value = root.read_int("sys/class/block", name, place)
        if value is not None:
            return bool(value)
    return None
