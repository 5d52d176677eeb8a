"""Who a process is: its pid alone is not enough, because pids are used again.

Identity is the pid together with the process's start time in clock ticks since boot and the boot's
own id, so that neither a reused pid, a changed wall clock nor a reboot can confuse two processes.
"""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def start_id(pid: int, proc: Path = PROC) -> str | None:
    """The start of the living process ``pid`` as ``"<ticks>@<boot id>"``.

    ``None`` when there is no such process, or when it is a zombie that only waits to be reaped.
    """
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None if (proc / "self").exists() else _start_without_proc(pid)
    except (ProcessLookupError, PermissionError):
        return None
    # The name in parentheses may hold anything, a parenthesis too: count from the last one.
    fields = stat.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return f"{fields[19]}@{_boot_id(proc)}"


def is_alive(pid: int | None, start: str | None, proc: Path = PROC) -> bool:
    """Whether the very process that was recorded as ``pid`` and ``start`` still runs."""
    return pid is not None and start is not None and start_id(pid, proc) == start


def name_of(pid: int, proc: Path = PROC) -> str | None:
    """The program's short name, or ``None`` when it cannot be read."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _start_without_proc(pid: int) -> str | None:
    """For systems that have no ``/proc`` (macOS)."""
    import psutil

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return f"{process.create_time():.3f}@{psutil.boot_time():.0f}"
    except psutil.Error:
        return None
