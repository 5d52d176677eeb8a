"""The cross-check against the real engine: with a software driver that poses as an APU's GPU
(``tests/native/vk_igpu.c``), and without one."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai.hardware.budgets import GIB, MIB, budgets
from llama_ai.hardware.crosscheck import EngineReport, cross_check, parse_log
from tests.support.hardware_trees import apu

if TYPE_CHECKING:
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.hardware.checks import Check
    from llama_ai.hardware.facts import HardwareFacts

pytestmark = [pytest.mark.engine, pytest.mark.vulkan, pytest.mark.timeout(3600)]

SOURCE = Path(__file__).parents[1] / "native" / "vk_igpu.c"
NAME = "AMD Radeon 890M (RADV GFX1150)"

STRIX_POINT = apu(vram=8 * GIB, gtt=27 * GIB, ram=54 * GIB, gfx="gfx1150")
WEIGHTS_BYTES = 90 * MIB
"""SmolLM2-135M Q4_1 puts 92 MiB on the GPU; the token embedding stays on the host."""


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled shim."""
    library = tmp_path_factory.mktemp("shim") / "vk_igpu.so"
    subprocess.run(
        ["cc", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True
    )
    return library


def gpu_env(preload: Path, heap_mib: int) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(preload),
        "TEST_VK_HEAP_MIB": str(heap_mib),
        "TEST_VK_NAME": NAME,
    }


def compare(facts: HardwareFacts, report: EngineReport, weights: int = 0) -> dict[str, Check]:
    checks = cross_check(
        facts,
        budgets(facts),
        backend="vulkan",
        device="Vulkan0",
        report=report,
        planned_weights_bytes=weights,
    )
    return {check.id: check for check in checks}


def listed(engine: EngineInfo, env: dict[str, str]) -> EngineReport:
    done = subprocess.run(
        [engine.server, "--list-devices"],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return parse_log(done.stdout.splitlines())


def loaded(engine: EngineInfo, model: Path, env: dict[str, str], log: Path) -> EngineReport:
    """Load ``model`` for the GPU, end the server, and read what its log said."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--port", str(port), "-c", "512", "-ngl", "99", "-fit", "off", "-lv", "4"]
    with (
        log.open("w") as stream,
        subprocess.Popen(
            [engine.server, "-m", model, "--host", "127.0.0.1", "--no-warmup", *words],
            env={**os.environ, **env},
            stdout=stream,
            stderr=stream,
        ) as server,
    ):
        deadline = time.monotonic() + 120
        while "model loaded" not in log.read_text() and server.poll() is None:
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        server.terminate()
        try:
            server.wait(timeout=30)
        except subprocess.TimeoutExpired:
            server.kill()
    text = log.read_text()
    assert "model loaded" in text, text[-3000:]
    return parse_log(text.splitlines())


def test_the_device_that_we_expect(vulkan_engine: EngineInfo, preload: Path) -> None:
    checks = compare(STRIX_POINT, listed(vulkan_engine, gpu_env(preload, 35 * 1024)))
    assert {check.status for check in checks.values()} == {"PASS"}
    assert NAME in checks["engine-device"].observed


@pytest.mark.parametrize(
    ("heap_mib", "reason"), [(8 * 1024, "carve-out only"), (24 * 1024 - 683, "2/3")]
)
def test_a_heap_that_differs_is_a_warning(
    vulkan_engine: EngineInfo, preload: Path, heap_mib: int, reason: str
) -> None:
    check = compare(STRIX_POINT, listed(vulkan_engine, gpu_env(preload, heap_mib)))["engine-memory"]
    assert check.status == "WARN"
    assert "35.0 GiB" in check.expected
    assert check.hint is not None
    assert reason in check.hint


def test_an_engine_without_a_gpu_fails_a_plan_for_it(vulkan_engine: EngineInfo) -> None:
    hidden = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"}
    checks = compare(STRIX_POINT, listed(vulkan_engine, hidden))
    assert [check.status for check in checks.values()] == ["FAIL"]


def test_weights_on_the_gpu(
    vulkan_engine: EngineInfo, demo_model: Path, preload: Path, tmp_path: Path
) -> None:
    env = gpu_env(preload, 35 * 1024)
    report = loaded(vulkan_engine, demo_model, env, tmp_path / "log")
    checks = compare(STRIX_POINT, report, WEIGHTS_BYTES)
    assert checks["engine-placement"].status == "PASS"
    assert {check.status for check in checks.values()} == {"PASS"}


def test_weights_that_ended_on_the_cpu(
    vulkan_engine: EngineInfo, demo_model: Path, tmp_path: Path
) -> None:
    """The engine itself says "offloaded 31/31 layers to GPU" here."""
    hidden = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"}
    report = loaded(vulkan_engine, demo_model, hidden, tmp_path / "log")
    assert "offloaded 31/31 layers to GPU" in (tmp_path / "log").read_text()
    checks = compare(STRIX_POINT, report, WEIGHTS_BYTES)
    assert "FAIL" in {check.status for check in checks.values()}
