"""System memory, the limit of our control group, and TTM's parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.hardware.facts import MemoryFacts, TtmFacts
from llama_ai.hardware.root import parse_int

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

CGROUP = "sys/fs/cgroup"
MODULE = "sys/module"

_LINE = re.compile(r"(\w+):\s+([0-9]+) kB", re.ASCII)


def read_memory(root: Root) -> MemoryFacts:
    """``/proc/meminfo`` in bytes, and the tightest cgroup limit."""
    lines = (_LINE.match(line) for line in (root.read_text("proc/meminfo") or "").splitlines())
    kib = {match[1]: parse_int(match[2]) for match in lines if match}

    def in_bytes(key: str) -> int | None:
        value = kib.get(key)
        return None if value is None else value * 1024

    # A kernel cannot run in no memory: a total of 0 is a broken recording, not a fact.
    return MemoryFacts(
        ram_bytes=in_bytes("MemTotal") or None,
        ram_available_bytes=in_bytes("MemAvailable"),
        swap_bytes=in_bytes("SwapTotal"),
        cgroup_limit_bytes=_cgroup_limit(root),
        cgroup_known=bool(root.read_text("proc/self/cgroup")),
    )


def read_ttm(root: Root) -> TtmFacts:
    """TTM's limits as the loaded modules state them.

    AMD's DKMS driver brings its own copy, ``amdttm``; where that is loaded, ``ttm`` serves other
    drivers only and its parameters mean nothing to amdgpu.
    """
    loaded = [name for name in ("amdttm", "ttm") if root.is_dir(MODULE, name, "parameters")]
    module = loaded[0] if loaded else None
    where = f"{MODULE}/{module}/parameters"
    return TtmFacts(
        module=module,
        pages_limit=root.read_int(where, "pages_limit") if module else None,
        page_pool_size=root.read_int(where, "page_pool_size") if module else None,
        other_pages_limit=(
            root.read_int(MODULE, loaded[1], "parameters/pages_limit") if len(loaded) > 1 else None
        ),
        # Unset is shown as -1, which read_int refuses: unknown and unset are one thing here.
        gttsize_mib=root.read_int(MODULE, "amdgpu/parameters/gttsize"),
        dkms_version=root.read_word(MODULE, "amdgpu/version"),
    )


def _cgroup_limit(root: Root) -> int | None:
    """The smallest memory limit on the way from our control group to the top.

    Version 2 keeps it in ``memory.max``, version 1 in ``memory.limit_in_bytes``; "no limit" is
    the word ``max`` or a number beyond any memory, and both read as ``None``.
    """
    limits: list[int] = []
    for line in (root.read_text("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part]
        if ".." in parts:
            # We see a part of the hierarchy only; what we see starts at the mount.
            parts = []
        if controllers == "":
            bases, name = [CGROUP, f"{CGROUP}/unified"], "memory.max"
        elif "memory" in controllers.split(","):
            bases, name = [f"{CGROUP}/memory"], "memory.limit_in_bytes"
        else:
            continue
        for base in bases:
            for depth in range(len(parts) + 1):
                limit = root.read_int(base, *parts[:depth], name)
                if limit is not None:
                    limits.append(limit)
    return min(limits, default=None)
