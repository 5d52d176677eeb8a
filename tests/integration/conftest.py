"""The real engine and the demo model, made once a session in the user's own cache.

The engine's cache is keyed by content, so a session builds only what changed.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from llama_ai.engine.engines import ensure_engine
from llama_ai.models.demo import ensure_demo

if TYPE_CHECKING:
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.engine.events import Step


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


def _say(step: Step) -> None:
    if step.stage == "note":
        sys.stderr.write(f"{step.text}\n")
