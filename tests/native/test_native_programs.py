"""Runs the C++ tests of ``native/tests``."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("name", ["test-own-flags", "test-build-info", "test-hooks"])
def test_native_program(native_bin: Path, name: str) -> None:
    done = subprocess.run([native_bin / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
