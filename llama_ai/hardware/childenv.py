"""The environment of the engine's process: what we add to the user's, and why (pure).

Mesa lets an environment variable with an option's name override drirc for one process, so nothing
is written to ``~/.drirc``, and no game sees the option. What the user has set himself stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.hardware.facts import GpuFacts, HardwareFacts

UNIFIED_HEAP = "radv_enable_unified_heap_on_apu"
NODES_PER_SUBMIT = "GGML_VK_MAX_NODES_PER_SUBMIT"
MESA_DEVICE = "MESA_VK_DEVICE_SELECT"
VULKAN_DEVICES = "GGML_VK_VISIBLE_DEVICES"
HIP_DEVICES = "HIP_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class KeptVariable:
    """A variable that the user has set and that we would have set otherwise."""

    name: str
    value: str
    ours: str
    note: str


@dataclass(frozen=True, kw_only=True)
class ChildEnv:
    """What to add to the child's environment."""

    set: Mapping[str, str] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why, by variable."""
    kept: tuple[KeptVariable, ...] = ()
    unified_heap: bool = False
    """Whether RADV will show one heap, with the user's own setting counted in."""


def child_env(
    facts: HardwareFacts,
    *,
    backend: str,
    user_env: Mapping[str, str],
    unified_heap: bool = True,
) -> ChildEnv:
    """Variables for a child that uses ``backend`` (``vulkan``, ``rocm``, ``cpu``) on ``facts.gpu``.

    RADV's options are for an AMD integrated GPU only; ``unified_heap=False`` leaves the heaps
    alone. Where there are several GPUs, the one that is used is named. HSA overrides are never
    set: on gfx1103 the kernels of gfx1100 may need more registers than there are.
    """
    gpu = facts.gpu
    wanted: dict[str, tuple[str, str]] = {}
    if gpu is not None and gpu.kind == "integrated" and backend == "vulkan":
        if unified_heap:
            wanted[UNIFIED_HEAP] = (
                "true",
                "RADV otherwise shows 2/3 of the memory as the device's",
            )
        if gpu.vk_nodes_per_submit is not None:
            wanted[NODES_PER_SUBMIT] = (
                str(gpu.vk_nodes_per_submit),
                f"graph nodes a submission on {gpu.gfx}, to stay under amdgpu's lockup timeout",
            )
    if gpu is not None:
        wanted.update(_device_choice(facts, gpu, backend, user_env))
    ours = {name: value for name, (value, _) in wanted.items() if name not in user_env}
    kept = tuple(
        KeptVariable(name=name, value=user_env[name], ours=value, note=_kept_note(name, user_env))
        for name, (value, _) in wanted.items()
        if name in user_env and user_env[name] != value
    )
    return ChildEnv(
        set=ours,
        reasons={name: reason for name, (_, reason) in wanted.items() if name in ours},
        kept=kept,
        unified_heap=(
            backend == "vulkan"
            and gpu is not None
            and gpu.kind == "integrated"
            and {**user_env, **ours}.get(UNIFIED_HEAP) == "true"
        ),
    )


def _device_choice(
    facts: HardwareFacts, gpu: GpuFacts, backend: str, user_env: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Make the engine see our GPU where there are several.

    Vulkan's own order cannot be known from here, so Mesa's device-selection layer picks by PCI id
    (``!`` hides the others); the engine would prefer a discrete card and drop the integrated one.
    """
    if len(facts.gpus) < 2 or gpu.vendor is None or gpu.device is None:
        return {}
    if backend == "vulkan" and VULKAN_DEVICES not in user_env:
        return {MESA_DEVICE: (f"{gpu.vendor}:{gpu.device}!", f"use {gpu.label}, not another GPU")}
    if backend == "rocm" and gpu.kfd_index is not None:
        return {HIP_DEVICES: (str(gpu.kfd_index), f"use {gpu.label}, not another GPU")}
    return {}


def _kept_note(name: str, user_env: Mapping[str, str]) -> str:
    value = user_env[name]
    if name == UNIFIED_HEAP and value not in ("true", "false"):
        return f"{name}={value} is yours and stays, but Mesa understands only true and false"
    return f"{name}={value} is yours and stays"
