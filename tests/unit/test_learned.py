"""What is remembered after a failure, and the order in which settings are lowered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.supervisor import learned
from solver.smaller import next_smaller
from solver.solve import solve
from solver.types import Intent, Plan
from tests.support.solver_inputs import machine, model


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path / "state")
    return tmp_path / "state"


def test_a_lesson_survives_and_can_be_forgotten() -> None:
    learned.remember("a", "model on Vulkan0", {"ubatch_size": 256, "kv_cache_type": "q8_0"})
    learned.remember("b", "other", {"ctx_size": 4096})
    assert learned.recall("a") == {
        "label": "model on Vulkan0",
        "ubatch_size": 256,
        "kv_cache_type": "q8_0",
    }
    assert learned.forget("a")
    assert learned.recall("a") == {}
    assert learned.recall("b") != {}
    assert not learned.forget("a")
    assert learned.forget()
    assert learned.recall("b") == {}


def test_a_damaged_file_is_set_aside_and_not_fatal(state: Path) -> None:
    state.mkdir()
    learned.learned_path().write_text("ubatch = = 3")
    assert learned.recall("a") == {}
    assert learned.learned_path().with_suffix(".toml.damaged").exists()
    learned.remember("a", 'odd "name"\n', {"ubatch_size": 64})
    assert learned.recall("a")["label"] == 'odd "name"\n'


def test_the_file_is_private(state: Path) -> None:
    learned.remember("a", "x", {"ubatch_size": 64})
    assert learned.learned_path().stat().st_mode & 0o777 == 0o600


def test_settings_are_lowered_one_at_a_time_ubatch_context_kv_strategy() -> None:
    box, moe = machine(gpu_gib=104, ram_gib=125), model(expert_mib=64)
    wishes = current = Intent()
    plan = solve(box, moe, wishes)
    assert isinstance(plan, Plan)
    lowered: list[str] = []
    for _ in range(40):
        step = next_smaller(box, moe, wishes, current, plan)
        if step is None:
            break
        lowered.append(step.setting)
        assert step.plan.memory.gpu.total_bytes <= plan.memory.gpu.total_bytes
        current, plan = step.intent, step.plan
    order = list(dict.fromkeys(lowered))
    assert order == ["ubatch_size", "ctx_size", "kv_cache_type", "moe_strategy", "gpu_layers"]
    assert (plan.layout.ubatch, plan.layout.ctx_size, plan.layout.gpu_layers) == (64, 4096, 0)
    assert next_smaller(box, moe, wishes, current, plan) is None


def test_what_the_user_fixed_is_never_lowered() -> None:
    box, dense = machine(gpu_gib=104, ram_gib=125), model()
    wishes = Intent(
        ubatch=512, ctx_size=32768, kv_type_k="f16", kv_type_v="f16", gpu_layers=33, batch=512
    )
    plan = solve(box, dense, wishes)
    assert isinstance(plan, Plan)
    assert next_smaller(box, dense, wishes, wishes, plan) is None
    freed = replace(wishes, ctx_size=None)
    step = next_smaller(box, dense, freed, wishes, plan)
    assert step is not None
    assert step.message == "ctx_size 32768 -> 16384"
