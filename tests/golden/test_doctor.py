"""``doctor --root`` on recorded machines: its text, its JSON contract and its exit codes.

``UPDATE_GOLDEN=1`` writes the texts anew; read the difference before you keep it.
"""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
import typer

from llama_ai.cli.doctor import doctor

HERE = Path(__file__).parent
MACHINES = HERE.parent / "machines"
GOLDEN = HERE / "doctor"
SLUGS = sorted(path.parent.name for path in MACHINES.glob("*/expected.json"))

SHOWN = (
    "barcelo-32-512m-vaio",
    "hostile-no-drm",
    "phoenix-64-4g",
    "raphael-32-512m-rx7900gre",
    "strixhalo-128-4g-z13-nixos",
    "strixhalo-128-512m-framework-cachyos",
    "strixhalo-88-64g-vm-dkms",
    "vangogh-16-1g-decklcd-fedora",
    "vm-virtualbox-2",
)

# The contract of doctor --json; more keys may stand beside these.
MACHINE_KEYS = {
    "is_amd_apu",
    "pci_device",
    "revision",
    "gfx",
    "gfx_source",
    "codename",
    "gpu_name",
    "tier",
    "igpu_card",
    "vram_bytes",
    "vis_vram_bytes",
    "gtt_bytes",
    "ram_bytes",
    "ram_available_bytes",
    "cpu",
    "isa",
    "cores_physical",
    "cores_logical",
    "kernel",
    "distro",
    "boot_route",
    "on_ac",
    "budgets",
}


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("LLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(
    root: Path, capsys: pytest.CaptureFixture[str], *, as_json: bool = False
) -> tuple[str, int]:
    """What doctor prints for a recorded machine, and its exit code."""
    code = 0
    try:
        doctor(json=as_json, root=str(root))
    except typer.Exit as stop:
        code = stop.exit_code
    return capsys.readouterr().out, code


@pytest.mark.parametrize("slug", SHOWN)
def test_text(slug: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = run(MACHINES / slug / "root", capsys)
    golden = GOLDEN / f"{slug}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


@pytest.mark.parametrize("slug", SLUGS)
def test_json(slug: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, code = run(MACHINES / slug / "root", capsys, as_json=True)
    document: dict[str, Any] = json.loads(text)
    assert document["schema"] == "llama-ai.doctor/1"
    machine = document["machine"]
    assert set(machine) >= MACHINE_KEYS
    assert set(machine["budgets"]) >= {"vulkan", "vulkan_unified", "rocm", "cpu"}
    expected = json.loads((MACHINES / slug / "expected.json").read_text())["expected"]
    assert {key: machine[key] for key in expected} == expected
    ids = [check["id"] for check in document["checks"]]
    assert len(set(ids)) == len(ids)
    for check in document["checks"]:
        assert set(check) == {"id", "status", "expected", "observed", "hint"}
        assert check["status"] in ("PASS", "WARN", "FAIL", "UNKNOWN")
        # A recording says nothing about this machine's paths, engine and port.
        assert not check["id"].startswith(("path-", "port", "engine", "disk"))
    failed = any(check["status"] == "FAIL" for check in document["checks"])
    assert code == (5 if failed else 0)


def test_a_failure_is_exit_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    text, code = run(MACHINES / "hostile-no-drm" / "root", capsys)
    assert code == 5
    assert "held by no driver" in text


def test_a_tarball_reads_like_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = MACHINES / "phoenix-64-4g" / "root"
    with tarfile.open(tmp_path / "m.tar.gz", "w:gz") as archive:
        archive.add(root, arcname=".")
    assert run(tmp_path / "m.tar.gz", capsys) == run(root, capsys)


def test_overrides_of_the_seed_are_honoured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_HARDWARE_TIER_OVERRIDE", "halo")
    monkeypatch.setenv("LLAMA_GFX_VERSION_OVERRIDE", "11.0.3")
    text, _ = run(MACHINES / "rembrandt-32-512m-thinkpad" / "root", capsys, as_json=True)
    machine = json.loads(text)["machine"]
    assert (machine["tier"], machine["gfx"], machine["gfx_source"]) == (
        "halo",
        "gfx1103",
        "override",
    )


def test_empty_directories_are_not_needed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Git drops them; with or without them a machine is the same."""
    for slug in SLUGS:
        document = json.loads((MACHINES / slug / "expected.json").read_text())
        if not document["empty_dirs"]:
            continue
        copy = tmp_path / slug
        shutil.copytree(MACHINES / slug / "root", copy, symlinks=True)
        for name in document["empty_dirs"]:
            (copy / name).mkdir(parents=True, exist_ok=True)
        assert run(copy, capsys) == run(MACHINES / slug / "root", capsys)
