"""All checks of the machine, in the order in which ``doctor`` shows them (pure)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.hardware.checks import gpu, kernel, memory, system
from llama_ai.hardware.trouble import known_trouble

if TYPE_CHECKING:
    from llama_ai.hardware.access import RenderAccess
    from llama_ai.hardware.budgets import Budgets
    from llama_ai.hardware.checks import Check
    from llama_ai.hardware.childenv import ChildEnv
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.hardware.software import SoftwareFacts


def machine_checks(
    facts: HardwareFacts,
    *,
    budgets: Budgets,
    env: ChildEnv,
    software: SoftwareFacts,
    access: RenderAccess | None,
    live: bool,
) -> list[Check]:
    """Run every check; those that do not apply to this machine are left out.

    ``env`` is what the engine would get for Vulkan; ``access`` is ``None`` on a recording and
    where the GPU has no render node. ``live`` says that this is no recording, so that what is
    missing is missing and not merely unrecorded.
    """
    answers = [
        gpu.gpu_found(facts),
        gpu.second_gpu(facts),
        gpu.driver(facts),
        gpu.targets_agree(facts),
        gpu.render_node(facts, access),
        gpu.vulkan_driver(facts, software, live=live),
        gpu.mesa(facts, software, live=live),
        gpu.unified_heap(facts, env),
        memory.ram(facts, budgets),
        memory.gpu_budget(facts, budgets),
        memory.carveout(facts),
        memory.gtt_size(facts),
        memory.gtt_bound(facts),
        memory.container(facts),
        kernel.kernel_parameters(facts),
        gpu.rocm_kernel(facts),
        *gpu.known_trouble(facts, software, known_trouble()),
        system.cpu(facts),
        system.power(facts),
    ]
    return [check for check in answers if check is not None]
