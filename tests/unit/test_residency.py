"""Experts on disk: when the solver takes this way, what memory it gives them, what it foretells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from solver import residency
from solver.memory import estimate
from solver.model import Model
from solver.smaller import next_smaller
from solver.solve import solve
from solver.speed import active_parameters
from solver.types import GIB, MIB, Disk, Infeasible, Intent, Layout, Machine, Plan, Rejected
from tests.support.recorded import model as recorded_model
from tests.support.solver_inputs import machine, model

NVME = Disk(sequential_bytes_s=3e9, slices_bytes_s=2e9, measured=True)
LARGE = model(layer_mib=64, expert_mib=900, kv_width=256)  # 2.5 GiB dense, 28 GiB of experts


def small_box(**changes: object) -> Machine:
    """14 GiB of 20 shared with a GPU, and an engine that can read experts from disk."""
    box = replace(machine(gpu_gib=8, ram_gib=20), no_residency=None, disk=NVME)
    return replace(box, **changes)  # type: ignore[arg-type]


def planned(box: Machine, intent: Intent | None = None, of: Model = LARGE) -> Plan:
    answer = solve(box, of, intent or Intent())
    assert isinstance(answer, Plan), answer
    return answer


def refused(box: Machine, intent: Intent | None = None, of: Model = LARGE) -> Infeasible:
    answer = solve(box, of, intent or Intent())
    assert isinstance(answer, Infeasible), answer
    return answer


def pool_of(plan: Plan) -> int:
    assert plan.layout.expert_budget_bytes is not None
    return plan.layout.expert_budget_bytes


def test_what_fits_in_no_other_way_is_read_from_disk() -> None:
    plan = planned(small_box())
    layout = plan.layout
    assert plan.strategy == "residency"
    assert (layout.gpu_layers, layout.n_cpu_moe) == (33, 32)
    # The dense part must not be a mapping: the kernel would drop it first.
    assert (layout.load_mode, layout.repack, layout.op_offload) == ("none", False, False)
    assert plan.memory.host.experts_bytes == pool_of(plan) > 0
    on_cpu = replace(small_box(), gpu_budget_bytes=None, pool_budget_bytes=None, backend="cpu")
    alone = planned(on_cpu).layout
    assert (alone.gpu_layers, alone.n_cpu_moe, alone.load_mode) == (0, 0, "none")


def test_what_fits_whole_is_never_read_from_disk() -> None:
    """Not even where a smaller ubatch than the tier's is needed for it: a fallback is one."""
    box = replace(machine(gpu_gib=None, ram_gib=24), no_residency=None, disk=NVME)
    fitting = model(expert_mib=256, kv_width=256)
    assert planned(box, of=fitting).strategy == "cpu"
    tight = replace(box, host_budget_bytes=estimate_of_the_net(fitting) + 300 * MIB)
    plan = planned(tight, of=fitting)
    assert (plan.strategy, plan.layout.ubatch) == ("cpu", 256)


def estimate_of_the_net(of: Model) -> int:
    """Host bytes of the last step before residency: 64 K, q4_0, ubatch 256, no device."""
    layout = Layout(
        ctx_size=65536, kv_type_k="q4_0", kv_type_v="q4_0", batch=1024, ubatch=256, load_mode="mmap"
    )
    return estimate(of, layout).host.total_bytes


@pytest.mark.parametrize(
    ("changes", "intent", "words"),
    [
        ({"on_ac": False}, Intent(), "not on battery"),
        ({"no_residency": "this engine cannot"}, Intent(), "this engine cannot"),
        ({"disk": replace(NVME, slices_bytes_s=2e7)}, Intent(), "too slow (20 MB/s)"),
        ({"ram_bytes": 8 * GIB}, Intent(), "more than 3.5 times the memory"),
        ({}, Intent(residency=False), "you switched it off"),
    ],
)
def test_it_is_left_alone_with_the_reason(
    changes: dict[str, object], intent: Intent, words: str
) -> None:
    answer = refused(small_box(**changes), intent)
    assert any(words in cure for cure in answer.cures)


@pytest.mark.parametrize(
    "changes",
    [{"on_ac": False}, {"disk": replace(NVME, slices_bytes_s=2e7)}, {"ram_bytes": 8 * GIB}],
)
def test_the_users_word_counts_more_than_those_rules(changes: dict[str, object]) -> None:
    plan = planned(small_box(**changes), Intent(moe_strategy="residency"))
    assert plan.strategy == "residency"


def test_but_an_engine_that_cannot_is_not_asked_to() -> None:
    box = small_box(no_residency="this engine cannot do it")
    answer = refused(box, Intent(moe_strategy="residency"))
    assert answer.message == "residency was asked for, but this engine cannot do it"
    assert "no experts" in refused(small_box(), Intent(moe_strategy="residency"), model()).message


def test_an_unknown_power_source_is_no_battery() -> None:
    assert planned(small_box(on_ac=None)).strategy == "residency"


def test_a_container_limits_how_large_a_model_may_be() -> None:
    """3.5 times what the container may use, not 3.5 times the RAM around it."""
    box = small_box(ram_bytes=64 * GIB, host_budget_bytes=2 * GIB)
    assert any("3.5 times" in cure for cure in refused(box).cures)


def test_the_dense_part_must_fit() -> None:
    """3 GiB of experts and 12 GiB of dense weights: reading experts from disk cannot help."""
    dense = model(layer_mib=384, expert_mib=96)
    answer = refused(small_box(), of=dense)
    assert answer.nearest is not None
    assert "residency" in answer.nearest.description


def test_experts_get_half_of_the_memory_before_the_context_gets_more() -> None:
    """128 K in f16 fit, but would leave them less than half: they are taken when asked for."""
    box = small_box(gpu_budget_bytes=40 * GIB)  # no rule for small devices
    plan = planned(box)
    assert (plan.layout.ctx_size, plan.layout.kv_type_k) == (131072, "q8_0")
    assert pool_of(plan) >= box.host_budget_bytes // 2
    asked = planned(box, Intent(ctx_size=131072, kv_type_k="f16", kv_type_v="f16"))
    assert pool_of(asked) < box.host_budget_bytes // 2


def test_what_was_asked_for_is_given() -> None:
    plan = planned(small_box(), Intent(expert_budget_mib=1000, ubatch=256, cache_ram_mib=0))
    assert pool_of(plan) == 1000 * MIB
    assert (plan.layout.ubatch, plan.cache_ram_mib) == (256, 0)
    reasons = {reason.setting: reason for reason in plan.reasons}
    assert reasons["expert_budget_mib"].why == "you asked for it"
    too_much = refused(small_box(), Intent(expert_budget_mib=20_000))
    assert too_much.nearest is not None


def test_a_budget_of_0_leaves_it_to_the_kernel() -> None:
    plan = planned(small_box(), Intent(moe_strategy="residency", expert_budget_mib=0))
    assert pool_of(plan) == plan.memory.host.experts_bytes == 0
    assert plan.speed.decode_tokens_s is None


def test_a_pool_is_never_larger_than_all_experts() -> None:
    few = model(layer_mib=64, expert_mib=64, kv_width=256)
    plan = planned(small_box(), Intent(moe_strategy="residency"), of=few)
    whole = residency.whole_pool_bytes(few, mtp=False)
    assert whole <= pool_of(plan) < whole + MIB


def test_the_ubatch_grows_where_it_costs_the_experts_little() -> None:
    """Each ubatch reads through the model once."""
    plan = planned(small_box())
    usual = planned(small_box(), Intent(ubatch=1024))
    assert plan.layout.ubatch == 2048
    assert pool_of(plan) * 100 >= pool_of(usual) * 90
    wide = replace(LARGE, n_embd=32768)  # 2048 would fit, and take 11 % of the experts' memory
    assert planned(small_box(), of=wide).layout.ubatch == 1024
    asked = planned(small_box(), Intent(ubatch=2048, batch=4096), wide)
    assert pool_of(asked) * 100 < pool_of(planned(small_box(), of=wide)) * 90


def test_the_experts_that_stay_on_disk_take_no_memory() -> None:
    """Host and device together need exactly the streamed bytes less than with all in memory."""
    for name in ("gpt-oss-20b", "Qwen3-Coder-30B"):  # the first has biases, which are loaded
        real = recorded_model("headers", name).model
        whole = Layout(ctx_size=4096, gpu_layers=999, n_cpu_moe=999, repack=False)
        from_disk = replace(whole, expert_budget_bytes=0)
        loaded, left = estimate(real, whole), estimate(real, from_disk)
        gone = loaded.host.weights_bytes - left.host.weights_bytes
        assert gone == residency.streamed_bytes(real, mtp=False)
        assert left.gpu.weights_bytes == loaded.gpu.weights_bytes


def test_what_the_engine_measured_as_too_much_comes_out_of_the_pool() -> None:
    first = planned(small_box())
    miss = Rejected(description="", score=0, where="host", over_by_bytes=100 * MIB + 1)
    second = solve(small_box(), LARGE, Intent(), refused={first.layout: miss})
    assert isinstance(second, Plan)
    assert second.layout.ctx_size == first.layout.ctx_size
    assert pool_of(second) == pool_of(first) - 101 * MIB


@pytest.mark.parametrize("ram_gib", [16, 24, 60])
def test_a_few_measurements_are_enough(ram_gib: int) -> None:
    """The engine needs 80 MiB more than we think, whatever the plan: two or three tries settle it,
    because the prompt cache does not take what the experts give up."""
    of = model(layer_mib=64, expert_mib=1900, kv_width=256)
    box = small_box(ram_bytes=ram_gib * GIB, host_budget_bytes=(ram_gib - 6) * GIB)
    box = replace(box, pool_budget_bytes=box.host_budget_bytes)
    wrong_by: dict[Layout, Rejected] = {}
    over = 1
    for _ in range(3):
        plan = solve(box, of, Intent(moe_strategy="residency"), refused=wrong_by)
        assert isinstance(plan, Plan)
        needed = plan.memory.gpu.total_bytes + plan.memory.host.total_bytes + 80 * MIB
        over = needed - box.host_budget_bytes
        if over <= 0:
            break
        wrong_by[plan.layout] = Rejected(description="", score=0, where="pool", over_by_bytes=over)
    assert over <= 0


def test_after_a_failure_the_experts_give_way_first_and_residency_comes_last() -> None:
    box, wishes = small_box(), Intent()
    plan, current = planned(box), wishes
    step = next_smaller(box, LARGE, wishes, current, plan)
    assert step is not None
    assert step.setting == "expert_budget_mib"
    assert pool_of(step.plan) == pool_of(plan) * 3 // 4 // MIB * MIB
    settings = []
    for _ in range(60):
        if step is None:
            break
        settings.append(step.setting)
        current, plan = step.intent, step.plan
        step = next_smaller(box, LARGE, wishes, current, plan)
    assert list(dict.fromkeys(settings)) == [
        "expert_budget_mib",
        "ubatch_size",
        "ctx_size",
        "kv_cache_type",
        "gpu_layers",
    ]
    token = residency.token_pool_bytes(LARGE, mtp=False)
    assert token <= pool_of(plan) < token + 2 * MIB
    fixed = Intent(expert_budget_mib=2000)
    other = next_smaller(box, LARGE, fixed, fixed, planned(box, fixed))
    assert other is not None
    assert other.setting == "ubatch_size"


def test_a_model_that_was_whole_may_end_on_disk() -> None:
    box = replace(machine(gpu_gib=None, ram_gib=64), no_residency=None, disk=NVME)
    moe = model(expert_mib=64)
    wishes = Intent(ubatch=64, batch=128, ctx_size=4096, kv_type_k="q4_0", kv_type_v="q4_0")
    plan = planned(box, wishes, moe)
    assert plan.strategy == "cpu"
    step = next_smaller(box, moe, wishes, wishes, plan)
    assert step is not None
    assert step.message == "moe_strategy cpu -> residency"
    assert next_smaller(replace(box, on_ac=False), moe, wishes, wishes, plan) is None


# -- the forecast --------------------------------------------------------------------------------


def test_the_forecast_is_what_is_missed_over_the_disks_rate() -> None:
    """Without a known memory bandwidth only the disk bounds it."""
    plan = planned(small_box())
    reads = plan.speed.experts
    assert reads is not None
    used = residency.streamed_bytes(LARGE, mtp=False) // 16  # 4 of 64 experts
    share = pool_of(plan) / residency.whole_pool_bytes(LARGE, mtp=False)
    assert reads.hit_ratio == pytest.approx(share**0.5)
    assert reads.read_bytes_per_token == pytest.approx(used * (1 - share**0.5))
    assert plan.speed.decode_tokens_s == pytest.approx(0.6 * 2e9 / reads.read_bytes_per_token)
    passed = residency.streamed_bytes(LARGE, mtp=False) - pool_of(plan)
    many = planned(replace(small_box(), cores_physical=1000))
    assert many.speed.prefill_tokens_s == pytest.approx(0.6 * many.layout.ubatch * 3e9 / passed)
    one_core = planned(replace(small_box(), cores_physical=1)).speed.prefill_tokens_s
    assert one_core == pytest.approx(50e9 / (2 * active_parameters(LARGE)))


def test_a_faster_disk_helps_until_memory_is_the_bound() -> None:
    box = small_box(bandwidth_bytes_s=50e9)
    slow, fast, instant = (
        planned(replace(box, disk=replace(NVME, slices_bytes_s=rate))).speed.decode_tokens_s
        for rate in (1e9, 4e9, 1e15)
    )
    assert slow is not None
    assert fast is not None
    assert slow * 3.9 < fast < 4.1 * slow
    whole = planned(replace(box, disk=replace(NVME, slices_bytes_s=1e16))).speed.decode_tokens_s
    assert instant == whole


def test_without_a_disk_nothing_is_foretold() -> None:
    speed = planned(small_box(disk=None)).speed
    assert (speed.decode_tokens_s, speed.prefill_tokens_s, speed.experts) == (None, None, None)


def test_statistics_replace_the_assumption() -> None:
    """Two experts of 64 take 90 % of the tokens: a small pool holds them all."""
    shares = (0.45, 0.45, *([0.1 / 62] * 62))
    counted = replace(LARGE, expert_use=(shares,) * 32)
    of_two = 2 * 32 * (900 * MIB // 64 + residency.UNIT_PADDING_BYTES)
    hits, learned = residency.hit_ratio(counted, of_two, mtp=False)
    assert (round(hits, 6), learned) == (0.9, True)
    assert residency.hit_ratio(LARGE, of_two, mtp=False)[1] is False
    other_model = replace(LARGE, expert_use=(shares,) * 31)
    assert residency.hit_ratio(other_model, of_two, mtp=False)[1] is False
    plan = planned(small_box(), of=counted)
    assert plan.speed.experts is not None
    assert plan.speed.experts.hit_ratio_learned


# -- against the engine --------------------------------------------------------------------------

# What memory_probe said of the published models' headers with all experts in system memory and
# --no-op-offload, on a Vulkan device (Mesa's software driver standing in for an APU): MiB of
# intermediate results on the device and on the host, 65536 tokens of q8_0.
MEASURED = {
    ("DeepSeek-Coder-V2-Lite", 512): (140, 72),
    ("DeepSeek-Coder-V2-Lite", 2048): (560, 288),
    ("GLM-4.5-Air", 512): (168, 158),
    ("GLM-4.5-Air", 2048): (672, 632),
    ("GLM-4.7-Flash", 512): (142, 72),
    ("GLM-4.7-Flash", 2048): (568, 288),
    ("LFM2-8B-A1B", 512): (114, 72),
    ("LFM2-8B-A1B", 2048): (456, 288),
    ("NVIDIA-Nemotron-3-Nano", 512): (138, 128),
    ("NVIDIA-Nemotron-3-Nano", 2048): (552, 512),
    ("Qwen3-Coder-30B", 512): (112, 100),
    ("Qwen3-Coder-30B", 2048): (448, 400),
    ("Qwen3.6-35B", 512): (122, 128),
    ("Qwen3.6-35B", 2048): (490, 514),
    ("gpt-oss-20b", 512): (106, 143),
    ("gpt-oss-20b", 2048): (432, 580),
}


@pytest.mark.parametrize(("name", "ubatch"), MEASURED)
def test_intermediate_results_without_op_offload(name: str, ubatch: int) -> None:
    """Never too little on either side; too much by at most the results of one layer's experts."""
    layout = Layout(
        ctx_size=65536,
        kv_type_k="q8_0",
        kv_type_v="q8_0",
        batch=2 * ubatch,
        ubatch=ubatch,
        gpu_layers=999,
        n_cpu_moe=999,
        repack=False,
        expert_budget_bytes=0,
    )
    memory = estimate(recorded_model("headers", name).model, layout)
    device, host = MEASURED[name, ubatch]
    spare = 0.5 * ubatch  # MiB: what experts of the widest of these models need, and a little
    assert device * MIB <= memory.gpu.compute_bytes <= (device + spare) * MIB
    assert host * MIB <= memory.host.compute_bytes + MIB <= (host + spare) * MIB
