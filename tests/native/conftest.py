"""The native programs, built as the engine is (and taken from the cache when they are there)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from llama_ai.engine.build import build_targets
from llama_ai.engine.engines import default_recipe
from llama_ai.engine.events import ignore

TARGETS = ("llama-ai-server", "memory_probe", "native-tests", "expert_simulator")


@pytest.fixture(scope="session")
def native_bin() -> Path:
    """The directory with ``llama-ai-server``, ``memory_probe`` and our native tests."""
    return build_targets(default_recipe(), TARGETS, jobs=None, on_progress=ignore) / "bin"


@pytest.fixture
def moved_bin(native_bin: Path, tmp_path: Path) -> Path:
    """The same files at another place, to change and to prove that the place does not matter."""

    def link_or_copy(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:  # another file system
            shutil.copy2(source, target)

    target = tmp_path / "moved"
    shutil.copytree(native_bin, target, symlinks=True, copy_function=link_or_copy)
    return target
