"""The helper as root of a real Debian: its grub-mkconfig and its initramfs-tools, nothing faked.

Not part of the default run, because the system has to be installed first (a minute, and root):

    apt-get install debootstrap
    LLAMA_AI_TEST_CHROOT=/some/empty/dir pytest tests/integration/test_kernel_params_chroot.py

The directory is filled once and used again by later runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

HELPER = Path(__file__).resolve().parents[2] / "scripts" / "kernel-params"
WHERE = os.environ.get("LLAMA_AI_TEST_CHROOT")
PACKAGES = "grub-common,grub2-common,initramfs-tools,linux-image-amd64,python3,zstd"

pytestmark = pytest.mark.skipif(
    WHERE is None or os.geteuid() != 0, reason="needs root and LLAMA_AI_TEST_CHROOT"
)


@pytest.fixture(scope="module")
def system() -> Iterator[Path]:
    assert WHERE is not None
    root = Path(WHERE)
    if not (root / "usr/sbin/update-grub").exists():
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", str(root)],
            check=True,
        )
    shutil.copy(HELPER, root / "usr/local/sbin/kernel-params")
    # grub-probe looks for the device of /, which a directory does not have; a chroot answers this.
    (root / "boot/grub").mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", "/dev", str(root / "dev")], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", str(root / "proc")], check=True)
    (root / "etc/default/grub").write_text(
        'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n'
    )
    try:
        yield root
    finally:
        subprocess.run(["umount", str(root / "proc")], check=True)
        subprocess.run(["umount", str(root / "dev")], check=True)


def inside(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["chroot", str(root), *words],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
    )


def linux_lines(root: Path) -> list[str]:
    text = (root / "boot/grub/grub.cfg").read_text()
    return [line.strip() for line in text.splitlines() if line.strip().startswith("linux\t")]


def boot_files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for place in ("etc/default", "etc/modprobe.d", "var/lib/llama-ai")
        for path in (root / place).rglob("*")
        if path.is_file()
    }


def test_update_grub(system: Path) -> None:
    before = boot_files(system)
    assert inside(system, "update-grub").returncode == 0
    plain = linux_lines(system)
    assert plain
    assert not [line for line in plain if "pages_limit" in line]
    ended = inside(system, "kernel-params", "apply", "--gib=2", "--route=grub", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "running: update-grub" in ended.stdout
    lines = linux_lines(system)
    normal = [line for line in lines if "single" not in line]
    assert normal
    for line in normal:
        assert line.split().count(f"ttm.pages_limit={2 << 18}") == 1
        assert "quiet" in line.split()
    assert not [line for line in lines if "single" in line and "pages_limit" in line], (
        "the recovery entry boots without it"
    )
    again = inside(system, "kernel-params", "apply", "--gib=2", "--yes")
    assert "Nothing to change" in again.stdout
    assert inside(system, "kernel-params", "apply", "--gib=3", "--yes").returncode == 0
    for line in linux_lines(system):
        assert line.count("pages_limit") == (0 if "single" in line else 1)
        assert f"ttm.pages_limit={2 << 18}" not in line.split()
    assert inside(system, "kernel-params", "revert", "--yes").returncode == 0
    assert linux_lines(system) == plain
    assert boot_files(system) == before


def initramfs(root: Path) -> str:
    [image] = (path.name for path in (root / "boot").glob("initrd.img-*"))
    listed = inside(root, "lsinitramfs", f"/boot/{image}")
    assert listed.returncode == 0
    return listed.stdout


def options_in_initramfs(root: Path) -> str:
    [image] = (path.name for path in (root / "boot").glob("initrd.img-*"))
    place = root / "tmp/unpacked"
    shutil.rmtree(place, ignore_errors=True)
    assert inside(root, "unmkinitramfs", f"/boot/{image}", "/tmp/unpacked").returncode == 0
    found = [path.read_text() for path in place.rglob("etc/modprobe.d/llama-ai.conf")]
    shutil.rmtree(place)
    return "".join(found)


def test_initramfs_tools(system: Path) -> None:
    """With ttm in the image it is built again, and the new image carries the new options."""
    before = boot_files(system)
    modules = system / "etc/initramfs-tools/modules"
    original = modules.read_text()
    if "/ttm.ko" in initramfs(system):
        pytest.fail("the fresh image should not hold ttm: the case below would not be seen")
    ended = inside(system, "kernel-params", "apply", "--gib=2", "--route=modprobe.d", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "not needed: update-initramfs" in ended.stdout
    assert inside(system, "kernel-params", "revert", "--yes").returncode == 0
    modules.write_text(original + "ttm\n")
    try:
        assert inside(system, "update-initramfs", "-u", "-k", "all").returncode == 0
        assert "/ttm.ko" in initramfs(system)
        ended = inside(system, "kernel-params", "apply", "--gib=2", "--route=modprobe.d", "--yes")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "running: update-initramfs -u -k all" in ended.stdout
        assert f"options ttm pages_limit={2 << 18}\n" in options_in_initramfs(system)
        assert inside(system, "kernel-params", "revert", "--yes").returncode == 0
        assert options_in_initramfs(system) == ""
    finally:
        modules.write_text(original)
        inside(system, "update-initramfs", "-u", "-k", "all")
    assert boot_files(system) == before


@pytest.fixture
def hidden_partition(system: Path) -> Iterator[Path]:
    """A partition that nobody mounted and that holds the real entry, as on a dual-ESP handheld.

    Not every kernel that runs tests knows FAT, so the file system is ext4 and a wrapper around
    `mount` exchanges the type; everything else is what happens on such a machine.
    """
    image = system / "tmp/second.img"
    with image.open("wb") as stream:
        stream.truncate(8 << 20)
    made = system / "tmp/content/loader/entries"
    made.mkdir(parents=True)
    (made / "real.conf").write_text("title Real\nlinux /v\noptions quiet amdgpu.gttsize=5\n")
    assert inside(system, "mke2fs", "-q", "-d", "/tmp/content", "/tmp/second.img").returncode == 0
    shutil.rmtree(system / "tmp/content")
    device = subprocess.run(
        ["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=True
    ).stdout.strip()
    number = Path(device).stat().st_rdev
    data = system / f"run/udev/data/b{os.major(number)}:{os.minor(number)}"
    data.parent.mkdir(parents=True, exist_ok=True)
    data.write_text("E:ID_FS_TYPE=vfat\nE:ID_PART_ENTRY_UUID=0a1b-2c\n")
    subprocess.run(["mount", "-t", "sysfs", "none", str(system / "sys")], check=True)
    mount = system / "usr/bin/mount"
    mount.rename(system / "usr/bin/mount.real")
    mount.write_text(
        '#!/bin/sh\n[ "$2" = vfat ] && { shift 2; exec mount.real -t ext4 "$@"; }\n'
        'exec mount.real "$@"\n'
    )
    mount.chmod(0o755)
    try:
        yield image
    finally:
        (system / "usr/bin/mount.real").rename(mount)
        subprocess.run(["umount", str(system / "sys")], check=True)
        subprocess.run(["losetup", "-d", device], check=True)
        data.unlink()
        image.unlink()


def entry(system: Path) -> str:
    shown = inside(system, "debugfs", "-R", "cat /loader/entries/real.conf", "/tmp/second.img")
    return shown.stdout


def test_a_partition_that_nobody_mounted(system: Path, hidden_partition: Path) -> None:
    before = boot_files(system)
    words = ("--gib=2", "--route=systemd-boot", "--yes")
    looked = inside(system, "kernel-params", "apply", *words, "--dry-run")
    assert "/run/llama-ai-esp/0a1b-2c/loader/entries/real.conf" in looked.stdout, looked.stderr
    assert entry(system) == "title Real\nlinux /v\noptions quiet amdgpu.gttsize=5\n"
    ended = inside(system, "kernel-params", "apply", *words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert entry(system) == f"title Real\nlinux /v\noptions quiet ttm.pages_limit={2 << 18}\n"
    assert "llama-ai-esp" not in Path("/proc/self/mountinfo").read_text()
    assert not (system / "run/llama-ai-esp").exists()
    assert "Nothing to change" in inside(system, "kernel-params", "apply", *words).stdout
    ended = inside(system, "kernel-params", "revert", "--yes")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert entry(system) == "title Real\nlinux /v\noptions quiet amdgpu.gttsize=5\n"
    assert boot_files(system) == before
