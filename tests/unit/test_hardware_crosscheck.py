"""The engine's report against our facts, with lines as the pinned engine writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llama_ai.hardware.access import RenderAccess
from llama_ai.hardware.budgets import GIB, MIB, budgets
from llama_ai.hardware.checks import Check
from llama_ai.hardware.crosscheck import EngineReport, ReportedDevice, cross_check, parse_log
from llama_ai.hardware.facts import HardwareFacts
from tests.support.hardware_trees import DISCRETE, apu

# Written by the pinned engine (-lv 4) with the preload of tests/native/vk_igpu.c.
GPU_LOG = """\
0.00.041.017 I cmn  common_param: device_info:
0.00.041.158 I cmn  common_param:   - Vulkan0 : AMD Radeon Graphics (RADV TEST) \
(36127 MiB, 35117 MiB free)
0.00.041.160 I cmn  common_param:   - CPU     : AMD EPYC (24105 MiB, 24105 MiB free)
0.00.130.117 I load_tensors: offloading output layer to GPU
0.00.130.153 I load_tensors: offloaded 31/31 layers to GPU
0.00.130.169 I load_tensors:      Vulkan0 model buffer size =    92.10 MiB
0.00.130.181 I load_tensors:  Vulkan_Host model buffer size =    28.69 MiB
0.00.338.407 I llama_kv_cache:    Vulkan0 KV buffer size =    11.25 MiB
"""
# The same engine without a GPU: note the line that says otherwise.
CPU_LOG = """\
0.00.107.424 I cmn  common_param: device_info:
0.00.107.432 I cmn  common_param:   - CPU     : AMD EPYC (24105 MiB, 24105 MiB free)
0.00.219.706 I load_tensors: offloaded 31/31 layers to GPU
0.00.219.726 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
"""
LIST_DEVICES = """\
Available devices:
  Vulkan0: AMD Radeon 890M (RADV GFX1150) (36127 MiB, 35117 MiB free)
"""

STRIX_POINT = apu(vram=8 * GIB, gtt=29_292_957_696, ram=58_585_919_488, gfx="gfx1150")


def check_all(
    facts: HardwareFacts,
    report: EngineReport,
    *,
    backend: str = "vulkan",
    device: str | None = "Vulkan0",
    weights: int | None = None,
    access: RenderAccess | None = None,
) -> dict[str, Check]:
    checks = cross_check(
        facts,
        budgets(facts),
        backend=backend,
        device=device,
        report=report,
        planned_weights_bytes=weights,
        access=access,
    )
    return {check.id: check for check in checks}


def device(total: int | None, free: int | None = None, name: str = "Vulkan0") -> EngineReport:
    reported = ReportedDevice(name=name, description="d", total_bytes=total, free_bytes=free)
    return EngineReport(devices=(reported,))


def test_the_log_is_read() -> None:
    report = parse_log(GPU_LOG.splitlines())
    assert report.devices == (
        ReportedDevice(
            name="Vulkan0",
            description="AMD Radeon Graphics (RADV TEST)",
            total_bytes=36127 * MIB,
            free_bytes=35117 * MIB,
        ),
    )
    assert report.model_buffers == {"Vulkan0": int(92.1 * MIB), "Vulkan_Host": int(28.69 * MIB)}
    assert parse_log(LIST_DEVICES.splitlines()).devices[0].description.startswith("AMD Radeon 890M")
    assert parse_log(["", "garbage", "x: (MiB, MiB free)"]) == EngineReport()


def test_only_the_last_start_counts() -> None:
    start = "0.00.041.017 I cmn  common_param: common_params_print_info: verbosity = 4 (adjust)"
    lines = [start, *GPU_LOG.splitlines(), start, *CPU_LOG.splitlines()]
    assert parse_log(lines) == parse_log(CPU_LOG.splitlines())
    lines = [start, *CPU_LOG.splitlines(), start, *GPU_LOG.splitlines()]
    assert parse_log(lines) == parse_log(GPU_LOG.splitlines())


def test_the_budget_of_the_plan_is_compared() -> None:
    """With RADV's own heaps 24 GiB are enough; with one heap they would be too few."""
    report = device(36127 * MIB, 24 * GIB)
    known = budgets(STRIX_POINT)
    for unified, status in ((True, "WARN"), (False, "PASS")):
        checks = cross_check(
            STRIX_POINT,
            known,
            backend="vulkan",
            device="Vulkan0",
            report=report,
            unified_heap=unified,
        )
        assert {check.id: check.status for check in checks}["engine-free"] == status


def test_a_report_that_agrees() -> None:
    """Strix Point on record: 36127 MiB total is carve-out + GTT."""
    report = parse_log(GPU_LOG.splitlines())
    checks = check_all(STRIX_POINT, report, weights=92 * MIB)
    assert {id_: check.status for id_, check in checks.items()} == {
        "engine-device": "PASS",
        "engine-memory": "PASS",
        "engine-free": "PASS",
        "engine-placement": "PASS",
    }


def test_a_plan_for_the_gpu_that_ended_on_the_cpu_is_a_failure() -> None:
    report = parse_log(CPU_LOG.splitlines())
    checks = check_all(STRIX_POINT, report, weights=92 * MIB)
    assert [check.status for check in checks.values()] == ["FAIL"]
    assert "CPU_Mapped" in checks["engine-device"].observed
    # Also when the device is listed and only the weights are elsewhere.
    report = replace(parse_log(LIST_DEVICES.splitlines()), model_buffers=report.model_buffers)
    checks = check_all(STRIX_POINT, report, weights=92 * MIB)
    assert checks["engine-placement"].status == "FAIL"
    assert "runs on the CPU" in checks["engine-placement"].observed


def test_no_device_at_all_is_a_failure_with_its_reason() -> None:
    checks = check_all(STRIX_POINT, parse_log(["Available devices:", "  (none)"]))
    assert [check.status for check in checks.values()] == ["FAIL"]
    closed = RenderAccess(
        path="/dev/dri/renderD128", exists=True, usable=False, mode=0o600, group="render"
    )
    hint = check_all(STRIX_POINT, EngineReport(), access=closed)["engine-device"].hint
    assert hint is not None
    assert "usermod -aG render" in hint
    gone = replace(closed, exists=False)
    hint = check_all(STRIX_POINT, EngineReport(), access=gone)["engine-device"].hint
    assert hint is not None
    assert "does not exist" in hint


def test_another_device_than_the_planned_one() -> None:
    checks = check_all(STRIX_POINT, device(36127 * MIB, name="Vulkan1"))
    assert checks["engine-device"].status == "FAIL"
    assert "Vulkan1" in checks["engine-device"].observed
    assert (
        check_all(STRIX_POINT, device(36127 * MIB), device=None)["engine-device"].status == "PASS"
    )


@pytest.mark.parametrize(
    ("description", "status"),
    [
        ("AMD Radeon 890M (RADV GFX1150)", "PASS"),
        ("AMD Radeon Graphics (RADV RENOIR)", "PASS"),
        ("AMD Custom GPU 0405 (RADV VANGOGH)", "PASS"),
        ("AMD Radeon RX Vega 10 Graphics (RADV RAVEN)", "PASS"),
        ("AMD Radeon RX 7900 GRE (RADV NAVI31)", "WARN"),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "WARN"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", "WARN"),
    ],
)
def test_a_device_that_is_another_gpu_is_a_warning(description: str, status: str) -> None:
    other = ReportedDevice(
        name="Vulkan0", description=description, total_bytes=36127 * MIB, free_bytes=36127 * MIB
    )
    checks = check_all(STRIX_POINT, EngineReport(devices=(other,)))
    assert checks["engine-device"].status == status


@pytest.mark.parametrize(
    ("total", "status", "reason"),
    [
        (36127 * MIB, "PASS", None),
        (33000 * MIB, "PASS", None),
        (39500 * MIB, "PASS", None),
        (32000 * MIB, "WARN", "changed since"),
        (8 * GIB, "WARN", "carve-out only"),
        (27936 * MIB, "WARN", "GTT only"),
        (24084 * MIB, "WARN", "2/3"),
        (60000 * MIB, "WARN", "more than the kernel states"),
    ],
)
def test_a_gap_above_a_tenth_is_a_warning(total: int, status: str, reason: str | None) -> None:
    check = check_all(STRIX_POINT, device(total))["engine-memory"]
    assert check.status == status
    if reason is not None:
        assert check.hint is not None
        assert reason in check.hint
        assert "35.3 GiB" in check.expected


def test_little_free_memory_is_a_warning() -> None:
    assert check_all(STRIX_POINT, device(36127 * MIB, 35117 * MIB))["engine-free"].status == "PASS"
    assert check_all(STRIX_POINT, device(36127 * MIB, 20000 * MIB))["engine-free"].status == "WARN"
    assert check_all(STRIX_POINT, device(36127 * MIB, None))["engine-free"].status == "UNKNOWN"


def test_rocms_figures() -> None:
    """On record: total 27935 MiB (GTT alone), free 49248 MiB (more than the total)."""
    report = device(27935 * MIB, 49248 * MIB, name="ROCm0")
    checks = check_all(STRIX_POINT, report, backend="rocm", device="ROCm0")
    assert {check.status for check in checks.values()} == {"PASS"}


def test_a_part_in_system_memory_is_a_warning() -> None:
    report = EngineReport(
        devices=device(36127 * MIB).devices, model_buffers={"Vulkan0": GIB, "CPU": GIB}
    )
    checks = check_all(STRIX_POINT, report, weights=2 * GIB)
    assert checks["engine-placement"].status == "WARN"
    assert check_all(STRIX_POINT, report, weights=GIB)["engine-placement"].status == "PASS"
    assert "engine-placement" not in check_all(STRIX_POINT, report, weights=0)


def test_a_silent_log_is_unknown() -> None:
    checks = check_all(STRIX_POINT, device(36127 * MIB), weights=GIB)
    assert checks["engine-placement"].status == "UNKNOWN"
    assert check_all(apu(gtt=None), device(GIB))["engine-memory"].status == "UNKNOWN"


def test_a_plan_for_the_cpu_has_nothing_to_compare() -> None:
    assert check_all(STRIX_POINT, EngineReport(), backend="cpu") == {}


def test_a_discrete_card_is_compared_with_its_own_memory() -> None:
    facts = replace(apu(others=(DISCRETE,)), gpu=DISCRETE)
    assert check_all(facts, device(16 * GIB, 16 * GIB))["engine-memory"].status == "PASS"
    assert check_all(facts, device(8 * GIB, 8 * GIB))["engine-memory"].status == "WARN"
