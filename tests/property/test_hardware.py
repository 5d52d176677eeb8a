"""Laws of detection and of budgets, on trees and facts that no machine ever had."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from llama_ai.hardware.budgets import BACKENDS, budgets, os_reserve_bytes
from llama_ai.hardware.childenv import child_env
from llama_ai.hardware.crosscheck import cross_check, parse_log
from llama_ai.hardware.detect import detect
from llama_ai.hardware.doctor import machine_checks
from llama_ai.hardware.facts import GpuFacts, HardwareFacts, MemoryFacts, TtmFacts
from llama_ai.hardware.root import Root
from llama_ai.hardware.software import read_software
from tests.support.hardware_trees import apu

CARD = "sys/class/drm/card0/device"
NODE = "sys/class/kfd/kfd/topology/nodes"
PATHS = (
    *(
        f"{CARD}/{name}"
        for name in (
            "vendor",
            "device",
            "revision",
            "class",
            "uevent",
            "subsystem_vendor",
            "mem_info_vram_total",
            "mem_info_vis_vram_total",
            "mem_info_gtt_total",
            "mem_info_gtt_used",
            "uma/carveout_options",
            "vbios_version",
            "drm/renderD128",
            "ip_discovery/die/0/GC",
            "ip_discovery/die/0/GC/0/major",
            "ip_discovery/die/0/11/0/minor",
        )
    ),
    "sys/class/drm",
    "sys/class/drm/card99999/device/vendor",
    "sys/bus/pci/devices/0000:01:00.0/class",
    "sys/bus/pci/devices/0000:01:00.0/vendor",
    f"{NODE}/0/properties",
    f"{NODE}/1/properties",
    f"{NODE}/1/mem_banks/0/properties",
    "sys/module/ttm/parameters/pages_limit",
    "sys/module/amdttm/parameters",
    "sys/module/amdgpu/parameters/gttsize",
    "sys/class/power_supply/BAT0/type",
    "sys/class/power_supply/BAT0/capacity",
    "sys/class/power_supply/AC/online",
    "sys/class/dmi/id/chassis_type",
    "sys/class/dmi/id/sys_vendor",
    "sys/devices/system/cpu/online",
    "sys/devices/system/node/node0",
    "sys/fs/cgroup/memory.max",
    "proc/self/cgroup",
    "proc/meminfo",
    "proc/cpuinfo",
    "proc/cmdline",
    "proc/version",
    "proc/sys/kernel/osrelease",
    "etc/os-release",
    "etc/modprobe.d/a.conf",
    "usr/share/vulkan/icd.d/radeon_icd.json",
    "var/lib/dpkg/status",
    "var/lib/pacman/local/x",
)
# Bytes alone rarely reach the second step of a parser; fragments of real files do.
FRAGMENTS = st.sampled_from(
    [
        b"0x1002\n",
        b"0x1586\n",
        b"0x15bf\n",
        b"0x030000\n",
        b"DRIVER=amdgpu\nPCI_ID=1002:1586\nPCI_SLOT_NAME=0000:01:00.0\n",
        b"gfx_target_version 110501\nvendor_id 4098\ndevice_id 5510\nlocation_id 256\n",
        b"heap_type 1\nsize_in_bytes 18446744073709551615\n",
        b"MemTotal:       131155886 kB\nMemAvailable:   5 kB\n",
        b"processor\t: 0\nflags\t\t: lm avx2\ncore id\t: 0\n\nprocessor\t: 1\n",
        b"0::/a/b\n4:memory:/c\n",
        b"Mains\n",
        b"Battery\n",
        b"103079215104\n",
        b"-1\n",
        b"0\n",
        b"99999999999999999999999\n",
        b"options ttm pages_limit=5\noptions ttm\noptions\n",
        b"amdgpu.gtt_size=1 ttm.pages_limit= ttm.pages_limit=x\n",
        b"Package: mesa-vulkan-drivers\nVersion: 25\n",
        b'{"ICD": [1]}',
    ]
)
CONTENTS = st.one_of(
    st.binary(max_size=80),
    FRAGMENTS,
    st.builds(lambda a, b: a + b, FRAGMENTS, st.binary(max_size=20)),
)
LINKS = st.sampled_from(["/etc/passwd", "../../../../..", ".", "card0", "/", "missing"])
ENTRIES = st.one_of(CONTENTS, LINKS, st.none())
"""Bytes make a file, text a symbolic link, None a directory."""

TREES = st.dictionaries(st.sampled_from(PATHS), ENTRIES, max_size=25)


def plant(directory: Path, entries: dict[str, bytes | str | None]) -> None:
    for name, content in entries.items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.symlink_to(content)
        except OSError:
            continue  # its parent is a file already: as good as any tree


def check_facts(facts: HardwareFacts) -> None:
    """What every answer must satisfy, whatever it was made from."""
    for gpu in facts.gpus:
        for amount in (gpu.vram_bytes, gpu.vis_vram_bytes, gpu.gtt_bytes, gpu.gtt_used_bytes):
            assert amount is None or amount >= 0
        assert (gpu.gfx is None) == (gpu.gfx_source is None)
        assert gpu.revision is None or len(gpu.revision) == 2
    assert facts.memory.ram_bytes is None or facts.memory.ram_bytes > 0
    assert facts.cpu.cores_logical is None or facts.cpu.cores_logical > 0
    assert facts.gpu is None or facts.gpu in facts.gpus
    assert (facts.tier == "none") == (facts.igpu is None)


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_detection_never_raises(entries: dict[str, bytes | str | None]) -> None:
    """For every tree of arbitrary bytes, links and directories: detection, budgets, the child's
    environment and all checks give an answer; numbers in it are never negative."""
    with tempfile.TemporaryDirectory() as name:
        plant(Path(name), entries)
        root = Root(name)
        facts = detect(root)
        software = read_software(root)
    check_facts(facts)
    known = budgets(facts)
    checks = machine_checks(
        facts,
        budgets=known,
        env=child_env(facts, backend="vulkan", user_env={}),
        software=software,
        access=None,
        live=False,
    )
    assert all(check.observed and check.expected for check in checks)
    facts.to_json()


@settings(max_examples=50, deadline=None)
@given(TREES, st.sampled_from([f"{CARD}/mem_info_vram_total", f"{CARD}/mem_info_gtt_total"]))
def test_what_is_absent_stays_unknown(entries: dict[str, bytes | str | None], path: str) -> None:
    """A file that is not there gives None, whatever stands around it."""
    entries = {
        name: content
        for name, content in entries.items()
        if name != path and not isinstance(content, str)
    }
    entries[f"{CARD}/vendor"] = b"0x1002\n"
    with tempfile.TemporaryDirectory() as name:
        plant(Path(name), entries)
        facts = detect(Root(name))
    for gpu in facts.gpus:
        if gpu.card == "card0":
            assert (gpu.vram_bytes if "vram" in path else gpu.gtt_bytes) is None


AMOUNTS = st.one_of(st.none(), st.integers(0, 1 << 40))
MACHINES = st.builds(
    lambda ram, cgroup, pages, kfd, release, gpu: replace(
        apu(release=release, kfd_pool=kfd),
        memory=MemoryFacts(ram_bytes=ram, cgroup_limit_bytes=cgroup),
        ttm=TtmFacts(module="ttm", pages_limit=pages),
        gpu=gpu,
        igpu=gpu,
    ),
    st.one_of(st.none(), st.integers(1, 1 << 40)),
    AMOUNTS,
    st.one_of(st.none(), st.integers(0, 1 << 28)),
    AMOUNTS,
    st.sampled_from([None, "5.11.0", "6.9.0", "6.12.0", "6.16.0", "7.0.0"]),
    st.builds(
        GpuFacts,
        card=st.sampled_from([None, "card0"]),
        driver=st.sampled_from([None, "amdgpu", "vfio-pci"]),
        vendor=st.just("1002"),
        kind=st.sampled_from(["integrated", "discrete", "other"]),
        vram_bytes=AMOUNTS,
        vis_vram_bytes=AMOUNTS,
        gtt_bytes=AMOUNTS,
        kfd_pool_bytes=AMOUNTS,
    ),
)


@given(MACHINES)
def test_a_budget_never_exceeds_what_the_pool_can_give(facts: HardwareFacts) -> None:
    """On an APU: budget <= carve-out + RAM - reserve, budget - carve-out <= every bound on GTT."""
    known = budgets(facts)
    gpu = facts.gpu
    assert gpu is not None
    assert set(known.backends) == set(BACKENDS)
    for budget in known.backends.values():
        assert budget.steps
        assert budget.bytes is None or budget.bytes >= 0
    ram, host = facts.memory.ram_bytes, known.host_budget_bytes
    if host is not None:
        assert ram is not None
        assert host <= ram
        if facts.memory.cgroup_limit_bytes is not None:
            assert host <= facts.memory.cgroup_limit_bytes
    if not known.uma:
        return
    for name in ("vulkan", "vulkan_unified", "rocm"):
        amount = known.backends[name].bytes
        if amount is None:
            continue
        assert host is not None
        assert gpu.vram_bytes is not None
        assert gpu.gtt_bytes is not None
        assert known.pool_bytes == gpu.vram_bytes + host
        assert amount <= known.pool_bytes
        assert amount - gpu.vram_bytes <= gpu.gtt_bytes
        if facts.ttm.limit_bytes is not None:
            assert amount - gpu.vram_bytes <= facts.ttm.limit_bytes
    unified, split = known.backends["vulkan_unified"].bytes, known.backends["vulkan"].bytes
    if unified is not None and split is not None:
        assert split <= unified


@given(MACHINES, st.integers(0, 1 << 38))
def test_more_ram_never_means_less(facts: HardwareFacts, more: int) -> None:
    """With more RAM and all else equal, no budget shrinks."""
    if facts.memory.ram_bytes is None:
        return
    memory = replace(facts.memory, ram_bytes=facts.memory.ram_bytes + more)
    before, after = budgets(facts), budgets(replace(facts, memory=memory))
    for name in BACKENDS:
        one, other = before.backends[name].bytes, after.backends[name].bytes
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one <= other


@given(st.integers(0, 1 << 42))
def test_the_reserve_leaves_half(ram: int) -> None:
    """0 <= reserve <= RAM / 2."""
    assert 0 <= os_reserve_bytes(ram) <= ram // 2


@given(MACHINES)
def test_one_missing_input_gives_no_budget(facts: HardwareFacts) -> None:
    """Carve-out, GTT limit or RAM unknown: no budget for an integrated GPU."""
    gpu = facts.gpu
    assert gpu is not None
    if gpu.kind == "integrated" and None in (
        gpu.vram_bytes,
        gpu.gtt_bytes,
        facts.memory.ram_bytes,
    ):
        assert budgets(facts).gpu_budget_bytes("vulkan") is None


@given(
    MACHINES,
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [
                    "  Vulkan0: x (1 MiB, 2 MiB free)",
                    "load_tensors: Vulkan0 model buffer size = 1.00 MiB",
                    "load_tensors: CPU model buffer size = 1e9 MiB",
                ]
            ),
        )
    ),
    st.sampled_from(["vulkan", "rocm", "cpu", "metal"]),
    st.one_of(st.none(), st.sampled_from(["Vulkan0", "ROCm0"])),
    AMOUNTS,
)
def test_the_cross_check_never_raises(
    facts: HardwareFacts,
    lines: list[str],
    backend: str,
    device: str | None,
    weights: int | None,
) -> None:
    """For every log: an answer; and a CPU plan is never blamed."""
    checks = cross_check(
        facts,
        budgets(facts),
        backend=backend,
        device=device,
        report=parse_log(lines),
        planned_weights_bytes=weights,
    )
    assert bool(checks) == (backend in ("vulkan", "rocm"))
