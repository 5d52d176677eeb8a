"""Budgets: the sums by hand, for each backend and each trap on record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llama_ai.hardware.budgets import (
    CONTAINER_RESERVE_BYTES,
    GIB,
    MIB,
    Budgets,
    budgets,
    os_reserve_bytes,
    recommended_gtt_bytes,
    size,
)
from llama_ai.hardware.facts import HardwareFacts
from tests.support.hardware_trees import DISCRETE, apu


def amounts(known: Budgets) -> dict[str, int | None]:
    return {name: budget.bytes for name, budget in known.backends.items()}


@pytest.mark.parametrize(
    ("ram_gib", "reserve_gib"),
    [(2, 1), (3, 1.5), (12, 6), (15, 6), (24, 6), (28, 7), (32, 8), (64, 8), (125, 8), (512, 8)],
)
def test_reserve_by_ram_size(ram_gib: int, reserve_gib: float) -> None:
    assert os_reserve_bytes(ram_gib * GIB) == int(reserve_gib * GIB)


def test_strix_halo_with_raised_gtt() -> None:
    """512 MiB + 104 GiB of 125 GiB, by hand."""
    known = budgets(apu(gtt=104 * GIB, pages=104 * GIB // 4096))
    assert known.uma
    assert known.os_reserve_bytes == 8 * GIB
    assert known.host_budget_bytes == 117 * GIB
    assert known.pool_bytes == 512 * MIB + 117 * GIB
    heap = -(-(512 * MIB + 104 * GIB) * 2 // 3 // 4096) * 4096
    assert amounts(known) == {
        "vulkan": heap,
        "vulkan_unified": 512 * MIB + 104 * GIB,
        "rocm": 104 * GIB,
        "cpu": 117 * GIB,
    }
    assert known.gpu_budget_bytes("vulkan") == 512 * MIB + 104 * GIB
    assert known.gpu_budget_bytes("vulkan", unified_heap=False) == heap
    assert known.gpu_budget_bytes("rocm") == 104 * GIB
    assert known.gpu_budget_bytes("cpu") is None


def test_the_seeds_handheld() -> None:
    """7840U, 32 GB: 6 GiB carve-out + 18 GiB GTT of 26 GiB visible; the seed plans with 22."""
    known = budgets(apu(vram=6 * GIB, gtt=18 * GIB, ram=26 * GIB, gfx="gfx1103"))
    assert known.backends["vulkan_unified"].bytes == 24 * GIB
    assert known.backends["vulkan"].bytes == 16 * GIB
    assert known.host_budget_bytes == 26 * GIB - 26 * GIB // 4


def test_gtt_beyond_ram_is_capped() -> None:
    known = budgets(apu(gtt=125 * GIB))
    assert known.backends["vulkan_unified"].bytes == 512 * MIB + 117 * GIB
    assert "what RAM leaves" in " ".join(known.explain("vulkan_unified"))


def test_the_page_limit_bounds_a_gtt_that_only_echoes_its_parameter() -> None:
    """V 96 G 96 with 15.5 GiB of TTM pages: the stated GTT cannot be filled."""
    facts = apu(vram=96 * GIB, gtt=96 * GIB, ram=31 * GIB, pages=4_062_211)
    known = budgets(facts)
    assert known.backends["vulkan_unified"].bytes == 96 * GIB + 4_062_211 * 4096
    assert known.backends["vulkan"].bytes == known.backends["vulkan_unified"].bytes
    assert known.backends["rocm"].bytes == 96 * GIB, "kernel 6.18 takes the larger pool"


def test_visible_vram_counts_for_the_split_heap() -> None:
    known = budgets(apu(vram=4 * GIB, visible=1 * GIB, gtt=29 * GIB))
    assert known.backends["vulkan"].bytes == 20 * GIB


@pytest.mark.parametrize(
    ("release", "vram", "gtt", "pool", "expected"),
    [
        ("6.9.9", 4, 60, None, 4),
        ("6.10.0", 4, 60, None, 60),
        ("6.12.48", 96, 15, None, 15),
        ("6.16.3", 96, 15, None, 96),
        ("6.16.3", 4, 60, None, 60),
        (None, 4, 60, None, 4),
        (None, 96, 15, None, 15),
        ("6.9.9", 4, 60, 60, 60),
        ("6.16.3", 96, 15, 15, 15),
        (None, 4, 60, 30, 30),
        (None, 4, 60, 500, 64),
    ],
)
def test_rocms_pool(
    release: str | None, vram: int, gtt: int, pool: int | None, expected: int
) -> None:
    facts = apu(
        release=release,
        vram=vram * GIB,
        gtt=gtt * GIB,
        kfd_pool=None if pool is None else pool * GIB,
    )
    assert budgets(facts).backends["rocm"].bytes == expected * GIB


@pytest.mark.parametrize("missing", ["vram", "gtt", "ram"])
def test_unknown_stays_unknown(missing: str) -> None:
    known = budgets(apu(**{missing: None}))  # type: ignore[arg-type]
    assert known.gpu_budget_bytes("vulkan") is None
    assert known.gpu_budget_bytes("rocm") is None
    assert (known.host_budget_bytes is None) == (missing == "ram")
    assert all(budget.steps for budget in known.backends.values())


def test_a_container_limit_caps_host_and_gpu() -> None:
    known = budgets(apu(cgroup=16 * GIB))
    ours = 16 * GIB - CONTAINER_RESERVE_BYTES
    assert known.host_budget_bytes == ours
    assert known.backends["vulkan_unified"].bytes == 512 * MIB + ours
    assert known.pool_bytes == 512 * MIB + ours
    assert "control group" in " ".join(known.explain("cpu"))
    tiny = budgets(apu(cgroup=100 * MIB))
    assert tiny.host_budget_bytes == 0


def test_a_limit_above_what_is_left_changes_nothing() -> None:
    assert budgets(apu(cgroup=124 * GIB)).host_budget_bytes == 117 * GIB


def test_ram_smaller_than_the_reserve() -> None:
    known = budgets(apu(ram=1 * GIB, gtt=1 * GIB))
    assert known.host_budget_bytes == GIB // 2
    assert known.backends["vulkan_unified"].bytes == GIB


def test_no_gpu_is_the_cpu_tier() -> None:
    facts = HardwareFacts(memory=apu().memory)
    known = budgets(facts)
    assert not known.uma
    assert known.pool_bytes is None
    assert amounts(known) == {
        "vulkan": None,
        "vulkan_unified": None,
        "rocm": None,
        "cpu": 117 * GIB,
    }


def test_a_discrete_card_has_its_own_memory() -> None:
    facts = replace(apu(others=(DISCRETE,)), gpu=DISCRETE)
    known = budgets(facts)
    assert not known.uma
    assert known.pool_bytes is None
    assert known.gpu_budget_bytes("vulkan") == 16 * GIB - 16 * GIB // 20
    assert known.host_budget_bytes == 117 * GIB
    unknown = budgets(replace(facts, gpu=replace(DISCRETE, vram_bytes=None)))
    assert unknown.gpu_budget_bytes("vulkan") is None


@pytest.mark.parametrize("driver", ["vfio-pci", "radeon"])
def test_a_gpu_that_amdgpu_does_not_hold_has_no_budget(driver: str) -> None:
    known = budgets(apu(driver=driver))
    assert known.gpu_budget_bytes("vulkan") is None
    assert driver in known.explain("vulkan")[-1]


def test_memory_in_use_is_told_apart() -> None:
    facts = apu()
    assert facts.gpu is not None
    busy = replace(facts.gpu, vram_used_bytes=256 * MIB, gtt_used_bytes=GIB)
    budget = budgets(replace(facts, gpu=busy)).backends["vulkan_unified"]
    assert budget.bytes is not None
    assert budget.free_bytes == budget.bytes - 256 * MIB - GIB
    assert budgets(facts).backends["vulkan_unified"].free_bytes == budget.bytes


def test_recommended_gtt() -> None:
    assert recommended_gtt_bytes(125 * GIB) == 125 * GIB * 85 // 100
    assert recommended_gtt_bytes(16 * GIB) == 10 * GIB
    assert recommended_gtt_bytes(4 * GIB) == 2 * GIB


def test_the_sum_is_shown() -> None:
    text = "\n".join(budgets(apu(gtt=104 * GIB)).explain("vulkan_unified"))
    for part in ("125.0 GiB", "8.0 GiB", "117.0 GiB", "104.0 GiB", "512 MiB", "104.5 GiB"):
        assert part in text
    assert budgets(apu()).explain("metal") == ()


def test_json_has_the_contracts_keys() -> None:
    document = budgets(apu()).to_json()
    assert {"vulkan", "vulkan_unified", "rocm", "cpu"} <= set(document)


def test_sizes_for_people() -> None:
    assert size(512 * MIB) == "512 MiB"
    assert size(104 * GIB + 512 * MIB) == "104.5 GiB"
