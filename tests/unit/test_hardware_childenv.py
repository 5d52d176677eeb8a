"""The child's environment: what is added, what stays the user's."""

from __future__ import annotations

from dataclasses import replace

from llama_ai.hardware.childenv import child_env
from llama_ai.hardware.facts import GpuFacts, HardwareFacts
from tests.support.hardware_trees import DISCRETE, apu

HEAP = "radv_enable_unified_heap_on_apu"
NODES = "GGML_VK_MAX_NODES_PER_SUBMIT"


def test_vulkan_on_an_apu() -> None:
    env = child_env(apu(), backend="vulkan", user_env={"PATH": "/bin"})
    assert env.set == {HEAP: "true", NODES: "100"}
    assert env.unified_heap
    assert env.kept == ()
    assert set(env.reasons) == set(env.set)


def test_the_generation_decides_the_nodes() -> None:
    assert child_env(apu(nodes=8), backend="vulkan", user_env={}).set[NODES] == "8"
    assert NODES not in child_env(apu(nodes=None), backend="vulkan", user_env={}).set


def test_what_the_user_set_wins_and_is_said() -> None:
    env = child_env(apu(), backend="vulkan", user_env={HEAP: "false", NODES: "1"})
    assert env.set == {}
    assert not env.unified_heap
    assert {(kept.name, kept.value, kept.ours) for kept in env.kept} == {
        (HEAP, "false", "true"),
        (NODES, "1", "100"),
    }
    assert all(kept.name in kept.note for kept in env.kept)


def test_the_same_value_is_nothing_to_say() -> None:
    env = child_env(apu(), backend="vulkan", user_env={HEAP: "true", NODES: "100"})
    assert env.set == {}
    assert env.kept == ()
    assert env.unified_heap


def test_a_word_that_mesa_does_not_understand_is_said() -> None:
    env = child_env(apu(), backend="vulkan", user_env={HEAP: "1"})
    assert not env.unified_heap
    assert "only true and false" in env.kept[0].note


def test_no_unified_heap_on_request() -> None:
    env = child_env(apu(), backend="vulkan", user_env={}, unified_heap=False)
    assert HEAP not in env.set
    assert not env.unified_heap


def test_nothing_is_set_without_an_apu() -> None:
    for facts in (HardwareFacts(), replace(apu(), gpu=DISCRETE)):
        for backend in ("vulkan", "rocm", "cpu"):
            env = child_env(facts, backend=backend, user_env={})
            assert env.set == {}
            assert not env.unified_heap


def test_other_backends() -> None:
    assert child_env(apu(), backend="rocm", user_env={}).set == {}
    assert child_env(apu(), backend="cpu", user_env={}).set == {}


def test_the_integrated_gpu_is_chosen_beside_others() -> None:
    facts = apu(others=(DISCRETE, GpuFacts(card="card2", vendor="10de", device="2507")))
    vulkan = child_env(facts, backend="vulkan", user_env={})
    assert vulkan.set["MESA_VK_DEVICE_SELECT"] == "1002:1586!"
    assert child_env(facts, backend="rocm", user_env={}).set == {"HIP_VISIBLE_DEVICES": "0"}


def test_a_discrete_card_that_the_user_chose_is_named() -> None:
    facts = replace(apu(others=(DISCRETE,)), gpu=DISCRETE)
    env = child_env(facts, backend="vulkan", user_env={})
    assert env.set == {"MESA_VK_DEVICE_SELECT": "1002:744c!"}


def test_a_device_that_the_user_chose_stays() -> None:
    facts = apu(others=(DISCRETE,))
    env = child_env(facts, backend="vulkan", user_env={"GGML_VK_VISIBLE_DEVICES": "1"})
    assert "MESA_VK_DEVICE_SELECT" not in env.set
    kept = child_env(facts, backend="vulkan", user_env={"MESA_VK_DEVICE_SELECT": "10de:2507"}).kept
    assert [variable.name for variable in kept] == ["MESA_VK_DEVICE_SELECT"]


def test_no_hsa_override_ever() -> None:
    facts = apu(gfx="gfx1103", others=(DISCRETE,))
    for backend in ("vulkan", "rocm", "cpu"):
        assert not any("HSA" in name for name in child_env(facts, backend=backend, user_env={}).set)
