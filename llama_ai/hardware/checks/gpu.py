"""Checks of the GPU and of the drivers that lead to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.hardware.checks import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.hardware.access import RenderAccess
    from llama_ai.hardware.childenv import ChildEnv
    from llama_ai.hardware.facts import GpuFacts, HardwareFacts
    from llama_ai.hardware.software import SoftwareFacts
    from llama_ai.hardware.trouble import Trouble

UNIFIED_HEAP_MESA = (22, 3, 6)
"""Oldest Mesa in which the unified-heap option was seen."""

ROCM_GFX1151_KERNEL = (6, 18, 4)
DESKTOP_IGPU_GFX = "gfx1036"
"""Raphael and Granite Ridge have two compute units, for a picture on the screen."""

UBUNTU_HWE = ((6, 17, 0), 19)
UBUNTU_OEM = ((6, 14, 0), 1018)
"""Ubuntu's kernels that carry the same fix: base version and build number."""


def gpu_found(facts: HardwareFacts) -> Check:
    """An AMD APU, named; every other GPU named too."""
    expected = "an AMD APU"
    gpu = facts.igpu
    if gpu is None:
        if facts.gpu is not None:
            return Check(
                id="gpu",
                status="WARN",
                expected=expected,
                observed=f"no APU; the discrete {facts.gpu.label} is used",
                hint="planning is made for APUs; figures for a discrete card are rougher",
            )
        others = ", ".join(f"{other.label}, driver {other.driver}" for other in facts.gpus)
        return Check(
            id="gpu",
            status="WARN",
            expected=expected,
            observed=f"none{f' (found: {others})' if others else ''}",
            hint="models run on the CPU; nothing else is needed for that",
        )
    words = [gpu.name or "name not known", gpu.codename or "codename not known"]
    words.append(f"{gpu.gfx or 'target not known'} by {gpu.gfx_source}")
    words.append(f"1002:{gpu.device} rev {gpu.revision or '?'}")
    return Check(
        id="gpu",
        status="PASS" if gpu.gfx else "UNKNOWN",
        expected=expected,
        observed=", ".join(words),
        hint=None if gpu.gfx else "report the machine with scripts/record-machine",
    )


def second_gpu(facts: HardwareFacts) -> Check:
    """Which GPU is used where there are several."""
    expected = "the GPU in use is named"
    if facts.gpu is None:
        return Check(id="second-gpu", status="PASS", expected=expected, observed="no GPU is used")
    others = [gpu for gpu in facts.gpus if gpu != facts.gpu]
    if not others:
        return Check(
            id="second-gpu",
            status="PASS",
            expected=expected,
            observed=f"{facts.gpu.label} is the only one",
        )
    names = ", ".join(gpu.label for gpu in others)
    observed = f"{facts.gpu.label} is used; not used: {names}"
    if facts.gpu.gfx == DESKTOP_IGPU_GFX and any(gpu.kind == "discrete" for gpu in others):
        return Check(
            id="second-gpu",
            status="WARN",
            expected="the stronger GPU is used",
            observed=observed,
            hint="a desktop's integrated graphics is small: the card is faster where a model fits",
        )
    return Check(id="second-gpu", status="PASS", expected=expected, observed=observed)


def driver(facts: HardwareFacts) -> Check | None:
    """``amdgpu`` holds the card; ``None`` without an AMD GPU."""
    gpu = facts.gpu
    if gpu is None:
        return None
    expected = "amdgpu holds the GPU"
    if gpu.card is None or gpu.driver not in (None, "amdgpu"):
        bound = gpu.driver or "no driver"
        hint = "load amdgpu: is it blacklisted, or is its firmware missing? (`dmesg | grep amdgpu`)"
        if gpu.driver == "vfio-pci":
            hint = "the GPU is given to a virtual machine; give it back, or use --backend cpu"
        return Check(
            id="gpu-driver",
            status="FAIL",
            expected=expected,
            observed=f"{gpu.label} is held by {bound}",
            hint=hint,
        )
    if gpu.driver is None and gpu.vram_bytes is None and gpu.gtt_bytes is None:
        return Check(
            id="gpu-driver",
            status="UNKNOWN",
            expected=expected,
            observed=f"{gpu.label}: the driver is not stated",
        )
    version = f", DKMS {facts.ttm.dkms_version}" if facts.ttm.dkms_version else ""
    return Check(
        id="gpu-driver",
        status="PASS",
        expected=expected,
        observed=f"amdgpu on {gpu.card}{version}",
    )


def render_node(facts: HardwareFacts, access: RenderAccess | None) -> Check | None:
    """This user may open the GPU's render node. ``access`` is ``None`` on a recording."""
    gpu = facts.gpu
    if gpu is None:
        return None
    expected = "this user can open the render node"
    if access is None:
        seen = gpu.render_node or "no render node is recorded"
        return Check(
            id="render-node",
            status="UNKNOWN",
            expected=expected,
            observed=f"{seen}; access can only be tested on the machine itself",
        )
    if not access.exists:
        return Check(
            id="render-node",
            status="FAIL",
            expected=expected,
            observed=f"{access.path} does not exist",
            hint="in a container, pass /dev/dri through; otherwise see whether amdgpu started",
        )
    if not access.usable:
        mode = f"{access.mode:04o}" if access.mode is not None else "?"
        return Check(
            id="render-node",
            status="FAIL",
            expected=expected,
            observed=f"{access.path} is mode {mode}, group {access.group}: no access",
            hint=f"sudo usermod -aG {access.group or 'render'} $USER, then log in again"
            if access.group not in (None, "root")
            else "a udev rule gave the node to root: restore group render and mode 0660",
        )
    return Check(
        id="render-node", status="PASS", expected=expected, observed=f"{access.path} opens"
    )


def targets_agree(facts: HardwareFacts) -> Check | None:
    """What the driver says and what the device table says are the same chip."""
    if facts.igpu is None or not facts.notes:
        return None
    return Check(
        id="gpu-target",
        status="WARN",
        expected="driver and device table name the same target",
        observed="; ".join(facts.notes),
        hint="report the machine with scripts/record-machine, so that the table can be corrected",
    )


def vulkan_driver(facts: HardwareFacts, software: SoftwareFacts, *, live: bool) -> Check | None:
    """RADV is installed. On a recording a missing directory tells nothing."""
    if facts.gpu is None or facts.gpu.vendor != "1002":
        return None
    expected = "Mesa's RADV is installed for Vulkan"
    if not software.has_icd_directory and not live:
        return Check(
            id="vulkan-driver",
            status="UNKNOWN",
            expected=expected,
            observed="no directory of Vulkan drivers was recorded",
        )
    if software.radv is None:
        names = ", ".join(software.icds) or "none"
        return Check(
            id="vulkan-driver",
            status="FAIL",
            expected=expected,
            observed=f"Vulkan drivers here: {names}",
            hint="install mesa-vulkan-drivers (Debian, Ubuntu, Fedora) or vulkan-radeon (Arch)",
        )
    version = f", Vulkan {software.vulkan_version}" if software.vulkan_version else ""
    return Check(
        id="vulkan-driver", status="PASS", expected=expected, observed=f"{software.radv}{version}"
    )


def mesa(facts: HardwareFacts, software: SoftwareFacts, *, live: bool) -> Check | None:
    """Mesa is new enough for one heap."""
    if facts.gpu is None or facts.gpu.vendor != "1002":
        return None
    oldest = ".".join(str(part) for part in UNIFIED_HEAP_MESA)
    expected = f"Mesa {oldest} or later"
    if software.mesa is None:
        return Check(
            id="mesa",
            status="UNKNOWN",
            expected=expected,
            observed="the version is not known",
            hint="`vulkaninfo --summary` shows it" if live else None,
        )
    if software.mesa < UNIFIED_HEAP_MESA:
        return Check(
            id="mesa",
            status="WARN",
            expected=expected,
            observed=f"Mesa {software.mesa_text}",
            hint="with an older Mesa the GPU may be limited to 2/3 of its memory: update it",
        )
    return Check(id="mesa", status="PASS", expected=expected, observed=f"Mesa {software.mesa_text}")


def unified_heap(facts: HardwareFacts, env: ChildEnv) -> Check | None:
    """RADV will show the engine one heap."""
    if facts.gpu is None or facts.gpu.kind != "integrated":
        return None
    expected = "the engine sees one heap of all GPU memory"
    if env.unified_heap:
        return Check(
            id="unified-heap",
            status="PASS",
            expected=expected,
            observed="radv_enable_unified_heap_on_apu=true for the engine's process only",
        )
    kept = "; ".join(variable.note for variable in env.kept) or "the option is not set"
    return Check(
        id="unified-heap",
        status="WARN",
        expected=expected,
        observed=kept,
        hint="unset radv_enable_unified_heap_on_apu; otherwise a third of the memory is lost",
    )


def rocm_kernel(facts: HardwareFacts) -> Check | None:
    """The kernel is new enough for ROCm on Strix Halo; ``None`` for other GPUs."""
    gpu = facts.gpu
    if gpu is None or gpu.gfx != "gfx1151":
        return None
    expected = "for ROCm on gfx1151: kernel 6.18.4, or Ubuntu HWE 6.17.0-19, OEM 6.14.0-1018"
    kernel = facts.kernel
    if kernel.version is None:
        return Check(
            id="rocm-kernel", status="UNKNOWN", expected=expected, observed="release not known"
        )
    good = kernel.version >= ROCM_GFX1151_KERNEL or _ubuntu_has_fix(kernel.release or "")
    return Check(
        id="rocm-kernel",
        status="PASS" if good else "WARN",
        expected=expected,
        observed=f"kernel {kernel.release}",
        hint=None if good else "Vulkan works on this kernel; for ROCm install a newer one",
    )


def _ubuntu_has_fix(release: str) -> bool:
    version, _, rest = release.partition("-")
    build, _, flavour = rest.partition("-")
    if not build.isdecimal() or not build.isascii() or len(build) > 6:
        return False
    base, least = UBUNTU_OEM if flavour == "oem" else UBUNTU_HWE
    same = version == ".".join(str(part) for part in base)
    return same and int(build) >= least and flavour in ("oem", "generic", "lowlatency")


def known_trouble(
    facts: HardwareFacts, software: SoftwareFacts, rows: Sequence[Trouble]
) -> list[Check]:
    """One WARN for each known bad combination that applies; one PASS when none does."""
    gpu = facts.gpu
    if gpu is None or gpu.gfx is None:
        return []
    expected = "no known bad combination of GPU, kernel and firmware"
    checks: list[Check] = []
    for row in rows:
        answer = row.applies(gpu.gfx, facts.kernel.version, software.firmware_date)
        if answer is False:
            continue
        where = "" if row.backend == "any" else f" with {row.backend}"
        asked = "the firmware's date" if row.firmware_dates else "the kernel's version"
        checks.append(
            Check(
                id=f"trouble-{row.id}",
                status="WARN" if answer else "UNKNOWN",
                expected=expected,
                observed=f"{gpu.gfx}{where}: {row.what}"
                + ("" if answer else f" ({asked} is not known)"),
                hint=f"{row.hint} [{row.source}]",
            )
        )
    return checks or [
        Check(id="trouble", status="PASS", expected=expected, observed=f"none for {gpu.gfx}")
    ]


def integrated(facts: HardwareFacts) -> GpuFacts | None:
    """The GPU in use, when it is an APU's."""
    gpu = facts.gpu
    return gpu if gpu is not None and gpu.kind == "integrated" else None
