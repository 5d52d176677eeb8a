"""The shipped tables keep their schema, and a damaged table is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.errors import LlamaAiError
from llama_ai.hardware import trouble
from llama_ai.hardware.devices import device_table, load

DIRECTORY = paths.asset("profiles") / "devices"


def test_shipped_table() -> None:
    table = device_table()
    assert len(table.devices) >= 23
    for device in table.devices.values():
        assert device.source
        assert device.gfx in table.apu_gfx, device.id
    assert set(table.gfx_by_gc.values()) >= table.apu_gfx - {"gfx909"}
    assert len(table.handhelds) >= 10


@pytest.mark.parametrize(
    ("device", "revision", "name", "codename", "gfx"),
    [
        # The seed's own table had each of these wrong.
        ("1681", "c8", "Radeon 680M", "Rembrandt", "gfx1035"),
        ("15c8", "c1", "Radeon 740M", "Phoenix2", "gfx1103"),
        ("1435", "ae", "AMD Custom GPU 0932", "Sephiroth", "gfx1033"),
        ("1586", "d5", "Radeon 8040S", "Strix Halo", "gfx1151"),
        ("150e", "d2", "Radeon 880M", "Strix Point", "gfx1150"),
        ("150e", "e1", "Radeon 890M", "Gorgon Point", "gfx1150"),
        ("15bf", "dd", "Radeon 780M", "Phoenix1", "gfx1103"),
        ("1902", "c2", "Radeon 820M", "Krackan2", "gfx1153"),
        ("15e7", "c1", None, "Barcelo", "gfx90c"),
    ],
)
def test_rows(device: str, revision: str, name: str | None, codename: str, gfx: str) -> None:
    row = device_table().devices[device]
    assert row.names.get(revision) == name
    assert row.codenames.get(revision, row.codename) == codename
    assert row.gfx == gfx


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("amd-apu.toml", 'id = "15bf"', 'id = "15BF"', "hexadecimal"),
        ("amd-apu.toml", 'id = "15bf"', 'id = "1586"', "twice"),
        ("amd-apu.toml", 'gfx = "gfx1151"', 'gfx = "1151"', "gfx1103"),
        ("amd-apu.toml", '["d5"]', '["d4"]', "two names"),
        ("amd-apu.toml", '["d5"]', '["0xd5"]', "bad revision"),
        ("amd-apu.toml", '["d5"]', "[]", "needs revisions"),
        ("amd-apu.toml", "vk_nodes_per_submit = 100", "vk_nodes_per_submit = 0", "1 to 1000"),
        ("amd-apu.toml", 'codename = "Strix Halo"', 'codename = ""', "codename"),
        ("amd-apu.toml", "[[device]]", "[device]", "device"),
        ("gfx.toml", '"11.5.1"', '"11.5"', "GC version"),
        ("gfx.toml", '= "gfx1151"', '= "1151"', "target"),
        ("gfx.toml", "[gc]", "[gcs]", "gc"),
        ("handhelds.toml", 'vendor = "Valve"', 'maker = "Valve"', "keys"),
        ("known-trouble.toml", 'backend = "rocm"', 'backend = "cuda"', "backend"),
        ("known-trouble.toml", "hint =", "hints =", "keys"),
        ("known-trouble.toml", "[[trouble]]", "[[trouble", "known-trouble.toml"),
    ],
)
def test_a_damaged_table_is_refused(
    tmp_path: Path, file: str, old: str, new: str, says: str
) -> None:
    directory = tmp_path / "devices"
    shutil.copytree(DIRECTORY, directory)
    text = (directory / file).read_text()
    assert old in text
    (directory / file).write_text(text.replace(old, new))

    def load_all() -> None:
        load(directory)
        trouble.load(directory / "known-trouble.toml")

    with pytest.raises(LlamaAiError, match=says):
        load_all()


def test_missing_tables_are_said(tmp_path: Path) -> None:
    with pytest.raises(LlamaAiError, match=r"amd-apu\.toml"):
        load(tmp_path)
    with pytest.raises(LlamaAiError, match="known-trouble"):
        trouble.load(tmp_path / "known-trouble.toml")


def test_handhelds_match_by_prefix() -> None:
    table = device_table()
    assert table.is_handheld("Valve", "Galileo")
    assert table.is_handheld("ASUSTeK COMPUTER INC.", "ROG Ally X RC72LA_RC72LA")
    assert table.is_handheld("AYANEO", "FLIP KB")
    assert not table.is_handheld("ASUSTeK COMPUTER INC.", "ROG Zephyrus G14")
    assert not table.is_handheld("AYANEO", "AM01")
    assert not table.is_handheld(None, "Galileo")


def test_trouble_rows_apply_by_kernel_and_firmware() -> None:
    row = trouble.Trouble(
        id="x",
        gfx=frozenset({"gfx1151"}),
        backend="any",
        kernel_from=(6, 1, 0),
        kernel_below=(6, 5, 0),
        firmware_dates=frozenset({20251125}),
        what="w",
        hint="h",
        source="s",
    )
    assert row.applies("gfx1151", (6, 4, 9), 20251125) is True
    assert row.applies("gfx1151", (6, 5, 0), 20251125) is False
    assert row.applies("gfx1151", (6, 0, 9), 20251125) is False
    assert row.applies("gfx1151", (6, 4, 9), 20250101) is False
    assert row.applies("gfx1151", (6, 4, 9), None) is None
    assert row.applies("gfx1151", None, 20251125) is None
    assert row.applies("gfx1150", None, None) is False


def test_shipped_trouble_names_its_source() -> None:
    rows = trouble.known_trouble()
    assert len({row.id for row in rows}) == len(rows) >= 3
    assert all(row.source and row.hint for row in rows)
