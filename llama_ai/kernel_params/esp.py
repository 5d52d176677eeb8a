"""FAT partitions that nobody mounted: on some systems one of them holds the real boot entries."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.execute import COMMAND_PATH
from llama_ai.kernel_params.routes.entries import MOUNTED_BY_US

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_ai.kernel_params.tree import Tree

_UDEV = "/run/udev/data"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
ESP_ROUTES = frozenset({"systemd-boot", "steamos"})


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A FAT partition: its device, and a name that stays the same over reboots."""

    device: str
    name: str


def unmounted_fat(tree: Tree) -> list[Partition]:
    """FAT partitions of fixed disks that are not mounted, as udev knows them."""
    mounted = {
        line.split(" ")[2]
        for line in (tree.fact("/proc/self/mountinfo") or "").splitlines()
        if line.count(" ") > 3
    }
    found: list[Partition] = []
    for entry in tree.names(_UDEV):
        match = re.fullmatch(r"b([0-9]+:[0-9]+)", entry)
        text = tree.fact(f"{_UDEV}/{entry}") or ""
        if not match or match[1] in mounted or "E:ID_FS_TYPE=vfat" not in text.splitlines():
            continue
        block = tree.resolve(f"/sys/dev/block/{match[1]}")
        device = block.rpartition("/")[2]
        removable = tree.fact(f"{block}/removable") or tree.fact(f"{block}/../removable")
        uuid = re.search(r"^E:ID_PART_ENTRY_UUID=(\S+)$", text, re.MULTILINE)
        name = uuid[1] if uuid and _SAFE.fullmatch(uuid[1]) else device
        if removable == "0" and _SAFE.fullmatch(device) and _SAFE.fullmatch(name):
            found.append(Partition(device=f"/dev/{device}", name=name))
    return found


@contextlib.contextmanager
def mounted_entries(tree: Tree, *, write: bool) -> Iterator[None]:
    """Mount those that hold boot loader entries below :data:`MOUNTED_BY_US`; unmount at the end.

    They are mounted read-only to look, and writable only with ``write`` and only when they hold
    entries. Does nothing on a recording, or without root.
    """
    done: list[str] = []
    try:
        if tree.is_live and os.geteuid() == 0:
            for partition in unmounted_fat(tree):
                place = f"{MOUNTED_BY_US}/{partition.name}"
                os.makedirs(place, mode=0o700, exist_ok=True)  # noqa: PTH103
                _call(
                    "mount", "-t", "vfat", "-o", "ro,nosuid,nodev,noexec", partition.device, place
                )
                done.append(place)
                if not tree.names(f"{place}/loader/entries"):
                    _unmount(done.pop())
                elif write:
                    _call("mount", "-o", "remount,rw", place)
        yield
    finally:
        for place in reversed(done):
            _unmount(place)
        with contextlib.suppress(OSError):
            os.rmdir(MOUNTED_BY_US)  # noqa: PTH106


def _unmount(place: str) -> None:
    _call("umount", place)
    with contextlib.suppress(OSError):
        os.rmdir(place)  # noqa: PTH106


def _call(*argv: str) -> None:
    ended = subprocess.run(
        argv, env={"PATH": COMMAND_PATH, "LANG": "C.UTF-8"}, capture_output=True, check=False
    )
    if ended.returncode != 0:
        raise LlamaAiError(
            f"`{' '.join(argv)}` failed: {ended.stderr.decode('utf-8', 'replace').strip()}"
        )
