"""Laws of the solver. Each test quotes the law that it checks."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from solver import residency
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
    moe_strategy=st.sampled_from([None, None, None, "residency"]),
    expert_budget_mib=st.one_of(st.none(), st.none(), st.integers(0, 32768)),
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
    if intent.moe_strategy == "residency" and intent.ubatch is None:
        # More memory may buy a larger ubatch, which is worth more to prompts than a KV type.
        intent = replace(intent, ubatch=512, batch=1024)
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
    if intent.moe_strategy is not None:
        assert plan.strategy == intent.moe_strategy
    if plan.strategy == "residency" and intent.expert_budget_mib is not None:
        assert layout.expert_budget_bytes == intent.expert_budget_mib * MIB


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


@given(machines, models, intents)
def test_residency_is_the_last_resort(machine: Machine, model: Model, intent: Intent) -> None:
    """Law: where a plan exists without residency, the plan with it allowed is the same."""
    intent = replace(intent, moe_strategy=None, expert_budget_mib=None)
    without = solve(replace(machine, no_residency="no"), model, intent)
    plan = solve(machine, model, intent)
    if isinstance(without, Plan):
        assert plan == without
    elif isinstance(plan, Plan):
        assert plan.strategy == "residency"


@given(machines, models, intents)
def test_the_pool_of_experts_is_worth_having(
    machine: Machine, model: Model, intent: Intent
) -> None:
    """Law: unless asked for another, a pool holds at least one token's experts and at most all of
    them, in whole MiB; and without residency there is none."""
    plan = solve(machine, model, replace(intent, expert_budget_mib=None))
    if isinstance(plan, Infeasible):
        return
    pool_bytes = plan.layout.expert_budget_bytes
    assert (pool_bytes is not None) == (plan.strategy == "residency")
    if pool_bytes is not None:
        mtp = plan.layout.mtp
        assert pool_bytes % MIB == 0
        assert pool_bytes >= residency.token_pool_bytes(model, mtp=mtp)
        assert pool_bytes < residency.whole_pool_bytes(model, mtp=mtp) + MIB


@given(
    models,
    st.lists(st.lists(st.floats(0, 1e6), min_size=64, max_size=64), max_size=40),
    st.integers(0, 1 << 37),
    st.integers(0, 1 << 36),
)
def test_a_larger_pool_never_hits_less(
    model: Model, counts: list[list[float]], pool_bytes: int, more_bytes: int
) -> None:
    """Law: 0 <= hits(pool) <= hits(pool + more) <= 1, with statistics and without."""
    counted = replace(model, expert_use=tuple(tuple(layer) for layer in counts))
    for one in (model, counted):
        less, _ = residency.hit_ratio(one, pool_bytes, mtp=False)
        more, _ = residency.hit_ratio(one, pool_bytes + more_bytes, mtp=False)
        assert 0 <= less <= more <= 1
    if model.is_moe:
        whole = residency.whole_pool_bytes(model, mtp=False)
        assert residency.hit_ratio(counted, whole, mtp=False)[0] > 0.999
