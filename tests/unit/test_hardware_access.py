"""What only the live machine answers: render nodes and disks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llama_ai.hardware import access
from llama_ai.hardware.root import Root
from tests.support.hardware_trees import tree


def test_render_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "DEV", tmp_path)
    missing = access.render_access("renderD128")
    assert (missing.exists, missing.usable) == (False, False)
    (tmp_path / "renderD128").write_text("")
    (tmp_path / "renderD128").chmod(0o640)
    found = access.render_access("renderD128")
    assert (found.exists, found.usable, found.mode) == (True, True, 0o640)
    assert found.group
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not access.render_access("renderD128").usable


def number_of(path: Path) -> str:
    device = path.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def block_tree(directory: Path, number: str, disk: str, part: str, rotational: str) -> Root:
    root = tree(
        directory,
        {
            f"sys/devices/{disk}/queue/rotational": rotational,
            f"sys/devices/{disk}/{part}/size": "1",
        },
    )
    for name, target in ((disk, disk), (part, f"{disk}/{part}")):
        link = directory / "sys/class/block" / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../devices/{target}")
    numbered = directory / "sys/dev/block" / number
    numbered.parent.mkdir(parents=True, exist_ok=True)
    numbered.symlink_to(f"../../devices/{disk}/{part}")
    return root


@pytest.mark.parametrize(("value", "rotational"), [("0\n", False), ("1\n", True), ("?", None)])
def test_the_disk_of_a_partition(tmp_path: Path, value: str, rotational: bool | None) -> None:
    root = block_tree(tmp_path / "r", number_of(tmp_path), "nvme0n1", "nvme0n1p2", value)
    facts = access.disk_facts(root, tmp_path / "not/there/yet")
    assert facts.rotational is rotational
    assert facts.device == "nvme0n1p2"
    assert facts.free_bytes is not None
    assert facts.free_bytes > 0


def test_a_virtual_disk_does_not_know(tmp_path: Path) -> None:
    root = block_tree(tmp_path / "r", number_of(tmp_path), "vda", "vda1", "1\n")
    assert access.disk_facts(root, tmp_path).rotational is None


def test_btrfs_is_found_by_its_mount(tmp_path: Path) -> None:
    root = block_tree(tmp_path / "r", "250:1", "sda", "sda1", "1\n")
    line = f"36 35 {number_of(tmp_path)} / / rw shared:1 - btrfs /dev/sda1 rw\n"
    tree(tmp_path / "r", {"proc/self/mountinfo": f"garbage\n{line}"})
    facts = access.disk_facts(root, tmp_path)
    assert (facts.device, facts.rotational) == ("sda1", True)


def test_a_disk_that_cannot_be_told(tmp_path: Path) -> None:
    facts = access.disk_facts(tree(tmp_path / "r", {}), tmp_path)
    assert (facts.device, facts.rotational) == (None, None)
