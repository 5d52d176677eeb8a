"""A memory cgroup for one benchmark run, version 1 or 2, always removed again.

Needs the right to make a cgroup: root, or a delegated v2 subtree.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

MOUNTS = Path("/proc/self/mounts")
OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Bytes charged. ``peak_bytes`` holds all kinds; None where the kernel does not say."""

    anonymous_bytes: int
    page_cache_bytes: int
    peak_bytes: int | None
    limit_hits: int
    oom_kills: int


def _home() -> tuple[int, Path]:
    """Where new memory cgroups go: the version and the directory of our own cgroup."""
    mounted = [line.split() for line in MOUNTS.read_text().splitlines()]
    own = [line.split(":", 2) for line in OWN.read_text().splitlines()]
    for _, point, kind, options, *_ in mounted:
        if kind == "cgroup" and "memory" in options.split(","):
            mine = next((path for _, names, path in own if "memory" in names.split(",")), "/")
            found = Path(point) / mine.lstrip("/")
            # In a container our own path may lie outside what is mounted.
            return 1, found if found.is_dir() else Path(point)
    for _, point, kind, *_ in mounted:
        controllers = Path(point) / "cgroup.controllers"
        if kind == "cgroup2" and "memory" in controllers.read_text().split():
            # Below the root: a cgroup that has processes of its own cannot share out memory.
            return 2, Path(point)
    raise OSError("no memory cgroup is mounted here")


class MemoryCgroup:
    """``with MemoryCgroup(limit_bytes) as group: Popen(group.argv(words))``; None: no limit.

    At the end whatever still runs in it is killed, and it is removed.
    """

    def __init__(self, limit_bytes: int | None) -> None:
        self.version, home = _home()
        self.path = home / f"llama-ai-bench-{os.getpid()}-{time.monotonic_ns()}"
        if self.version == 2 and "memory" not in (home / "cgroup.subtree_control").read_text():
            (home / "cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        try:
            if limit_bytes is not None:
                v1, v2 = "memory.limit_in_bytes", "memory.max"
                (self.path / (v1 if self.version == 1 else v2)).write_text(str(limit_bytes))
                # Without swap the limit is a limit. Kernels without swap lack these files.
                swap = "memory.swappiness" if self.version == 1 else "memory.swap.max"
                if (self.path / swap).exists():
                    (self.path / swap).write_text("0")
        except OSError:
            self.close()
            raise

    def argv(self, words: list[str]) -> list[str]:
        """The command that joins the cgroup, then becomes ``words``: all its memory is charged."""
        join = f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", join, "sh", *words]

    def usage(self) -> Usage:
        """What is charged now, and the highest since the start."""
        stat = dict(line.split() for line in self._read("memory.stat").splitlines())
        if self.version == 1:
            events = dict(line.split() for line in self._read("memory.oom_control").splitlines())
            return Usage(
                anonymous_bytes=int(stat["total_rss"]),
                page_cache_bytes=int(stat["total_cache"]),
                peak_bytes=int(self._read("memory.max_usage_in_bytes")),
                limit_hits=int(self._read("memory.failcnt")),
                oom_kills=int(events.get("oom_kill", 0)),
            )
        events = dict(line.split() for line in self._read("memory.events").splitlines())
        peak = self.path / "memory.peak"  # since Linux 5.19
        return Usage(
            anonymous_bytes=int(stat["anon"]),
            page_cache_bytes=int(stat["file"]),
            peak_bytes=int(peak.read_text()) if peak.exists() else None,
            limit_hits=int(events["max"]),
            oom_kills=int(events["oom_kill"]),
        )

    def _read(self, name: str) -> str:
        return (self.path / name).read_text()

    def close(self) -> None:
        """Kill what is left in it and remove it."""
        for _ in range(100):
            for pid in self._read("cgroup.procs").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.path.rmdir()
            except OSError:
                time.sleep(0.1)  # processes that end, pages that are given back
            else:
                return
        raise OSError(f"could not remove {self.path}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
