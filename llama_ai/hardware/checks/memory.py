"""Checks of memory: budgets, GTT, carve-out, containers, what others use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.hardware.budgets import GIB, recommended_gtt_bytes, size
from llama_ai.hardware.checks import Check
from llama_ai.hardware.checks.gpu import integrated

if TYPE_CHECKING:
    from llama_ai.hardware.budgets import Budgets
    from llama_ai.hardware.facts import HardwareFacts

WORTH_RAISING_BYTES = GIB
WORTH_RAISING_SHARE = 10
"""A gain below 1 GiB, or below a tenth of the whole, is not worth a reboot."""

OLD_FIXED_GTT_BYTES = 3 * GIB
"""What kernels up to 5.11 gave, whatever the RAM."""

LARGE_CARVEOUT_SHARE = 4
"""A carve-out of more than a quarter of all memory is large."""


def ram(facts: HardwareFacts, budgets: Budgets) -> Check:
    """How much memory there is and how much of it a plan may use."""
    expected = "enough RAM for the system and a model"
    total, host = facts.memory.ram_bytes, budgets.host_budget_bytes
    if total is None or host is None:
        return Check(id="ram", status="UNKNOWN", expected=expected, observed="RAM is not known")
    available = facts.memory.ram_available_bytes
    observed = f"{size(total)} RAM, of which a plan may use {size(host)}"
    if available is None:
        return Check(id="ram", status="PASS", expected=expected, observed=observed)
    observed += f"; {size(available)} available now"
    if available < host // 2:
        return Check(
            id="ram",
            status="WARN",
            expected=expected,
            observed=observed,
            hint="other programs hold much of the memory: close them before serving a large model",
        )
    return Check(id="ram", status="PASS", expected=expected, observed=observed)


def gpu_budget(facts: HardwareFacts, budgets: Budgets) -> Check | None:
    """The budget of each backend, where there is a GPU."""
    if facts.gpu is None:
        return None
    expected = "the memory that the GPU may use is known"
    known = [
        f"{name} {size(budget.bytes)}"
        for name, budget in budgets.backends.items()
        if name != "cpu" and budget.bytes is not None
    ]
    if not known:
        return Check(
            id="gpu-budget",
            status="UNKNOWN",
            expected=expected,
            observed=budgets.backends["vulkan_unified"].steps[-1],
            hint="without it models are planned for the CPU",
        )
    return Check(id="gpu-budget", status="PASS", expected=expected, observed=", ".join(known))


def gtt_size(facts: HardwareFacts) -> Check | None:
    """GTT against what RAM allows."""
    gpu, total = integrated(facts), facts.memory.ram_bytes
    if gpu is None:
        return None
    if gpu.gtt_bytes is None or total is None:
        missing = "GTT limit" if gpu.gtt_bytes is None else "amount of RAM"
        return Check(
            id="gtt-size",
            status="UNKNOWN",
            expected="GTT near what RAM allows",
            observed=f"the {missing} is not known",
        )
    ceiling = recommended_gtt_bytes(total)
    limits = [gpu.gtt_bytes, *([facts.ttm.limit_bytes] if facts.ttm.limit_bytes else [])]
    now = min(limits)
    expected = f"GTT up to {size(ceiling)} of {size(total)} RAM"
    if max(limits) > total:
        observed = f"a limit of {size(max(limits))}, more than all of RAM"
    elif now > ceiling:
        observed = f"{size(now)}: leaves the system {size(total - now)}"
    elif _is_large(gpu.vram_bytes, total):
        observed = f"{size(now)} beside the large carve-out"
        return Check(id="gtt-size", status="PASS", expected=expected, observed=observed)
    elif ceiling - now >= max(WORTH_RAISING_BYTES, ceiling // WORTH_RAISING_SHARE):
        old = " (fixed by an old kernel)" if now == OLD_FIXED_GTT_BYTES else ""
        return Check(
            id="gtt-size",
            status="WARN",
            expected=expected,
            observed=f"{size(now)}{old}",
            hint=f"raise it with `llama-ai kernel-params apply --gib {ceiling // GIB}` "
            "(takes a reboot)",
        )
    else:
        return Check(id="gtt-size", status="PASS", expected=expected, observed=size(now))
    return Check(
        id="gtt-size",
        status="WARN",
        expected=expected,
        observed=observed,
        hint=f"plans stay below it, other programs may not: set it to {ceiling // GIB} GiB with "
        "`llama-ai kernel-params apply`",
    )


def gtt_bound(facts: HardwareFacts) -> Check | None:
    """The GTT that the driver states can really be filled."""
    gpu = integrated(facts)
    if gpu is None or gpu.gtt_bytes is None:
        return None
    ttm = facts.ttm
    expected = "GTT as stated by the driver is within TTM's page limit"
    if ttm.limit_bytes is None:
        # Many kernels show the parameter as 0 until it is set, or hide the module.
        observed = "TTM's page limit is not shown"
        return Check(id="gtt-bound", status="UNKNOWN", expected=expected, observed=observed)
    observed = f"GTT {size(gpu.gtt_bytes)}, {ttm.module} allows {size(ttm.limit_bytes)}"
    if gpu.gtt_bytes > ttm.limit_bytes + (1 << 20):
        return Check(
            id="gtt-bound",
            status="WARN",
            expected=expected,
            observed=observed,
            hint=f"only {size(ttm.limit_bytes)} can be filled: drop amdgpu.gttsize and set "
            f"{ttm.module}.pages_limit (`llama-ai kernel-params`)",
        )
    return Check(id="gtt-bound", status="PASS", expected=expected, observed=observed)


def carveout(facts: HardwareFacts) -> Check | None:
    """The firmware's carve-out is small: what it takes is lost to the system."""
    gpu = integrated(facts)
    if gpu is None:
        return None
    expected = "a small carve-out (512 MiB); GTT gives the GPU the rest"
    if gpu.vram_bytes is None:
        return Check(id="carve-out", status="UNKNOWN", expected=expected, observed="not known")
    observed = size(gpu.vram_bytes)
    if gpu.carveout is not None and gpu.carveout.options:
        observed += f" (the kernel offers: {', '.join(gpu.carveout.options)})"
    left = facts.memory.ram_bytes
    if left is not None and _is_large(gpu.vram_bytes, left):
        return Check(
            id="carve-out",
            status="WARN",
            expected=expected,
            observed=f"{observed} of {size(gpu.vram_bytes + left)}: the system keeps {size(left)}",
            hint="set it to the smallest value in the firmware's settings, then raise GTT; "
            "the memory then serves whoever needs it",
        )
    return Check(id="carve-out", status="PASS", expected=expected, observed=observed)


def container(facts: HardwareFacts) -> Check:
    """A control group's memory limit."""
    limit, total = facts.memory.cgroup_limit_bytes, facts.memory.ram_bytes
    expected = "no memory limit from a container or a service manager"
    if limit is None and not facts.memory.cgroup_known:
        return Check(id="container", status="UNKNOWN", expected=expected, observed="not stated")
    if limit is None or (total is not None and limit >= total):
        return Check(id="container", status="PASS", expected=expected, observed="no limit")
    return Check(
        id="container",
        status="WARN",
        expected=expected,
        observed=f"at most {size(limit)}" + (f" of {size(total)} RAM" if total else ""),
        hint="budgets are capped by it; raise the container's memory limit for larger models",
    )


def _is_large(carveout_bytes: int | None, ram_bytes: int) -> bool:
    if carveout_bytes is None:
        return False
    return carveout_bytes * LARGE_CARVEOUT_SHARE > carveout_bytes + ram_bytes
