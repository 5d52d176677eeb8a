"""Readers of the machine, over recorded and made-up trees."""

from __future__ import annotations

import os
from pathlib import Path

from llama_ai.hardware.drm import read_gpus
from llama_ai.hardware.facts import GpuFacts
from llama_ai.hardware.root import Root
from llama_ai.monitor import host
from tests.support.hardware_trees import tree

CARD = "sys/class/drm/card1/device"
FACTS = GpuFacts(card="card1", vendor="1002", device="15bf")


def test_a_recorded_apu() -> None:
    root = Root(Path(__file__).parents[1] / "machines" / "phoenix-64-4g" / "root")
    (found,) = read_gpus(root)
    gpu = host.GpuReader(root, found.gpu).read()
    assert gpu.vram_total_bytes == found.gpu.vram_bytes
    assert gpu.gtt_used_bytes == found.gpu.gtt_used_bytes
    assert gpu.busy_percent == root.read_int(CARD, "gpu_busy_percent")
    assert gpu.power_w is not None
    assert 0 < gpu.power_w < 100
    assert gpu.temp_c is not None
    assert 0 < gpu.temp_c < 120
    assert gpu.freq_mhz is not None
    assert 100 < gpu.freq_mhz < 4000


def test_absent_and_zero_differ(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            f"{CARD}/mem_info_vram_total": "0\n",
            f"{CARD}/gpu_busy_percent": "0\n",
            f"{CARD}/hwmon/hwmon3/power1_input": "0\n",
        },
    )
    gpu = host.GpuReader(root, FACTS).read()
    assert (gpu.vram_total_bytes, gpu.busy_percent, gpu.power_w) == (0, 0, 0.0)
    assert gpu.gtt_total_bytes is gpu.temp_c is gpu.freq_mhz is None


def test_garbage_is_not_known(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            f"{CARD}/gpu_busy_percent": "1000\n",
            f"{CARD}/mem_info_gtt_used": "many\n",
            f"{CARD}/hwmon/hwmon3/temp1_input": "\n",
        },
    )
    gpu = host.GpuReader(root, FACTS).read()
    assert gpu.busy_percent is gpu.gtt_used_bytes is gpu.temp_c is None


def test_average_power_is_preferred_and_units_are_right(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            f"{CARD}/hwmon/hwmon3/power1_average": "15250000\n",
            f"{CARD}/hwmon/hwmon3/power1_input": "9000000\n",
            f"{CARD}/hwmon/hwmon3/temp1_input": "61500\n",
            f"{CARD}/hwmon/hwmon3/freq1_input": "2700000000\n",
        },
    )
    gpu = host.GpuReader(root, FACTS).read()
    assert (gpu.power_w, gpu.temp_c, gpu.freq_mhz) == (15.2, 61.5, 2700)


def test_sensors_that_move_are_found_again(tmp_path: Path) -> None:
    """The driver was loaded anew: its hwmon has another number."""
    root = tree(tmp_path, {f"{CARD}/hwmon/hwmon3/temp1_input": "50000\n"})
    reader = host.GpuReader(root, FACTS)
    assert reader.read().temp_c == 50
    (tmp_path / CARD / "hwmon/hwmon3").rename(tmp_path / CARD / "hwmon/hwmon7")
    assert reader.read().temp_c == 50


def test_a_card_that_vanishes(tmp_path: Path) -> None:
    gpu = host.GpuReader(Root(tmp_path), FACTS).read()
    assert gpu.card == "card1"
    assert gpu.vram_total_bytes is gpu.busy_percent is gpu.power_w is None


def test_the_processors_sensor(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/class/hwmon/hwmon0/name": "nvme\n",
            "sys/class/hwmon/hwmon0/temp1_input": "30000\n",
            "sys/class/hwmon/hwmon2/name": "k10temp\n",
            "sys/class/hwmon/hwmon2/temp1_input": "71250\n",
        },
    )
    assert host.CpuTemperature(root).read() == 71.2
    assert host.CpuTemperature(Root(tmp_path / "nowhere")).read() is None


def test_this_machine() -> None:
    memory = host.read_memory(budget_bytes=7)
    assert memory.ram_total_bytes is not None
    assert memory.ram_used_bytes is not None
    assert 0 < memory.ram_used_bytes < memory.ram_total_bytes
    assert memory.budget_bytes == 7
    cpu = host.CpuReader()
    deadline = os.times().elapsed + 0.3
    while os.times().elapsed < deadline:  # keep one core busy
        pass
    load = cpu.read()
    assert load.percent is not None
    assert len(load.cores_percent) == os.cpu_count()
    assert max(load.cores_percent) > 50


def test_our_own_process() -> None:
    reader = host.ProcessReader()
    first = reader.read(os.getpid())
    assert first.rss_bytes
    assert first.cpu_percent is None  # a rate needs two readings
    deadline = os.times().elapsed + 0.3
    while os.times().elapsed < deadline:
        pass
    second = reader.read(os.getpid())
    assert second.cpu_percent is not None
    assert second.cpu_percent > 20


def test_a_process_that_is_gone_or_not_given() -> None:
    reader = host.ProcessReader()
    assert reader.read(None) == host.ProcessUse()
    assert reader.read(2**22 + 1) == host.ProcessUse()
    assert reader.read(os.getpid()).rss_bytes
