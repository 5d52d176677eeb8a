"""The Vulkan backend on Mesa's software driver: slow, but the real code path."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_ai.engine.capabilities import EngineInfo

pytestmark = [pytest.mark.engine, pytest.mark.vulkan]

Server = Any  # a class of conftest.py, which cannot be imported


def test_a_completion_is_computed_by_vulkan(
    serve: Callable[..., Server], vulkan_engine: EngineInfo
) -> None:
    del vulkan_engine  # it is there, with Vulkan, or this test fails and says why
    server = serve(
        "--backend",
        "vulkan",
        "--gpu-layers",
        "99",
        "--",
        "--verbosity",
        "4",
        env={"GGML_VK_VISIBLE_DEVICES": "0"},
    )
    record = server.wait_ready()
    answer = httpx.post(
        f"{server.url}/completion",
        json={"prompt": "The capital of France is", "n_predict": 2, "temperature": 0},
        timeout=120,
    ).json()
    assert "Paris" in answer["content"]
    log = Path(record["log_path"]).read_text()
    weights = re.search(r"Vulkan0 model buffer size = +([\d.]+) MiB", log)
    assert weights is not None, "the weights are not on the Vulkan device"
    assert float(weights[1]) > 50
    assert "llvmpipe" in log
