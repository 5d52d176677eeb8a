"""The disk that models are on: measured from a real file, remembered by device, else assumed."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.cli.doctor import _model_disk
from llama_ai.config import ConfigFile, Settings
from llama_ai.hardware import disk_speed
from llama_ai.hardware.access import disk_facts
from llama_ai.hardware.checks.disk import model_disk
from llama_ai.hardware.disk_speed import DiskSpeed, ModelDisk, NotMeasuredError
from llama_ai.hardware.root import Root
from tests.unit.test_hardware_access import block_tree, number_of

MIB = 1 << 20
SPEED = DiskSpeed(sequential_bytes_s=2e9, slices_bytes_s=1e9, at_s=0.0, direct=True)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("disk") / "m.gguf"
    path.write_bytes(os.urandom(MIB) * 66)
    return path


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Offset and length of every read from now on."""
    seen: list[tuple[int, int]] = []
    lock, real = threading.Lock(), os.preadv

    def preadv(handle: int, buffers: list[bytearray], offset: int) -> int:
        with lock:
            seen.append((offset, len(buffers[0])))
        return real(handle, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    return seen


def test_a_part_of_the_file_is_read_once_and_nothing_is_written(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = large.stat()
    seen = reads_of(monkeypatch)
    speed = disk_speed.measure(large, most_bytes=32 * MIB, most_s=60)
    assert speed.sequential_bytes_s > 0
    assert speed.slices_bytes_s > 0
    blocks = [offset for offset, length in seen if length == 4 * MIB]
    slices = [offset for offset, length in seen if length == MIB]
    assert blocks == [0, 4 * MIB, 8 * MIB, 12 * MIB]
    assert len(slices) == len(set(slices)) == 16
    assert min(slices) >= 33 * MIB  # none that the blocks have read
    assert max(slices) + MIB <= 66 * MIB
    assert slices != sorted(slices)
    after = large.stat()
    assert (after.st_mtime_ns, after.st_size) == (before.st_mtime_ns, before.st_size)


def test_without_direct_reads_the_answer_says_so(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refusing(path: Path, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    assert not disk_speed.measure(large, most_bytes=8 * MIB).direct


def test_what_cannot_be_measured_says_why(tmp_path: Path) -> None:
    small = tmp_path / "small.gguf"
    small.write_bytes(b"x" * MIB)
    hole = tmp_path / "hole.gguf"
    with hole.open("wb") as stream:
        stream.truncate(80 * MIB)
    for path, words in (
        (small, "too small"),
        (hole, "full of holes"),
        (tmp_path / "absent.gguf", "No such file"),
    ):
        with pytest.raises(NotMeasuredError, match=words):
            disk_speed.measure(path)


def test_a_disk_that_hangs_is_not_waited_for(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def hanging(*_: object) -> DiskSpeed:
        released.wait(30)
        return SPEED

    monkeypatch.setattr(disk_speed, "_measure", hanging)
    try:
        with pytest.raises(NotMeasuredError, match="did not answer"):
            disk_speed.measure(large, give_up_s=0.05)
    finally:
        released.set()


def test_time_is_bounded(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = reads_of(monkeypatch)
    with pytest.raises(NotMeasuredError, match="in time"):
        disk_speed.measure(large, most_s=-1)
    assert len(seen) <= 1  # the one that tries whether direct reads work


@pytest.mark.parametrize(
    ("disk", "part", "rotational", "kind"),
    [
        ("nvme0n1", "nvme0n1p2", "0", "nvme"),
        ("sda", "sda1", "0", "sata"),
        ("sda", "sda1", "1", "rotating"),
        ("mmcblk0", "mmcblk0p1", "0", "card"),
        ("vda", "vda1", "1", None),  # a virtual disk says so whatever lies below it
    ],
)
def test_a_disk_that_was_never_measured_is_assumed_by_its_kind(
    tmp_path: Path, disk: str, part: str, rotational: str, kind: str | None
) -> None:
    root = block_tree(tmp_path / "r", number_of(tmp_path), disk, part, rotational)
    found = disk_speed.disk_of(root, tmp_path / "m.gguf")
    if kind is None:
        assert found is None
        return
    assert found is not None
    rates = disk_speed.ASSUMED[kind]  # type: ignore[index] # one of its keys
    assert (found.sequential_bytes_s, found.slices_bytes_s) == rates
    assert not found.measured


def test_below_encryption_the_disk_itself_counts(tmp_path: Path) -> None:
    root = block_tree(tmp_path / "r", number_of(tmp_path), "dm-0", "dm-0p1", "0")
    slave = tmp_path / "r/sys/devices/dm-0/dm-0p1/slaves/nvme0n1p3"
    slave.mkdir(parents=True)
    facts = disk_facts(root, tmp_path)
    assert disk_speed.kind_of(root, facts) == "nvme"


def test_a_measurement_is_remembered_by_device_and_wins(tmp_path: Path) -> None:
    root = block_tree(tmp_path / "r", number_of(tmp_path), "nvme0n1", "nvme0n1p2", "0")
    path, asked = tmp_path / "m.gguf", []

    def measured(file: Path) -> DiskSpeed:
        asked.append(file)
        return replace(SPEED, at_s=time.time())

    first = disk_speed.look_at(root, path, measure_file=measured)
    second = disk_speed.look_at(root, path, measure_file=measured)
    assert asked == [path]
    assert (first.before, second.before, second.device) == (False, True, "nvme0n1p2")
    known = disk_speed.disk_of(root, path)
    assert known is not None
    assert (known.slices_bytes_s, known.measured) == (1e9, True)
    other = block_tree(tmp_path / "s", number_of(tmp_path), "nvme1n1", "nvme1n1p2", "0")
    unmeasured = disk_speed.disk_of(other, path)
    assert unmeasured is not None
    assert not unmeasured.measured


def test_an_old_measurement_is_made_again_but_used_until_then(tmp_path: Path) -> None:
    root = block_tree(tmp_path / "r", number_of(tmp_path), "nvme0n1", "nvme0n1p2", "0")
    path = tmp_path / "m.gguf"
    disk_speed.look_at(root, path, measure_file=lambda _: SPEED)  # of 1970
    old = disk_speed.disk_of(root, path)
    assert old is not None
    assert old.measured
    again = disk_speed.look_at(
        root, path, measure_file=lambda _: replace(SPEED, slices_bytes_s=7e9)
    )
    assert again.speed is not None
    assert again.speed.slices_bytes_s == 7e9


@pytest.mark.parametrize("text", ["", "[]", '{"format": 9}', '{"format": 1, "disks": 3}'])
def test_a_damaged_cache_is_no_cache(tmp_path: Path, text: str) -> None:
    disk_speed.cache_path().parent.mkdir()
    disk_speed.cache_path().write_text(text)
    assert disk_speed.remembered("x") is None
    disk_speed.remember("x", SPEED)
    assert disk_speed.remembered("x") == SPEED
    entry = {"sequential_bytes_s": 0, "slices_bytes_s": "fast", "at_s": 1, "direct": True}
    document = {"format": 1, "disks": {"x": entry, "y": 5}}
    disk_speed.cache_path().write_text(json.dumps(document))
    assert disk_speed.remembered("x") is disk_speed.remembered("y") is None


def test_the_check() -> None:
    disk = ModelDisk(directory="/m", device="nvme0n1p2", speed=SPEED, problem=None)
    good = model_disk(disk)
    assert (good.status, good.hint) == ("PASS", None)
    assert "2.00 GB/s in order, 1.00 GB/s in slices" in good.observed
    slow = model_disk(replace(disk, speed=replace(SPEED, slices_bytes_s=5e7, direct=False)))
    assert slow.status == "WARN"
    assert "page cache" in slow.observed
    failed = model_disk(replace(disk, speed=None, problem="the disk did not answer"))
    assert failed.status == "UNKNOWN"
    assert "did not answer" in failed.observed
    assert model_disk(None).observed == "no model file is here yet"


def test_doctor_measures_by_the_largest_model(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_DATA_HOME", "HF_HOME", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "empty")
    monkeypatch.chdir(tmp_path)
    config = ConfigFile(path=Path("c"), values={}, model_dirs=(large.parent,))
    seen: list[Path] = []

    def look(_: Root, path: Path) -> ModelDisk:
        seen.append(path)
        return ModelDisk(directory="/m", device=None, speed=SPEED, problem=None)

    monkeypatch.setattr(disk_speed, "look_at", look)
    assert _model_disk(Root("/"), Settings({}, config)).status == "PASS"
    assert seen == [large]
    nothing = ConfigFile(path=Path("c"), values={}, model_dirs=())
    assert _model_disk(Root("/"), Settings({}, nothing)).status == "UNKNOWN"
