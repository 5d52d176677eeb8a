"""How much memory a plan may use: a budget per backend, each with the sum that made it.

An APU has one pool. The GPU reaches the carve-out (VRAM) and, through GTT, a part of system
memory; what it takes there is gone for the host. So next to each device budget stands the pool:
device and host together must stay under it.

Sources: RADV's heaps on an APU, Mesa ``radv_physical_device.c``; ROCm's pool on an APU, kernel
``amdgpu_amdkfd`` and the reports recorded in ``tests/machines``; the bound on GTT, ROCm issue
5595 (a stated limit of 120 GiB of which 62 GiB could be used).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.hardware.facts import GpuFacts, HardwareFacts

GIB = 1 << 30
MIB = 1 << 20

BACKENDS = ("vulkan", "vulkan_unified", "rocm", "cpu")

RESERVE_SMALL_BYTES = 6 * GIB
RESERVE_LARGE_BYTES = 8 * GIB

CONTAINER_RESERVE_BYTES = 512 * MIB
"""Of a control group's limit: for the supervisor and the engine's own code and stacks."""

DISCRETE_RESERVE_SHARE = 20
"""A twentieth of a discrete card's memory is left to the display and the driver."""

GTT_CEILING_PERCENT = 85

_PAGE = 4096
_SAME_POOL_BYTES = 64 * MIB
"""KFD's pool is VRAM or GTT to the byte, less what firmware keeps; this tells them apart."""

_KFD_USES_GTT = (6, 10, 0)
_KFD_PREFERS_LARGER = (6, 16, 0)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What one backend may use on the device (``cpu``: on the host)."""

    name: str
    bytes: int | None
    """``None``: not known, or no such device."""
    steps: tuple[str, ...]
    """The sum, a line a step; the last line gives the result or says what is missing."""
    in_use_bytes: int | None = None
    """Device memory that others used at detection. It is not taken off ``bytes``."""

    @property
    def free_bytes(self) -> int | None:
        """``bytes`` less what others use now; ``bytes`` itself where use is not known."""
        if self.bytes is None:
            return None
        return max(0, self.bytes - (self.in_use_bytes or 0))


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """All budgets of a machine, for the GPU that ``facts.gpu`` names."""

    backends: Mapping[str, Budget]
    """One for each of :data:`BACKENDS`."""
    os_reserve_bytes: int | None
    host_budget_bytes: int | None
    """What host memory may take when the GPU takes none of it."""
    pool_bytes: int | None
    """APU: device + host together stay under this. ``None``: two separate pools, or unknown."""
    uma: bool
    """Whether device and host share one pool."""

    def gpu_budget_bytes(self, backend: str, unified_heap: bool = True) -> int | None:
        """The device budget for ``vulkan`` or ``rocm``; ``None`` for ``cpu`` and where unknown.

        ``unified_heap`` says whether RADV runs with ``radv_enable_unified_heap_on_apu``.
        """
        if backend not in ("vulkan", "rocm"):
            return None
        name = "vulkan_unified" if backend == "vulkan" and unified_heap else backend
        return self.backends[name].bytes

    def explain(self, name: str) -> tuple[str, ...]:
        """The sum behind the budget ``name`` (one of :data:`BACKENDS`); empty for others."""
        budget = self.backends.get(name)
        return budget.steps if budget is not None else ()

    def to_json(self) -> dict[str, object]:
        """``doctor --json``'s ``budgets``: bytes by backend, and how they came about."""
        return {
            **{name: budget.bytes for name, budget in self.backends.items()},
            "host_bytes": self.host_budget_bytes,
            "pool_bytes": self.pool_bytes,
            "os_reserve_bytes": self.os_reserve_bytes,
            "steps": {name: list(budget.steps) for name, budget in self.backends.items()},
        }


def os_reserve_bytes(ram_bytes: int) -> int:
    """What is left to the system: 8 GiB from 32 GiB of RAM up, 6 GiB below, never above half.

    The steps are joined by slopes of at most one, so that more memory never means less for us.
    """
    return min(ram_bytes // 2, max(RESERVE_SMALL_BYTES, min(RESERVE_LARGE_BYTES, ram_bytes // 4)))


def recommended_gtt_bytes(ram_bytes: int) -> int:
    """The largest GTT to recommend: 85 % of RAM, and the system's reserve always left.

    On 128 GB, 104 GiB works, about 108 is the limit, 110 crashed (the seed's measurements).
    """
    return min(ram_bytes * GTT_CEILING_PERCENT // 100, ram_bytes - os_reserve_bytes(ram_bytes))


def budgets(facts: HardwareFacts) -> Budgets:
    """Compute all budgets. Pure; unknown inputs give ``None`` with the reason in ``steps``."""
    ram = facts.memory.ram_bytes
    reserve = None if ram is None else os_reserve_bytes(ram)
    host, host_steps = _host(facts, reserve)
    cpu = Budget(name="cpu", bytes=host, steps=host_steps)
    gpu = facts.gpu
    uma = gpu is not None and gpu.kind == "integrated"
    if gpu is None:
        device = _unknown("no GPU that can be used was found: the CPU does the work")
    elif gpu.kind != "integrated":
        device = _discrete(gpu)
    else:
        device = _integrated(facts, gpu, host, host_steps)
    pool = None
    if gpu is not None and uma and host is not None and gpu.vram_bytes is not None:
        pool = gpu.vram_bytes + host
    return Budgets(
        backends={**device, "cpu": cpu},
        os_reserve_bytes=reserve,
        host_budget_bytes=host,
        pool_bytes=pool,
        uma=uma,
    )


def size(count: int) -> str:
    """Bytes for people: ``104.5 GiB``, or ``512 MiB`` below one GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"


def _host(facts: HardwareFacts, reserve: int | None) -> tuple[int | None, tuple[str, ...]]:
    ram = facts.memory.ram_bytes
    if ram is None or reserve is None:
        return None, ("the amount of RAM is not known",)
    left = ram - reserve
    steps = [f"RAM {size(ram)} - {size(reserve)} for the system = {size(left)}"]
    limit = facts.memory.cgroup_limit_bytes
    if limit is not None:
        ours = max(0, limit - CONTAINER_RESERVE_BYTES)
        if ours < left:
            left = ours
            steps.append(
                f"the control group allows {size(limit)}, less "
                f"{size(CONTAINER_RESERVE_BYTES)} for our own processes = {size(left)}"
            )
    return left, tuple(steps)


def _unknown(*steps: str) -> dict[str, Budget]:
    return {name: Budget(name=name, bytes=None, steps=steps) for name in BACKENDS if name != "cpu"}


def _discrete(gpu: GpuFacts) -> dict[str, Budget]:
    if gpu.vram_bytes is None:
        return _unknown(f"{gpu.label}: the driver does not state its memory")
    reserve = gpu.vram_bytes // DISCRETE_RESERVE_SHARE
    total = gpu.vram_bytes - reserve
    step = f"VRAM {size(gpu.vram_bytes)} - {size(reserve)} for display and driver = {size(total)}"
    return {
        name: Budget(name=name, bytes=total, steps=(step,), in_use_bytes=gpu.vram_used_bytes)
        for name in BACKENDS
        if name != "cpu"
    }


def _integrated(
    facts: HardwareFacts, gpu: GpuFacts, host: int | None, host_steps: tuple[str, ...]
) -> dict[str, Budget]:
    if gpu.card is None or gpu.driver not in (None, "amdgpu"):
        return _unknown(f"{gpu.label} is held by {gpu.driver or 'no driver'}, not by amdgpu")
    if gpu.vram_bytes is None or gpu.gtt_bytes is None:
        missing = "carve-out" if gpu.vram_bytes is None else "GTT limit"
        return _unknown(f"the driver does not state the {missing}")
    if host is None:
        return _unknown(*host_steps)
    gtt, gtt_steps = _usable_gtt(facts, gpu.gtt_bytes, host, host_steps)
    vram = gpu.vram_bytes
    total = vram + gtt
    unified_steps = (
        *gtt_steps,
        f"carve-out {size(vram)} + usable GTT {size(gtt)} = {size(total)}",
    )
    split, split_steps = _split_heap(gpu, gpu.gtt_bytes, total)
    rocm, rocm_steps = _rocm(facts, gpu, vram, gtt)
    results = {
        "vulkan": (split, unified_steps + split_steps),
        "vulkan_unified": (total, unified_steps),
        "rocm": (rocm, gtt_steps + rocm_steps),
    }
    return {
        name: Budget(name=name, bytes=value, steps=steps, in_use_bytes=gpu.in_use_bytes)
        for name, (value, steps) in results.items()
    }


def _usable_gtt(
    facts: HardwareFacts, stated: int, host: int, host_steps: tuple[str, ...]
) -> tuple[int, tuple[str, ...]]:
    """The part of GTT that can be filled: three bounds, of which the least holds.

    ``mem_info_gtt_total`` alone is not one: with ``amdgpu.gttsize`` it echoes the parameter.
    """
    bounds = [(stated, "the driver's limit"), (host, "what RAM leaves")]
    steps = [*host_steps, f"GTT limit that the driver states: {size(stated)}"]
    pages = facts.ttm.limit_bytes
    if pages is not None:
        bounds.append((pages, f"the page limit of {facts.ttm.module}"))
        steps.append(f"page limit of {facts.ttm.module}: {size(pages)}")
    least, why = min(bounds)
    steps.append(f"usable GTT is the least of these, {why}: {size(least)}")
    return least, tuple(steps)


def _split_heap(gpu: GpuFacts, stated_gtt: int, total: int) -> tuple[int, tuple[str, ...]]:
    """RADV's device-local heap on an APU when the heaps are not unified.

    Two thirds of visible VRAM + GTT, rounded up to a page; RADV counts the driver's figures.
    """
    visible = gpu.vis_vram_bytes if gpu.vis_vram_bytes is not None else gpu.vram_bytes or 0
    heap = -(-((visible + stated_gtt) * 2 // 3) // _PAGE) * _PAGE
    step = (
        "without radv_enable_unified_heap_on_apu RADV's device-local heap is 2/3 of "
        f"(visible VRAM {size(visible)} + GTT {size(stated_gtt)}) = {size(heap)}"
    )
    if heap <= total:
        return heap, (step,)
    return total, (f"{step}; that is more than there is, so {size(total)} holds",)


def _rocm(facts: HardwareFacts, gpu: GpuFacts, vram: int, gtt: int) -> tuple[int, tuple[str, ...]]:
    """ROCm allocates from one of the two, and which one depends on the driver's age.

    KFD's own report of its pool is the best witness; without it the driver's version decides;
    without that the smaller one is taken.
    """
    stated = gpu.gtt_bytes or 0
    version = facts.kernel.version
    pool = gpu.kfd_pool_bytes
    if pool is not None:
        if abs(pool - vram) <= _SAME_POOL_BYTES:
            return vram, (f"KFD's pool is the carve-out: {size(vram)}",)
        if abs(pool - stated) <= _SAME_POOL_BYTES:
            return gtt, (f"KFD's pool is GTT ({size(pool)}), of which usable: {size(gtt)}",)
        least = min(pool, vram + gtt)
        return least, (f"KFD announces a pool of {size(pool)}; usable: {size(least)}",)
    if version is None:
        least = min(vram, gtt)
        which = f"carve-out {size(vram)} and usable GTT {size(gtt)}"
        step = f"the kernel's version is not known: the smaller of {which} = {size(least)}"
        return least, (step,)
    shown = ".".join(str(part) for part in version[:2])
    if version < _KFD_USES_GTT:
        return vram, (f"kernel {shown} gives ROCm the carve-out only: {size(vram)}",)
    if version < _KFD_PREFERS_LARGER or stated > vram:
        return gtt, (f"kernel {shown} gives ROCm GTT only, of which usable: {size(gtt)}",)
    return vram, (f"kernel {shown} gives ROCm the larger pool, here the carve-out: {size(vram)}",)
