"""The estimate of speed: bytes over bandwidth, and what is unknown stays unknown."""

from __future__ import annotations

from dataclasses import replace

from solver.solve import solve
from solver.speed import active_parameters, active_weight_bytes
from solver.types import MIB, Intent, Plan
from tests.support.solver_inputs import MOE_TENSORS, machine, model


def test_a_dense_model_reads_all_its_blocks_and_its_output() -> None:
    assert active_weight_bytes(model(n_layer=4, layer_mib=100)) == (4 * 100 + 256) * MIB


def test_of_the_experts_only_the_chosen_share_is_read() -> None:
    """64 experts, 4 used: a sixteenth."""
    moe = model(n_layer=2, layer_mib=10, expert_mib=160)
    assert active_weight_bytes(moe) == (2 * (10 + 10) + 256) * MIB
    experts = sum(64 * 4096 * 1024 for name, _, _ in MOE_TENSORS if "_exps" in name)
    dense = 4096 * (2 * 4096 + 2 * 1024 + 64 + 2)
    assert active_parameters(moe) == 2 * (dense + experts // 16)


def test_the_estimate_is_bytes_over_bandwidth() -> None:
    box = replace(machine(gpu_gib=104, ram_gib=125), bandwidth_bytes_s=100e9, prefill_flops=2e12)
    plan = solve(box, model(), Intent())
    assert isinstance(plan, Plan)
    weights = active_weight_bytes(model())
    assert plan.speed.decode_tokens_s == 100e9 / weights
    assert plan.speed.decode_full_tokens_s == 100e9 / (weights + plan.memory.gpu.kv_bytes)
    assert plan.speed.prefill_tokens_s == 1e12 / active_parameters(model())


def test_without_figures_nothing_is_estimated() -> None:
    plan = solve(machine(), model(), Intent())
    assert isinstance(plan, Plan)
    assert plan.speed.decode_tokens_s is plan.speed.prefill_tokens_s is None
