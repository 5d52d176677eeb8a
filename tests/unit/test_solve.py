"""The solver's rules, one table row or one sentence each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver.candidates import candidates, contexts, prefers_cpu
from solver.memory import estimate
from solver.score import context_points, score
from solver.solve import solve
from solver.types import GIB, Infeasible, Intent, Plan, Strategy
from tests.support.solver_inputs import machine, model


def plan(answer: Plan | Infeasible) -> Plan:
    assert isinstance(answer, Plan), answer
    return answer


@pytest.mark.parametrize(
    ("strategy", "ctx_size", "kv_type", "expected"),
    [
        ("gpu", 131072, "f16", 301_030),
        ("gpu", 65536, "q4_0", 300_810),
        ("cpu", 98304, "q8_0", 250_970),
        ("residency", 262144, "f16", 200_880),
    ],
)
def test_the_seeds_score(strategy: Strategy, ctx_size: int, kv_type: str, expected: int) -> None:
    assert score(strategy, ctx_size, kv_type, kv_type) == expected


def test_contexts_outside_the_table_count_by_size() -> None:
    assert context_points(8192) == 10
    assert context_points(32768) == 40
    assert context_points(70_000) == 80


def test_a_model_that_fits_gets_128k_and_f16_on_the_gpu() -> None:
    answer = plan(solve(machine(gpu_gib=104, ram_gib=125), model(), Intent()))
    assert (answer.strategy, answer.layout.ctx_size, answer.layout.kv_type_k) == (
        "gpu",
        131072,
        "f16",
    )
    assert answer.layout.gpu_layers == 33


def test_less_memory_costs_the_kv_type_before_the_context() -> None:
    """128 K in q8_0 scores above 96 K in f16: 10 x 5 context points against 10 KV points."""
    answer = plan(solve(machine(gpu_gib=16, ram_gib=32), model(), Intent()))
    assert (answer.layout.ctx_size, answer.layout.kv_type_k) == (131072, "q8_0")


def test_a_moe_above_80_percent_of_the_device_keeps_its_experts_in_system_memory() -> None:
    large = model(expert_mib=600)  # about 23 GiB
    box = machine(gpu_gib=26, ram_gib=64, shared=False)
    assert prefers_cpu(box, large)
    answer = plan(solve(box, large, Intent()))
    assert answer.strategy == "cpu"
    assert answer.layout.n_cpu_moe == 32
    assert answer.layout.gpu_layers == 33


def test_a_moe_on_a_small_device_is_capped_at_64k_without_f16() -> None:
    box = machine(gpu_gib=31, ram_gib=64)
    for candidate in candidates(box, model(expert_mib=256), Intent()):
        assert candidate.layout.ctx_size <= 65536
        assert candidate.layout.kv_type_k in {"q8_0", "q4_0"}
    assert any(
        candidate.layout.kv_type_k == "f16" for candidate in candidates(box, model(), Intent())
    )


def test_a_short_trained_model_is_offered_its_own_context() -> None:
    assert contexts(machine(), model(n_ctx_train=8192), Intent()) == (8192,)
    assert contexts(machine(), model(n_ctx_train=128_000), Intent()) == (128_000, 98304, 65536)
    assert 1_048_576 not in contexts(machine(), model(n_ctx_train=1_048_576), Intent())
    assert contexts(machine(), model(n_ctx_train=8192), Intent(ctx_size=16384)) == (16384,)


def test_without_a_gpu_everything_stays_on_the_cpu_and_all_cores_work() -> None:
    answer = plan(solve(machine(gpu_gib=None), model(), Intent()))
    assert (answer.strategy, answer.layout.gpu_layers) == ("cpu", 0)
    assert answer.threads == answer.threads_batch == 8


def test_with_a_gpu_half_the_cores_generate() -> None:
    answer = plan(solve(machine(gpu_gib=104, ram_gib=125), model(), Intent()))
    assert (answer.threads, answer.threads_batch) == (4, 8)


def test_a_dense_model_larger_than_the_device_gets_as_many_layers_as_fit() -> None:
    box = machine(gpu_gib=8, ram_gib=64, shared=False)
    answer = plan(solve(box, model(layer_mib=400), Intent()))
    assert 0 < answer.layout.gpu_layers < 33
    one_more = solve(
        box,
        model(layer_mib=400),
        Intent(
            gpu_layers=answer.layout.gpu_layers + 1,
            ubatch=answer.layout.ubatch,
            ctx_size=answer.layout.ctx_size,
            kv_type_k="q4_0",
            kv_type_v="q4_0",
        ),
    )
    assert isinstance(one_more, Infeasible)


def test_the_cache_takes_at_most_a_quarter_of_ram_and_2_gib_on_a_small_machine() -> None:
    large = plan(solve(machine(gpu_gib=104, ram_gib=125, shared=False), model(), Intent()))
    assert large.cache_ram_mib == 125 * 1024 // 4
    small = plan(solve(machine(gpu_gib=20, ram_gib=31, shared=False), model(), Intent()))
    assert small.cache_ram_mib == 2048


def test_nothing_fits_names_the_nearest_miss_and_cures() -> None:
    answer = solve(machine(gpu_gib=4, ram_gib=10), model(layer_mib=512), Intent(ctx_size=131072))
    assert isinstance(answer, Infeasible)
    assert answer.nearest is not None
    assert "GiB over" in answer.message
    assert answer.cures == ("a smaller quantisation of this model",)


def test_a_context_that_would_fit_is_named() -> None:
    box = machine(gpu_gib=8, ram_gib=16)
    answer = solve(box, model(), Intent(ctx_size=131072, kv_type_k="f16", kv_type_v="f16"))
    assert isinstance(answer, Infeasible)
    words = answer.cures[0].split()
    assert words[0] == "--ctx-size"
    cured = solve(box, model(), Intent(ctx_size=int(words[1]), kv_type_k="f16", kv_type_v="f16"))
    assert isinstance(cured, Plan)


def test_experts_are_split_where_not_all_fit_the_device() -> None:
    """Room for the dense part and some experts: the fewest layers' experts go to the host."""
    box, large = machine(gpu_gib=40, ram_gib=36, shared=False), model(expert_mib=1400)
    answer = plan(solve(box, large, Intent()))
    assert answer.strategy == "partial"
    assert 0 < answer.layout.n_cpu_moe < 32
    fewer = replace(answer.layout, n_cpu_moe=answer.layout.n_cpu_moe - 1)
    assert estimate(large, fewer).gpu.total_bytes > 40 * GIB


def test_different_types_for_keys_and_values_when_that_buys_the_context() -> None:
    box = machine(gpu_gib=12.4, ram_gib=64, shared=False)
    answer = plan(solve(box, model(), Intent()))
    assert (answer.layout.kv_type_k, answer.layout.kv_type_v) == ("q8_0", "q4_0")
    assert answer.layout.ctx_size == 131072
    finer = solve(box, model(), Intent(kv_type_k="q8_0", kv_type_v="q8_0"))
    assert plan(finer).layout.ctx_size < 131072


@pytest.mark.parametrize(
    ("intent", "words"),
    [
        (Intent(gpu_layers=10), "no GPU"),
        (Intent(moe_strategy="gpu"), "no GPU"),
        (Intent(moe_strategy="residency"), "no experts"),
        (Intent(ubatch=1024, batch=512), "does not go into"),
    ],
)
def test_wishes_that_contradict_the_machine_are_refused_with_the_reason(
    intent: Intent, words: str
) -> None:
    answer = solve(machine(gpu_gib=None), model(), intent)
    assert isinstance(answer, Infeasible)
    assert words in answer.message


def test_every_setting_of_a_plan_has_a_reason() -> None:
    answer = plan(solve(machine(), model(expert_mib=64), Intent(ctx_size=32768)))
    reasons = {reason.setting: reason.why for reason in answer.reasons}
    assert reasons["ctx_size"] == "you asked for it"
    assert set(reasons) == {
        "moe_strategy",
        "gpu_layers",
        "ctx_size",
        "kv_cache_type",
        "ubatch_size",
        "batch_size",
        "threads",
        "threads_batch",
        "parallel",
        "cache_ram",
    }
