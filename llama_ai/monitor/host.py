"""The machine: GPU by sysfs, processors and memory by psutil, the engine's process by psutil."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psutil

from llama_ai.monitor.sample import Cpu, Gpu, Memory

if TYPE_CHECKING:
    from llama_ai.hardware.facts import GpuFacts
    from llama_ai.hardware.root import Root


class GpuReader:
    """Reads one card. The files of hwmon are found once, and again when the card comes back."""

    def __init__(self, root: Root, facts: GpuFacts, budget_bytes: int | None = None) -> None:
        self._root = root
        self._device = f"sys/class/drm/{facts.card}/device"
        self._still = Gpu(card=facts.card, name=facts.label, budget_bytes=budget_bytes)
        self._hwmon: str | None = None

    def read(self) -> Gpu:
        """The card now. A file that fails gives ``None`` in its place."""
        root, device = self._root, self._device
        busy = root.read_int(device, "gpu_busy_percent")
        return Gpu(
            card=self._still.card,
            name=self._still.name,
            budget_bytes=self._still.budget_bytes,
            busy_percent=busy if busy is not None and busy <= 100 else None,
            vram_used_bytes=root.read_int(device, "mem_info_vram_used"),
            vram_total_bytes=root.read_int(device, "mem_info_vram_total"),
            gtt_used_bytes=root.read_int(device, "mem_info_gtt_used"),
            gtt_total_bytes=root.read_int(device, "mem_info_gtt_total"),
            power_w=self._scaled(("power1_average", "power1_input"), 1e6),
            temp_c=self._scaled(("temp1_input",), 1e3),
            freq_mhz=None if (hz := self._scaled(("freq1_input",), 1e6)) is None else round(hz),
        )

    def _scaled(self, names: tuple[str, ...], unit: float) -> float | None:
        directory = self._find_hwmon()
        if directory is None:
            return None
        for name in names:
            value = self._root.read_int(directory, name)
            if value is not None:
                return round(value / unit, 1)
        return None

    def _find_hwmon(self) -> str | None:
        if self._hwmon is None or not self._root.is_dir(self._hwmon):
            names = self._root.listdir(self._device, "hwmon")
            self._hwmon = f"{self._device}/hwmon/{names[0]}" if names else None
        return self._hwmon


class CpuReader:
    """Load since the reading before."""

    def __init__(self) -> None:
        self._before: list[tuple[float, float]] = []
        self.read()

    def read(self) -> Cpu:
        """Load per core and together; empty on the first reading."""
        now = [(_busy_s(times), sum(times[:8])) for times in psutil.cpu_times(percpu=True)]
        before, self._before = self._before, now
        if len(before) != len(now):  # a processor came or went
            return Cpu()
        cores = [
            max(0.0, min(100.0, 100 * (busy - old_busy) / (total - old_total)))
            if total > old_total
            else None
            for (busy, total), (old_busy, old_total) in zip(now, before, strict=True)
        ]
        known = [round(core, 1) for core in cores if core is not None]
        if len(known) != len(cores):
            return Cpu()
        return Cpu(percent=round(sum(known) / len(known), 1), cores_percent=tuple(known))


def _busy_s(times: Any) -> float:
    # The first eight columns of /proc/stat; guest time is part of user time already.
    return float(sum(times[:8]) - times.idle - getattr(times, "iowait", 0.0))


def read_memory(budget_bytes: int | None = None) -> Memory:
    """RAM and swap now."""
    ram = psutil.virtual_memory()
    swap = psutil.swap_memory()
    return Memory(
        ram_total_bytes=ram.total,
        ram_available_bytes=ram.available,
        ram_used_bytes=ram.total - ram.available,
        budget_bytes=budget_bytes,
        swap_total_bytes=swap.total,
        swap_used_bytes=swap.used,
    )


class CpuTemperature:
    """The processor's sensor, by the names that AMD's and Intel's drivers give it."""

    _DRIVERS = ("k10temp", "zenpower", "coretemp")

    def __init__(self, root: Root) -> None:
        self._root = root
        self._file: str | None = None
        for name in root.listdir("sys/class/hwmon"):
            directory = f"sys/class/hwmon/{name}"
            if root.read_word(directory, "name") in self._DRIVERS:
                self._file = f"{directory}/temp1_input"
                break

    def read(self) -> float | None:
        """Degrees Celsius; ``None`` where there is no such sensor."""
        value = None if self._file is None else self._root.read_int(self._file)
        return None if value is None else round(value / 1000, 1)


@dataclass(frozen=True, kw_only=True)
class ProcessUse:
    """What a process uses. Rates are per second since the reading before."""

    cpu_percent: float | None = None
    rss_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None


class ProcessReader:
    """Follows one process after another. Reads that page in a mapped file count as disk reads."""

    def __init__(self) -> None:
        self._process: psutil.Process | None = None
        self._before: tuple[float, float, int | None, int | None] | None = None

    def read(self, pid: int | None) -> ProcessUse:
        """``pid`` now; all ``None`` when there is none or it is not ours to look at."""
        if pid is None:
            self._process = self._before = None
            return ProcessUse()
        try:
            if self._process is None or self._process.pid != pid:
                self._process, self._before = psutil.Process(pid), None
            times = self._process.cpu_times()
            rss = self._process.memory_info().rss
        except psutil.Error:
            self._process = self._before = None
            return ProcessUse()
        read, written = self._io()
        now = (time.monotonic(), times.user + times.system, read, written)
        before, self._before = self._before, now
        if before is None:
            return ProcessUse(rss_bytes=rss)
        span_s = now[0] - before[0]
        return ProcessUse(
            cpu_percent=round(100 * max(0.0, now[1] - before[1]) / span_s, 1),
            rss_bytes=rss,
            disk_read_bytes_per_s=_per_s(before[2], read, span_s),
            disk_write_bytes_per_s=_per_s(before[3], written, span_s),
        )

    def _io(self) -> tuple[int | None, int | None]:
        if self._process is None:
            return None, None
        try:
            counters = self._process.io_counters()
        except (psutil.Error, OSError, AttributeError, NotImplementedError):
            return None, None  # another user's process, or a system that does not count
        return counters.read_bytes, counters.write_bytes


def _per_s(before: int | None, now: int | None, span_s: float) -> float | None:
    if before is None or now is None or span_s <= 0:
        return None
    return round(max(0, now - before) / span_s, 1)
