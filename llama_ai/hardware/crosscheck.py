"""What the engine reports of its devices, against what we know of the machine (pure).

Run when the engine has started. A driver's report is a witness, not the truth: a gap of more than
a tenth is a warning with both figures and the likely reason. A plan for the GPU whose weights
ended in system memory is a failure.

The engine's line "offloaded N/N layers to GPU" proves nothing: it is printed on machines without
a GPU too. The lines that name buffers do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_ai.hardware.budgets import MIB, size
from llama_ai.hardware.checks import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from llama_ai.hardware.access import RenderAccess
    from llama_ai.hardware.budgets import Budgets
    from llama_ai.hardware.facts import GpuFacts, HardwareFacts

TOLERANCE_PERCENT = 10

# `  - Vulkan0 : AMD Radeon 780M (RADV PHOENIX) (24576 MiB, 23000 MiB free)` in the log,
# `  Vulkan0: AMD …` in the answer to --list-devices.
_DEVICE = re.compile(
    r"(?:^|\s)-?\s*(?P<name>[A-Za-z]+[0-9]+)\s*: (?P<text>.*) "
    r"\((?P<total>[0-9]{1,9}) MiB, (?P<free>[0-9]{1,9}) MiB free\)\s*$",
    re.ASCII,
)
# `load_tensors:      Vulkan0 model buffer size =    92.10 MiB`
_BUFFER = re.compile(
    r"\s(?P<name>[A-Za-z]\w*) model buffer size =\s*(?P<mib>[0-9]{1,9}(?:\.[0-9]+)?) MiB", re.ASCII
)
_NOT_AMD = re.compile(r"\b(?:NVIDIA|GeForce|Intel|llvmpipe)\b", re.ASCII)
_DISCRETE = re.compile(r"\bRadeon (?:RX [0-9]{3}|Pro [WV]?[0-9]{4}|VII\b|AI PRO\b)", re.ASCII)
"""Descriptions that cannot be those of an AMD GPU, or of an integrated one."""

_START = re.compile(r"\bcommon_params_print_info: verbosity = [0-9]", re.ASCII)
"""Written once by each process, before its devices: a log holds those of earlier starts too."""

_GPU_BUFFER = re.compile(r"(?:Vulkan|ROCm|CUDA|MTL|Metal|SYCL)(?:[0-9]*|_Split)", re.ASCII)
"""A device's own buffer; ``Vulkan_Host`` and ``ROCm_Host`` are system memory."""


@dataclass(frozen=True, kw_only=True)
class ReportedDevice:
    """A device as the engine names it, in bytes (rounded to MiB by the engine)."""

    name: str
    description: str
    total_bytes: int | None
    free_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class EngineReport:
    """What the engine said. Empty parts were not said."""

    devices: tuple[ReportedDevice, ...] = ()
    model_buffers: Mapping[str, int] = field(default_factory=dict)
    """Bytes of weights by buffer (``Vulkan0``, ``CPU_Mapped``)."""


def parse_log(lines: Iterable[str]) -> EngineReport:
    """Read device and buffer lines of the last start from the engine's log.

    ``--list-devices`` writes its devices the same way. Buffers are named at ``-lv 4`` only.
    """
    devices: dict[str, ReportedDevice] = {}
    buffers: dict[str, int] = {}
    for line in lines:
        if _START.search(line):
            devices.clear()
            buffers.clear()
        elif match := _DEVICE.search(line):
            devices[match["name"]] = ReportedDevice(
                name=match["name"],
                description=match["text"],
                total_bytes=int(match["total"]) * MIB,
                free_bytes=int(match["free"]) * MIB,
            )
        elif match := _BUFFER.search(line):
            buffers[match["name"]] = buffers.get(match["name"], 0) + int(float(match["mib"]) * MIB)
    gpus = tuple(device for device in devices.values() if not device.name.startswith("CPU"))
    return EngineReport(devices=gpus, model_buffers=buffers)


def cross_check(
    facts: HardwareFacts,
    budgets: Budgets,
    *,
    backend: str,
    device: str | None,
    report: EngineReport,
    planned_weights_bytes: int | None = None,
    access: RenderAccess | None = None,
    unified_heap: bool = True,
) -> tuple[Check, ...]:
    """Compare. ``device`` is the engine's name of the planned device (``Vulkan0``), ``None`` for
    the first that it lists.

    ``planned_weights_bytes`` are the weights that the plan puts on the device; 0 or ``None`` skips
    the question where they ended. ``unified_heap`` says which budget Vulkan was planned with. A
    plan for the CPU has nothing to compare: the answer is empty.
    """
    if backend not in ("vulkan", "rocm"):
        return ()
    seen = _seen(device, report, access, facts.gpu)
    if seen.status == "FAIL":
        return (seen,)
    checks = [seen]
    found = _by_name(device, report.devices)
    if found is not None and facts.gpu is not None:
        checks.append(_memory(facts.gpu, budgets, backend, found))
        checks.append(_free(budgets.gpu_budget_bytes(backend, unified_heap), found))
    if planned_weights_bytes:
        checks.append(_placement(planned_weights_bytes, report, access))
    return tuple(checks)


def _by_name(name: str | None, devices: Sequence[ReportedDevice]) -> ReportedDevice | None:
    return next((one for one in devices if name in (None, one.name)), None)


def _seen(
    device: str | None,
    report: EngineReport,
    access: RenderAccess | None,
    gpu: GpuFacts | None,
) -> Check:
    expected = f"the engine sees {device or 'the planned GPU'}"
    if not report.devices and report.model_buffers:
        buffers = ", ".join(report.model_buffers)
        on_gpu = any(_GPU_BUFFER.fullmatch(name) for name in report.model_buffers)
        return Check(
            id="engine-device",
            status="PASS" if on_gpu else "FAIL",
            expected=expected,
            observed=f"it names no devices; buffers: {buffers}",
            hint=None if on_gpu else _why_not_seen(access),
        )
    listed = _by_name(device, report.devices)
    if listed is not None and gpu is not None and _is_another(gpu, listed.description):
        # A warning, not a failure: whoever names a device may mean the other one.
        return Check(
            id="engine-device",
            status="WARN",
            expected=f"{device or 'the planned device'} is the {gpu.label}",
            observed=f"{listed.name} is {listed.description}",
            hint="Mesa's device-selection layer is missing, or another GPU was chosen: "
            "set GGML_VK_VISIBLE_DEVICES to the number of the right one",
        )
    if listed is not None:
        return Check(
            id="engine-device",
            status="PASS",
            expected=expected,
            observed=f"{listed.name}: {listed.description}",
        )
    names = ", ".join(f"{one.name} ({one.description})" for one in report.devices)
    return Check(
        id="engine-device",
        status="FAIL",
        expected=expected,
        observed=f"it sees {names or 'no GPU at all: everything would run on the CPU'}",
        hint=_why_not_seen(access) if not names else "see `llama-ai backends`",
    )


def _is_another(gpu: GpuFacts, description: str) -> bool:
    """Whether a description is surely that of a GPU other than ``gpu``."""
    if gpu.vendor != "1002":
        return False
    if _NOT_AMD.search(description):
        return True
    return gpu.kind == "integrated" and _DISCRETE.search(description) is not None


def _why_not_seen(access: RenderAccess | None) -> str:
    if access is not None and not access.exists:
        return f"{access.path} does not exist: is amdgpu loaded, is /dev/dri passed through?"
    if access is not None and not access.usable:
        return f"{access.path} cannot be opened: sudo usermod -aG {access.group} $USER"
    return "is the render node readable, is Mesa's Vulkan driver installed? `llama-ai doctor` says"


def _memory(gpu: GpuFacts, budgets: Budgets, backend: str, device: ReportedDevice) -> Check:
    """The total that the driver reports, against the sum of what sysfs states."""
    vram, gtt = gpu.vram_bytes, gpu.gtt_bytes
    if gpu.kind != "integrated":
        want = vram
    elif backend == "vulkan":
        # On an integrated GPU the engine adds up all heaps, unified or not.
        want = None if vram is None or gtt is None else vram + gtt
    else:
        want = budgets.backends["rocm"].bytes
    got = device.total_bytes
    if want is None or got is None:
        return Check(
            id="engine-memory",
            status="UNKNOWN",
            expected="a total to compare with",
            observed=f"{device.name} reports {size(got) if got is not None else 'nothing'}",
        )
    expected = f"{device.name} has about {size(want)} of memory"
    if _close(got, want):
        return Check(
            id="engine-memory", status="PASS", expected=expected, observed=f"it has {size(got)}"
        )
    return Check(
        id="engine-memory",
        status="WARN",
        expected=expected,
        observed=f"it reports {size(got)}",
        hint=_why_other_total(gpu, got),
    )


def _why_other_total(gpu: GpuFacts, got: int) -> str:
    vram, gtt = gpu.vram_bytes or 0, gpu.gtt_bytes or 0
    if _close(got, vram):
        return "the driver counts the carve-out only: an old kernel (ROCm before 6.10) or driver"
    if _close(got, gtt):
        return "the driver counts GTT only and leaves the carve-out out"
    if _close(got, (vram + gtt) * 2 // 3):
        return "this is 2/3 of the memory: RADV's heap without radv_enable_unified_heap_on_apu"
    if got > vram + gtt:
        return "more than the kernel states: another GPU, or a driver that counts system memory"
    return "the limit may have been changed since: `llama-ai doctor` shows what is in force"


def _free(budget: int | None, device: ReportedDevice) -> Check:
    """What is free now, against the budget that the plan was made for."""
    free = device.free_bytes
    if budget is None or free is None:
        return Check(
            id="engine-free",
            status="UNKNOWN",
            expected="free memory to compare with",
            observed=f"{device.name} does not state it",
        )
    expected = f"about {size(budget)} are free"
    if free >= budget or _close(free, budget):
        return Check(
            id="engine-free", status="PASS", expected=expected, observed=f"{size(free)} are free"
        )
    return Check(
        id="engine-free",
        status="WARN",
        expected=expected,
        observed=f"{size(free)} are free",
        hint="other programs use the GPU's memory, or the driver can reach less than the kernel "
        "states; a large model may fail to load",
    )


def _placement(planned: int, report: EngineReport, access: RenderAccess | None) -> Check:
    """Where the weights ended."""
    expected = f"{size(planned)} of weights are on the GPU"
    if not report.model_buffers:
        return Check(
            id="engine-placement",
            status="UNKNOWN",
            expected=expected,
            observed="the engine's log does not say where they are",
        )
    on_gpu = sum(
        count for name, count in report.model_buffers.items() if _GPU_BUFFER.fullmatch(name)
    )
    where = ", ".join(f"{name} {size(count)}" for name, count in report.model_buffers.items())
    if on_gpu == 0:
        return Check(
            id="engine-placement",
            status="FAIL",
            expected=expected,
            observed=f"none: the model runs on the CPU ({where})",
            hint=_why_not_seen(access),
        )
    if on_gpu < planned * (100 - TOLERANCE_PERCENT) // 100:
        return Check(
            id="engine-placement",
            status="WARN",
            expected=expected,
            observed=f"{size(on_gpu)} ({where})",
            hint="a part of the plan ended in system memory: generation will be slower",
        )
    return Check(id="engine-placement", status="PASS", expected=expected, observed=where)


def _close(one: int, other: int) -> bool:
    return abs(one - other) * 100 <= TOLERANCE_PERCENT * other
