"""Laws of the solver. Each test quotes the law that it checks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from solver.memory import estimate
from solver.model import Model
from solver.solve import solve
from solver.types import GIB, KV_TYPES, MIB, Infeasible, Intent, Machine, Plan
from tests.support.solver_inputs import machines, models

intents = st.builds(
    Intent,
    ctx_size=st.one_of(st.none(), st.integers(256, 300_000)),
    kv_type_k=st.one_of(st.none(), st.sampled_from(KV_TYPES)),
    kv_type_v=st.one_of(st.none(), st.sampled_from(KV_TYPES)),
    gpu_layers=st.one_of(st.none(), st.integers(0, 99)),
    ubatch=st.one_of(st.none(), st.sampled_from([64, 512, 2048])),
    threads=st.one_of(st.none(), st.integers(1, 32)),
    n_parallel=st.one_of(st.none(), st.integers(1, 8)),
    cache_ram_mib=st.one_of(st.none(), st.integers(0, 8192)),
)


@given(machines, models, intents)
def test_a_plan_fits_its_budgets(machine: Machine, model: Model, intent: Intent) -> None:
    """Law: device, host and their sum stay within gpu, host and pool budget; the memory that is
    stated is what the model of the layout gives, plus the prompt cache."""
    plan = solve(machine, model, intent)
    if isinstance(plan, Infeasible):
        return
    memory = estimate(model, plan.layout)
    cache_bytes = plan.cache_ram_mib * MIB
    assert plan.memory.gpu == memory.gpu
    assert plan.memory.host.total_bytes == memory.host.total_bytes + cache_bytes
    assert memory.gpu.total_bytes <= (machine.gpu_budget_bytes or 0)
    assert plan.memory.host.total_bytes <= machine.host_budget_bytes
    if machine.pool_budget_bytes is not None:
        both = plan.memory.gpu.total_bytes + plan.memory.host.total_bytes
        assert both <= machine.pool_budget_bytes


@given(machines, models, intents, st.integers(1, 64))
def test_more_memory_never_lowers_the_score(
    machine: Machine, model: Model, intent: Intent, more_gib: int
) -> None:
    """Law: score(machine + memory) >= score(machine) where the strategy list is the same.

    Two rules of the seed depend on the size of the machine itself (experts on the CPU above 80 %
    of the device; 64 K for MoE below 32 GiB), so a MoE model is compared at a fixed strategy.
    """
    if model.is_moe and intent.moe_strategy is None:
        intent = replace(intent, moe_strategy="cpu")
    plan = solve(machine, model, intent)
    if isinstance(plan, Infeasible):
        return
    more_bytes = more_gib * GIB
    larger = replace(
        machine,
        gpu_budget_bytes=(
            None if machine.gpu_budget_bytes is None else machine.gpu_budget_bytes + more_bytes
        ),
        host_budget_bytes=machine.host_budget_bytes + more_bytes,
        pool_budget_bytes=(
            None
            if machine.pool_budget_bytes is None
            else machine.pool_budget_bytes + 2 * more_bytes
        ),
        ram_bytes=machine.ram_bytes + more_bytes,
    )
    better = solve(larger, model, intent)
    assert isinstance(better, Plan)
    assert better.score >= plan.score


@given(machines, models, intents)
def test_the_same_question_has_the_same_answer(
    machine: Machine, model: Model, intent: Intent
) -> None:
    """Law: solve is a function."""
    assert solve(machine, model, intent) == solve(machine, model, intent)


@given(machines, models, intents)
def test_a_wish_is_honoured_or_refused(machine: Machine, model: Model, intent: Intent) -> None:
    """Law: in a plan every constraint that the user gave holds to the letter."""
    plan = solve(machine, model, intent)
    if isinstance(plan, Infeasible):
        assert plan.message
        return
    layout = plan.layout
    if intent.ctx_size is not None:
        assert layout.ctx_size == intent.ctx_size
    if intent.kv_type_k is not None:
        assert layout.kv_type_k == intent.kv_type_k
    if intent.kv_type_v is not None:
        assert layout.kv_type_v == intent.kv_type_v
    if intent.gpu_layers is not None:
        assert layout.gpu_layers == min(intent.gpu_layers, model.n_layer + 1)
    if intent.ubatch is not None:
        assert layout.ubatch == intent.ubatch
    if intent.threads is not None:
        assert plan.threads == plan.threads_batch == intent.threads
    if intent.n_parallel is not None:
        assert layout.n_parallel == intent.n_parallel
    if intent.cache_ram_mib is not None:
        assert plan.cache_ram_mib == intent.cache_ram_mib


@given(machines, models)
def test_an_unasked_context_is_never_above_what_the_model_knows(
    machine: Machine, model: Model
) -> None:
    """Law: ctx_size <= n_ctx_train unless asked."""
    plan = solve(machine, model, Intent())
    if isinstance(plan, Plan):
        assert plan.layout.ctx_size <= model.n_ctx_train


@given(machines, models)
@settings(max_examples=50)
def test_whatever_was_rejected_did_not_fit(machine: Machine, model: Model) -> None:
    """Law: each rejected candidate misses by a positive number of bytes, and none of those that
    scored higher than the plan is left unexplained."""
    plan = solve(machine, model, Intent())
    if isinstance(plan, Plan):
        assert all(miss.over_by_bytes > 0 for miss in plan.rejected)
    else:
        assert plan.nearest is None or plan.nearest.over_by_bytes > 0
