"""The wheel holds what a checkout holds: code, and the data directories that the code looks for."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the unpacked wheel, as pip would lay it out."""
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
    )
    [wheel] = out.glob("*.whl")
    site = out / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_assets_are_found_in_the_wheel(installed: Path) -> None:
    program = (
        "from llama_ai import paths\n"
        "for name in ('native/upstream.toml', 'native/patches/series', 'profiles/devices',\n"
        "             'profiles/presets/seed.toml', 'systemd', 'scripts/install-deps'):\n"
        "    print(paths.asset(name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(installed), "PATH": ""},
        cwd=installed,
        check=True,
        capture_output=True,
        text=True,
    )
    assert all(line.startswith(str(installed)) for line in done.stdout.splitlines())


def test_native_sources_in_the_wheel_are_those_of_the_checkout(installed: Path) -> None:
    shipped = installed / "llama_ai" / "_assets" / "native"
    tracked = subprocess.run(
        ["git", "ls-files", "native"], cwd=CHECKOUT, check=True, capture_output=True, text=True
    ).stdout.split()
    assert tracked
    for name in tracked:
        assert (shipped.parent / name).read_bytes() == (CHECKOUT / name).read_bytes(), name


def test_both_packages_and_their_type_marks_are_there(installed: Path) -> None:
    for name in ("llama_ai/__main__.py", "llama_ai/py.typed", "solver/solve.py", "solver/py.typed"):
        assert (installed / name).is_file()
