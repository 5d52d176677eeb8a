"""Processor, memory, power, kernel and software, from files as real machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_ai.hardware.cpu import isa_level, read_cpu
from llama_ai.hardware.facts import ModuleOption
from llama_ai.hardware.kernel import parse_version, read_kernel, split_cmdline
from llama_ai.hardware.memory import read_memory, read_ttm
from llama_ai.hardware.power import read_power
from llama_ai.hardware.software import read_software
from tests.support.hardware_trees import tree

V1 = {"lm", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"}
V2 = V1 | {"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"}
V3 = V2 | {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}
V4 = V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (V4, "x86-64-v4"),
        (V4 - {"avx512vl"}, "x86-64-v3"),
        (V3 - {"fma"}, "x86-64-v2"),
        (V4 - {"popcnt"}, "x86-64-v1"),
        (set(), None),
        (None, None),
    ],
)
def test_isa_levels(flags: set[str] | None, level: str | None) -> None:
    assert isa_level(None if flags is None else frozenset(flags)) == level


def cpuinfo(cores: list[int], flags: str = "") -> str:
    blocks = [
        f"processor\t: {number}\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD Test\n"
        f"physical id\t: 0\ncore id\t\t: {core}\n" + (f"flags\t\t: {flags}\n" if flags else "")
        for number, core in enumerate(cores)
    ]
    return "\n".join(blocks)


def test_gaps_in_core_ids(tmp_path: Path) -> None:
    cores = [0, 1, 2, 3, 8, 9, 0, 1, 2, 3, 8, 9]
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": cpuinfo(cores)}))
    assert (cpu.cores_physical, cpu.cores_logical, cpu.smt) == (6, 12, True)
    assert cpu.flags is None
    assert cpu.avx2 is None


def test_flags(tmp_path: Path) -> None:
    words = "avx2 avx512f avx512_bf16 avx512_vnni"
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": cpuinfo([0], words)}))
    assert (cpu.avx2, cpu.avx512, cpu.avx512_bf16, cpu.avx512_vnni) == (True,) * 4
    assert cpu.avx_vnni is False
    assert cpu.smt is False


def test_only_cpus_that_are_online_count(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/devices/system/cpu/possible": "0-15\n",
            "sys/devices/system/cpu/online": "0-3,8-11\n",
            **{
                f"sys/devices/system/cpu/cpu{number}/topology/core_id": f"{number // 2}\n"
                for number in range(8)
            },
            "sys/devices/system/node/node0/": "",
            "sys/devices/system/node/node1/": "",
            "sys/devices/system/node/possible": "0-1\n",
        },
    )
    cpu = read_cpu(root)
    assert (cpu.cores_logical, cpu.cores_physical, cpu.numa_nodes) == (8, 4, 2)


@pytest.mark.parametrize("online", ["3-1", "x", "", "0-", "1,,2"])
def test_a_garbled_cpu_list_is_unknown(tmp_path: Path, online: str) -> None:
    root = tree(tmp_path, {"sys/devices/system/cpu/online": online})
    assert read_cpu(root).cores_logical is None


def test_meminfo(tmp_path: Path) -> None:
    text = "MemTotal:       100 kB\nMemFree:  1 kB\nMemAvailable:   0 kB\nSwapTotal:  7 kB\n"
    memory = read_memory(tree(tmp_path, {"proc/meminfo": text}))
    assert memory.ram_bytes == 102400
    assert memory.ram_available_bytes == 0
    assert memory.swap_bytes == 7168
    assert not memory.cgroup_known


def test_a_total_of_nothing_is_unknown(tmp_path: Path) -> None:
    assert read_memory(tree(tmp_path, {"proc/meminfo": "MemTotal: 0 kB\n"})).ram_bytes is None


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "500\n"}, 500),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "500\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/memory.max": "400\n",
            },
            400,
        ),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "300\n",
                "sys/fs/cgroup/memory.max": "400\n",
            },
            300,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes": "300\n",
            },
            300,
        ),
        ({"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": "200\n"}, 200),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, None),
        ({"sys/fs/cgroup/memory.max": "200\n"}, None),
    ],
)
def test_the_tightest_control_group_counts(
    tmp_path: Path, files: dict[str, str], limit: int | None
) -> None:
    assert read_memory(tree(tmp_path, files)).cgroup_limit_bytes == limit


def test_amdttm_is_the_module_that_counts(tmp_path: Path) -> None:
    ttm = read_ttm(
        tree(
            tmp_path,
            {
                "sys/module/ttm/parameters/pages_limit": "16777216\n",
                "sys/module/amdttm/parameters/pages_limit": "3074543\n",
                "sys/module/amdgpu/parameters/gttsize": "65536\n",
                "sys/module/amdgpu/version": "6.16.6\n",
            },
        )
    )
    assert (ttm.module, ttm.limit_bytes) == ("amdttm", 12593328128)
    assert (ttm.other_pages_limit, ttm.gttsize_mib, ttm.dkms_version) == (16777216, 65536, "6.16.6")


def test_unset_ttm_parameters_are_unknown(tmp_path: Path) -> None:
    ttm = read_ttm(
        tree(
            tmp_path,
            {
                "sys/module/ttm/parameters/pages_limit": "0\n",
                "sys/module/amdgpu/parameters/gttsize": "-1\n",
            },
        )
    )
    assert (ttm.module, ttm.limit_bytes, ttm.gttsize_mib) == ("ttm", None, None)
    assert read_ttm(tree(tmp_path / "none", {})).module is None


def supply(name: str, **files: str) -> dict[str, str]:
    return {f"sys/class/power_supply/{name}/{key}": value for key, value in files.items()}


BATTERY = {"type": "Battery", "capacity": "80"}


@pytest.mark.parametrize(
    ("files", "on_ac", "percent"),
    [
        ({"sys/class/power_supply/": ""}, True, None),
        ({}, None, None),
        ({"sys/class/dmi/id/chassis_type": "35"}, True, None),
        ({"sys/class/dmi/id/chassis_type": "10"}, None, None),
        ({**supply("AC", type="Mains", online="1"), **supply("B", **BATTERY)}, True, 80),
        ({**supply("AC", type="Mains", online="0"), **supply("B", **BATTERY)}, False, 80),
        (
            {
                **supply("AC", type="Mains", online="0"),
                **supply("usb", type="USB", online="1"),
                **supply("B", **BATTERY),
            },
            True,
            80,
        ),
        (supply("B", status="Discharging", **BATTERY), False, 80),
        (supply("B", status="Charging", **BATTERY), True, 80),
        (supply("B", status="Full", **BATTERY), None, 80),
        (supply("hid-mouse", scope="Device", status="Discharging", **BATTERY), True, None),
        (supply("AC", type="Mains", online="maybe"), None, None),
    ],
)
def test_power(
    tmp_path: Path, files: dict[str, str], on_ac: bool | None, percent: int | None
) -> None:
    power = read_power(tree(tmp_path, files))
    assert (power.on_ac, power.battery_percent) == (on_ac, percent)


def test_versions() -> None:
    assert parse_version("6.16.0-rc7+") == (6, 16, 0)
    assert parse_version("6.18") == (6, 18, 0)
    assert parse_version("five") is None
    assert parse_version(None) is None


def test_the_command_line_is_split_as_the_kernel_does() -> None:
    assert split_cmdline('a=1 dyndbg="file x +p; y" quiet') == (
        "a=1",
        "dyndbg=file x +p; y",
        "quiet",
    )
    assert split_cmdline('amdgpu.gttsize="1 2') == ("amdgpu.gttsize=1 2",)


def test_release_from_proc_version(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/version": "Linux version 6.1.2-x (a@b) #1\n"})
    assert read_kernel(root).release == "6.1.2-x"


LOADER = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-442b29bb8c4f"


def efi(text: str) -> bytes:
    return b"\x06\0\0\0" + text.encode("utf-16-le")


@pytest.mark.parametrize(
    ("files", "loader", "route"),
    [
        ({"etc/os-release": "ID=debian\n", "etc/default/grub": ""}, "grub", "modprobe.d"),
        (
            {"etc/os-release": "ID=fedora\n", "proc/cmdline": "BOOT_IMAGE=/vmlinuz ro"},
            "grub",
            "modprobe.d",
        ),
        (
            {"etc/os-release": "ID=arch\n", LOADER: efi("systemd-boot 257")},
            "systemd-boot",
            "modprobe.d",
        ),
        ({"etc/os-release": "ID=arch\n", LOADER: efi("systemd-stub 257")}, "uki", "modprobe.d"),
        ({"etc/os-release": "ID=cachyos\n", "etc/default/limine": ""}, "limine", "modprobe.d"),
        ({"etc/os-release": "ID=steamos\nID_LIKE=arch\n"}, "steamos", "steamos"),
        (
            {"etc/os-release": "ID=bazzite\nID_LIKE=fedora\n", "run/ostree-booted": ""},
            None,
            "rpm-ostree",
        ),
        ({"etc/os-release": "ID=fedora\n", "proc/cmdline": "ostree=/x"}, None, "rpm-ostree"),
        ({"etc/os-release": "ID=nixos\n"}, None, None),
        ({}, None, None),
    ],
)
def test_boot_route(
    tmp_path: Path, files: dict[str, str | bytes], loader: str | None, route: str | None
) -> None:
    kernel = read_kernel(tree(tmp_path, files))
    assert (kernel.boot_loader, kernel.boot_route) == (loader, route)


def test_module_options(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "etc/modprobe.d/b.conf": (
                "options ttm pages_limit=7 page_pool_size=8 # note\nblacklist x\n"
            ),
            "etc/modprobe.d/a.conf": "options snd_hda power_save=1\noptions amdgpu gttsize=9\n",
            "etc/modprobe.d/c.conf.bak": "options ttm pages_limit=1\n",
        },
    )
    assert read_kernel(root).module_options == (
        ModuleOption(module="amdgpu", key="gttsize", value="9", file="/etc/modprobe.d/a.conf"),
        ModuleOption(module="ttm", key="pages_limit", value="7", file="/etc/modprobe.d/b.conf"),
        ModuleOption(module="ttm", key="page_pool_size", value="8", file="/etc/modprobe.d/b.conf"),
    )


def test_distribution_names(tmp_path: Path) -> None:
    pretty = tree(tmp_path / "a", {"etc/os-release": 'PRETTY_NAME="Debian 13"\nNAME=x\n'})
    plain = tree(tmp_path / "b", {"usr/lib/os-release": 'NAME="NixOS"\nVERSION_ID="26.11"\n'})
    assert read_kernel(pretty).distro == "Debian 13"
    assert read_kernel(plain).distro == "NixOS 26.11"


ICD = '{"ICD": {"api_version": "1.4.305", "library_path": "libvulkan_radeon.so"}}'


@pytest.mark.parametrize(
    ("files", "mesa", "firmware"),
    [
        (
            {
                "var/lib/dpkg/status": (
                    "Package: mesa\nVersion: 1.0\n\nPackage: mesa-vulkan-drivers\nStatus: ok\n"
                    "Version: 25.0.7-2\n\nPackage: firmware-amd-graphics\nVersion: 20251125-1\n"
                )
            },
            "25.0.7",
            20251125,
        ),
        (
            {
                "var/lib/pacman/local/vulkan-radeon-1:25.2.4-1/": "",
                "var/lib/pacman/local/linux-firmware-amdgpu-20250917-1/": "",
            },
            "25.2.4",
            20250917,
        ),
        ({"usr/lib64/libgallium-25.1.9.so": ""}, "25.1.9", None),
        ({}, None, None),
    ],
)
def test_software_versions(
    tmp_path: Path, files: dict[str, str], mesa: str | None, firmware: int | None
) -> None:
    software = read_software(tree(tmp_path, files))
    assert (software.mesa_text, software.firmware_date) == (mesa, firmware)
    assert (software.has_icd_directory, software.radv) == (False, None)


def test_vulkan_drivers(tmp_path: Path) -> None:
    where = "usr/share/vulkan/icd.d"
    root = tree(tmp_path, {f"{where}/radeon_icd.x86_64.json": ICD, f"{where}/lvp_icd.json": "{"})
    software = read_software(root)
    assert software.radv == "radeon_icd.x86_64.json"
    assert software.vulkan_version == "1.4.305"
    broken = tree(tmp_path / "b", {f"{where}/radeon_icd.json": "[" * 100_000})
    assert read_software(broken).vulkan_version is None
