"""scripts/record-machine: what it records replays to the same facts, and tells nothing private."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root, open_root
from llama_ai.hardware.software import read_software
from tests.support.hardware_trees import card, tree

SCRIPT = Path(__file__).parents[2] / "scripts" / "record-machine"
MACHINES = Path(__file__).parents[1] / "machines"
SLUGS = sorted(path.parent.name for path in MACHINES.glob("*/expected.json"))

# A machine with everything that detection reads, and with secrets beside it.
SECRETS = ("mypc", "alice", "DEADBEEF", "SERIAL123", "aa:bb:cc:dd:ee:ff", "5f3c-uuid")
FULL: dict[str, str | bytes] = {
    **card(
        1,
        "1002",
        "1586",
        revision="0xc1\n",
        **{"class": "0x038000\n"},
        uevent="DRIVER=amdgpu\nPCI_ID=1002:1586\nPCI_SLOT_NAME=0000:c3:00.0\nSEQNUM=SERIAL123\n",
        mem_info_vram_total="536870912\n",
        mem_info_vram_used="1000\n",
        mem_info_vis_vram_total="536870912\n",
        mem_info_gtt_total="111669149696\n",
        mem_info_gtt_used="2000\n",
        vbios_version="113-STRIX-1\n",
        unique_id="SERIAL123\n",
        **{
            "subsystem_vendor": "0x1234\n",
            "subsystem_device": "0x5678\n",
            "uma/carveout": "1\n",
            "uma/carveout_options": "0: 512 MB\n1: 96 GB\n",
            "ip_discovery/die/0/11/0/major": "11\n",
            "ip_discovery/die/0/11/0/minor": "5\n",
            "ip_discovery/die/0/11/0/revision": "1\n",
        },
    ),
    "sys/class/drm/card1/device/drm/renderD128/": "",
    "sys/class/drm/renderD128/": "",
    "sys/class/drm/card1-eDP-1/edid": "SERIAL123",
    "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
    "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
    "sys/bus/pci/devices/0000:01:00.0/device": "0x2507\n",
    "sys/bus/pci/devices/0000:02:00.0/class": "0x020000\n",
    "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 32\ngfx_target_version 0\n",
    "sys/class/kfd/kfd/topology/nodes/1/properties": (
        "gfx_target_version 110501\nvendor_id 4098\ndevice_id 5510\nlocation_id 49920\n"
        "domain 0\ndrm_render_minor 128\nunique_id DEADBEEF\n"
    ),
    "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": (
        "heap_type 1\nsize_in_bytes 111669149696\n"
    ),
    "sys/module/ttm/parameters/pages_limit": "27262976\n",
    "sys/module/ttm/parameters/page_pool_size": "27262976\n",
    "sys/module/amdgpu/parameters/gttsize": "-1\n",
    "sys/module/amdgpu/version": "6.16.6\n",
    "proc/meminfo": "MemTotal:       131155886 kB\nMemAvailable:   99 kB\nSwapTotal: 8 kB\n",
    "proc/cpuinfo": (
        "processor\t: 0\nvendor_id\t: AuthenticAMD\nmodel name\t: AMD Test\nphysical id\t: 0\n"
        "core id\t\t: 0\nflags\t\t: lm avx2\nSerial\t\t: SERIAL123\n\n"
        "processor\t: 1\nphysical id\t: 0\ncore id\t\t: 0\n"
    ),
    "sys/devices/system/cpu/online": "0-1\n",
    "sys/devices/system/cpu/cpu0/topology/core_id": "0\n",
    "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal: 1 kB\n",
    "proc/self/cgroup": "0::/user.slice/user-alice.slice/mypc\n",
    "sys/fs/cgroup/user.slice/user-alice.slice/memory.max": "64424509440\n",
    "sys/fs/cgroup/user.slice/user-alice.slice/mypc/memory.max": "max\n",
    "sys/class/power_supply/AC/type": "Mains\n",
    "sys/class/power_supply/AC/online": "0\n",
    "sys/class/power_supply/hid-aa:bb:cc:dd:ee:ff-battery/type": "Battery\n",
    "sys/class/power_supply/hid-aa:bb:cc:dd:ee:ff-battery/scope": "Device\n",
    "sys/class/power_supply/hid-aa:bb:cc:dd:ee:ff-battery/serial_number": "SERIAL123\n",
    "sys/class/power_supply/BAT0/type": "Battery\n",
    "sys/class/power_supply/BAT0/status": "Discharging\n",
    "sys/class/power_supply/BAT0/capacity": "55\n",
    "sys/class/dmi/id/sys_vendor": "Framework\n",
    "sys/class/dmi/id/product_name": "Desktop\n",
    "sys/class/dmi/id/product_serial": "SERIAL123\n",
    "sys/class/dmi/id/chassis_type": "35\n",
    "proc/sys/kernel/osrelease": "6.18.5-1\n",
    "proc/sys/kernel/hostname": "mypc\n",
    "proc/cmdline": (
        "BOOT_IMAGE=/boot/mypc root=UUID=5f3c-uuid hostname=mypc ttm.pages_limit=27262976 "
        "amdgpu.gtt_size=1 amd_iommu=off user=alice\n"
    ),
    "etc/os-release": 'ID=fedora\nNAME="Fedora"\nVERSION_ID=43\nBUG_URL="mailto:alice@mypc"\n',
    "etc/modprobe.d/gpu.conf": "# alice\noptions ttm pages_limit=27262976\nalias x mypc\n",
    "etc/modprobe.d/net.conf": "options wifi name=mypc\n",
    "etc/default/grub": "GRUB_CMDLINE_LINUX=mypc\n",
    "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-442b29bb8c4f": (
        b"\x06\0\0\0" + "GRUB 2.12".encode("utf-16-le")
    ),
    "usr/share/vulkan/icd.d/radeon_icd.x86_64.json": '{"ICD": {"api_version": "1.4.305"}}',
    "usr/lib64/libgallium-25.1.9.so": b"\x7fELF alice",
    "var/lib/dpkg/status": (
        "Package: alice-tools\nVersion: 1\n\nPackage: linux-firmware\nVersion: 20251111-1\n"
        "Maintainer: alice\n"
    ),
}


def record(root: Path, out: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), "--root", str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


class Tracing(Root):
    """A root that notes which files were really read."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.seen: set[str] = set()

    def read_bytes(self, *parts: str, limit: int = 1 << 20) -> bytes | None:
        data = super().read_bytes(*parts, limit=limit)
        if data is not None:
            self.seen.add("/".join(parts))
        return data


def test_a_full_machine_replays_to_the_same_facts(tmp_path: Path) -> None:
    root = tree(tmp_path / "machine", FULL)
    record(root.directory, tmp_path / "out.tar.gz")
    with open_root(tmp_path / "out.tar.gz") as replay:
        before, after = detect(root), detect(replay)
        kept = (
            "BOOT_IMAGE=removed",
            "ttm.pages_limit=27262976",
            "amdgpu.gtt_size=1",
            "amd_iommu=off",
        )
        assert after == replace(before, kernel=replace(before.kernel, cmdline=kept))
        assert read_software(replay) == read_software(root)
    # The comparison is worth something: all of this was found on the original.
    assert before.igpu is not None
    assert before.igpu.kfd_pool_bytes is not None
    assert before.igpu.carveout is not None
    assert before.memory.cgroup_limit_bytes == 64424509440
    assert before.power.on_ac is False
    assert len(before.gpus) == 2


def test_everything_that_detection_reads_is_recorded(tmp_path: Path) -> None:
    """A reader that is added later must be added to the script, too."""
    root = Tracing(tree(tmp_path / "machine", FULL).directory)
    detect(root)
    read_software(root)
    record(root.directory, tmp_path / "out.tar.gz")
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        recorded = set(archive.getnames())
    renamed = ("sys/fs/cgroup/", "sys/class/power_supply/")
    missing = {path for path in root.seen if not path.startswith(renamed)} - recorded
    # What tells nothing about graphics is looked at and left out.
    assert missing == {"etc/modprobe.d/net.conf", "sys/bus/pci/devices/0000:02:00.0/class"}
    assert len(recorded) > 40


def test_nothing_private_is_recorded(tmp_path: Path) -> None:
    tree(tmp_path / "machine", FULL)
    record(tmp_path / "machine", tmp_path / "out.tar.gz")
    with tarfile.open(tmp_path / "out.tar.gz") as archive:
        for member in archive:
            stream = archive.extractfile(member)
            content = stream.read().decode("utf-8", "replace") if stream else ""
            for secret in SECRETS:
                assert secret not in member.name, member.name
                assert secret not in content, member.name
            assert (member.uid, member.gid, member.uname, member.mtime) == (0, 0, "", 0)


@pytest.mark.parametrize("slug", SLUGS)
def test_each_recorded_machine_can_be_recorded_again(slug: str, tmp_path: Path) -> None:
    root = Root(MACHINES / slug / "root")
    record(root.directory, tmp_path / "again.tar.gz")
    before = detect(root)
    with open_root(tmp_path / "again.tar.gz") as replay:
        after = detect(replay)
    assert after.gpus == before.gpus
    assert (after.tier, after.cpu, after.power) == (before.tier, before.cpu, before.power)
    assert (after.ttm, after.memory) == (before.ttm, before.memory)


def test_this_machine_can_be_recorded_and_replayed(tmp_path: Path) -> None:
    record(Path("/"), tmp_path / "out.tar.gz")
    with open_root(tmp_path / "out.tar.gz") as replay:
        after = detect(replay)
    before = detect()
    assert after.cpu == before.cpu
    assert after.memory.ram_bytes == before.memory.ram_bytes
    assert (after.power, after.gpus) == (before.power, before.gpus)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["--nonsense"], 2),
        (["a", "b"], 2),
        (["--root", "/does/not/exist"], 2),
        (["--list", "--root", "."], 0),
        (["/does/not/exist/out.tar.gz", "--root", "."], 1),
    ],
)
def test_usage(words: list[str], code: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "out.tar.gz"
    out.write_text("precious")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(out), "--root", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert out.read_text() == "precious"
    assert "exists" in done.stderr
