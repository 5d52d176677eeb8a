"""Runs the C++ tests of ``native/tests``."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


NAMES = (
    "test-own-flags",
    "test-build-info",
    "test-hooks",
    "test-expert-ahead",
    "test-expert-cache",
    "test-expert-layout",
    "test-expert-policy",
    "test-expert-predict",
    "test-expert-sampler",
    "test-expert-stats",
    "test-expert-trace",
)


@pytest.mark.parametrize("name", NAMES)
def test_native_program(native_bin: Path, name: str) -> None:
    done = subprocess.run([native_bin / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
