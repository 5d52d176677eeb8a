"""The cross-check at start: what it takes from a profile, and what the user sees of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

from llama_ai.cli.start_check import say, start_check
from llama_ai.hardware.budgets import GIB, MIB
from llama_ai.hardware.checks import Check
from llama_ai.planning import EngineDevice
from tests.support.hardware_trees import apu

if TYPE_CHECKING:
    import pytest

    from llama_ai.planning import Profile

FACTS = apu(vram=8 * GIB, gtt=27 * GIB, ram=54 * GIB, gfx="gfx1150")
DEVICE = EngineDevice(
    name="Vulkan0",
    description="AMD Radeon 890M (RADV GFX1150)",
    total_bytes=35 * GIB,
    free_bytes=35 * GIB,
)


def profile(device: EngineDevice | None, backend: str, weights: int) -> Profile:
    """The parts of a profile that the check reads."""
    parts = SimpleNamespace(
        target=SimpleNamespace(
            backend=backend, device=device, child_env=SimpleNamespace(unified_heap=True)
        ),
        plan=SimpleNamespace(memory=SimpleNamespace(gpu=SimpleNamespace(weights_bytes=weights))),
    )
    return cast("Profile", parts)


def statuses(checks: tuple[Check, ...]) -> dict[str, str]:
    return {check.id: check.status for check in checks}


def test_what_was_listed_before_the_start_is_used_where_the_log_is_silent() -> None:
    checks = start_check(profile(DEVICE, "vulkan", GIB), FACTS, ["srv load_model: loading model"])
    assert statuses(checks) == {
        "engine-device": "PASS",
        "engine-memory": "PASS",
        "engine-free": "PASS",
        "engine-placement": "UNKNOWN",
    }


def test_weights_in_system_memory_are_a_failure() -> None:
    log = ["load_tensors:   CPU_Mapped model buffer size =  1024.00 MiB"]
    checks = start_check(profile(DEVICE, "vulkan", GIB), FACTS, log)
    assert statuses(checks)["engine-placement"] == "FAIL"


def test_what_the_log_says_of_devices_wins() -> None:
    log = ["x:   - Vulkan0 : AMD Radeon (8192 MiB, 8000 MiB free)"]
    checks = start_check(profile(DEVICE, "vulkan", 90 * MIB), FACTS, log)
    assert statuses(checks)["engine-memory"] == "WARN"


def test_a_cpu_plan_is_left_alone() -> None:
    assert start_check(profile(None, "cpu", 0), FACTS, []) == ()


def test_failures_are_loud(capsys: pytest.CaptureFixture[str]) -> None:
    log = ["load_tensors:   CPU_Mapped model buffer size =  1024.00 MiB"]
    say(start_check(profile(DEVICE, "vulkan", GIB), FACTS, log))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("THE PLAN IS NOT WHAT RUNS: expected that 1.0 GiB of weights")
    assert len(captured.err.splitlines()) == 2
    say(start_check(profile(DEVICE, "vulkan", 0), FACTS, []))
    assert capsys.readouterr().err == ""
