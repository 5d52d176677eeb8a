"""Put the readers together: which GPU is ours, what it is called, which tier the machine is."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from llama_ai.errors import UsageError
from llama_ai.hardware import cpu, drm, kernel, kfd, memory, power
from llama_ai.hardware.devices import DeviceTable, device_table
from llama_ai.hardware.facts import GpuFacts, GpuKind, HardwareFacts, Overrides, Tier
from llama_ai.hardware.root import Root

if TYPE_CHECKING:
    from llama_ai.hardware.drm import DrmGpu
    from llama_ai.hardware.facts import GfxSource, PowerFacts
    from llama_ai.hardware.kfd import KfdNode

STRIX_HALO_DEVICE = "1586"
STRIX_HALO_GFX = "gfx1151"

_HANDHELD_DEVICES = frozenset({"163f", "1435"})
"""Van Gogh and Sephiroth exist in the Steam Deck only, whose firmware calls it a notebook."""

_MODEL_IN_CPU_NAME = re.compile(
    r"\bRadeon(?:\s*\(TM\))?\s+((?:RX\s+)?Vega\s+[0-9]+|[0-9]{3,4}[MS])\b"
)


def detect(root: Root | None = None, overrides: Overrides | None = None) -> HardwareFacts:
    """Find out what the machine below ``root`` (this one by default) is.

    Only reads. Never raises for what it finds; raises :class:`~llama_ai.errors.UsageError` when
    ``overrides`` name a GPU that is not there.
    """
    root = root or Root("/")
    overrides = overrides or Overrides()
    table = device_table()
    processor = cpu.read_cpu(root)
    supply = power.read_power(root)
    nodes = kfd.read_nodes(root)
    notes: list[str] = []
    gpus = tuple(_named(one, nodes, table, processor.model, notes) for one in drm.read_gpus(root))
    gpus = _with_render_node(root, gpus)
    integrated = [gpu for gpu in gpus if gpu.kind == "integrated"]
    # A card that a driver holds comes before one that is only on the bus.
    igpu = min(integrated, key=lambda gpu: gpu.card is None, default=None)
    chosen = _choose(gpus, igpu, overrides.gpu)
    if overrides.gfx is not None and chosen is not None:
        known = replace(chosen, gfx=overrides.gfx, gfx_source="override")
        gpus = tuple(known if gpu is chosen else gpu for gpu in gpus)
        igpu = known if igpu is chosen else igpu
        chosen = known
    tier, reason = _tier(igpu, supply, table, overrides)
    return HardwareFacts(
        gpus=gpus,
        igpu=igpu,
        gpu=chosen,
        tier=tier,
        tier_reason=reason,
        cpu=processor,
        memory=memory.read_memory(root),
        ttm=memory.read_ttm(root),
        kernel=kernel.read_kernel(root),
        power=supply,
        overrides=overrides,
        notes=tuple(notes),
    )


def _named(
    found: DrmGpu,
    nodes: tuple[KfdNode, ...],
    table: DeviceTable,
    cpu_model: str | None,
    notes: list[str],
) -> GpuFacts:
    """Give a GPU its target, kind and names, and say how each was learned."""
    gpu = found.gpu
    if gpu.vendor != drm.AMD:
        return gpu
    device = table.devices.get(gpu.device or "")
    node = _kfd_node(gpu, nodes)
    gfx, source = _gfx(found, node, table)
    kind: GpuKind = "other"
    if device is not None or gfx in table.apu_gfx:
        kind = "integrated"
    elif gpu.device is not None and not (gpu.pci_slot or "").startswith("0000:00:"):
        kind = "discrete"  # on bus 0 sit the graphics of APUs older than the table
    name, codename = None, None
    if device is not None:
        name = device.names.get(gpu.revision or "")
        codename = device.codenames.get(gpu.revision or "", device.codename)
        if device.gfx != gfx:
            notes.append(
                f"{gpu.label}: the driver says {gfx}, the device table says {device.gfx} for "
                f"1002:{gpu.device}; the driver is believed"
            )
    by_cpu = None
    if name is None and kind == "integrated":
        match = _MODEL_IN_CPU_NAME.search(cpu_model or "")
        by_cpu = " ".join(["Radeon", *match[1].split()]) if match else None
    return replace(
        gpu,
        kind=kind,
        gfx=gfx,
        gfx_source=source,
        codename=codename,
        name=name or by_cpu,
        name_source=("device and revision" if name else "CPU model string" if by_cpu else None),
        render_node=gpu.render_node or (node.render_node if node else None),
        kfd_pool_bytes=node.pool_bytes if node else None,
        kfd_index=nodes.index(node) if node else None,
        bandwidth_gb_s=device.bandwidth_gb_s if device else None,
        prefill_tflops=device.prefill_tflops if device else None,
        vk_nodes_per_submit=device.vk_nodes_per_submit if device else None,
    )


def _gfx(
    found: DrmGpu, node: KfdNode | None, table: DeviceTable
) -> tuple[str | None, GfxSource | None]:
    """The LLVM target: IP discovery first (it needs no ROCm), then KFD, then the table."""
    by_discovery = table.gfx_by_gc.get(found.gc_version or "")
    if by_discovery is not None:
        return by_discovery, "ip-discovery"
    if node is not None and node.gfx is not None:
        return node.gfx, "kfd"
    device = table.devices.get(found.gpu.device or "")
    return (device.gfx, "table") if device is not None else (None, None)


def _kfd_node(gpu: GpuFacts, nodes: tuple[KfdNode, ...]) -> KfdNode | None:
    """KFD's node for ``gpu``: the same place on the bus, or the only one with its id."""
    for node in nodes:
        if node.bus_slot is not None and node.bus_slot == gpu.pci_slot:
            return node
    same = [
        node
        for node in nodes
        if (node.vendor, node.device) == (gpu.vendor, gpu.device)
        and (node.bus_slot is None or gpu.pci_slot is None)
    ]
    return same[0] if len(same) == 1 else None


def _with_render_node(root: Root, gpus: tuple[GpuFacts, ...]) -> tuple[GpuFacts, ...]:
    """The only card has the only render node, even where no link says so."""
    nodes = [name for name in root.listdir(drm.DRM) if name.startswith("renderD")]
    if len(gpus) == 1 and len(nodes) == 1 and gpus[0].card and gpus[0].render_node is None:
        return (replace(gpus[0], render_node=nodes[0]),)
    return gpus


def _choose(gpus: tuple[GpuFacts, ...], igpu: GpuFacts | None, wish: str | None) -> GpuFacts | None:
    """The user's GPU, else the integrated one, else an AMD card whose memory is known."""
    if wish is None:
        discrete = (gpu for gpu in gpus if gpu.kind == "discrete" and gpu.vram_bytes is not None)
        return igpu or next(discrete, None)
    word = wish.lower()
    for gpu in gpus:
        names = {gpu.card, gpu.pci_slot, gpu.render_node, f"{gpu.vendor}:{gpu.device}"}
        if word in names or (word in ("integrated", "discrete") and gpu.kind == word):
            return gpu
    raise UsageError(
        f"there is no GPU '{wish}' here",
        hint="choose one of: "
        + (", ".join(gpu.card or gpu.pci_slot or gpu.label for gpu in gpus) or "(none found)"),
    )


def _tier(
    igpu: GpuFacts | None, supply: PowerFacts, table: DeviceTable, overrides: Overrides
) -> tuple[Tier, str]:
    """The hardware tier and why.

    In this order: the user's word; Strix Halo is ``halo`` whatever its carve-out or its form;
    without an AMD APU it is ``none``; a handheld chip, a handheld or tablet chassis, or a known
    handheld product is ``handheld``; the rest is ``standard``. The amount of memory does not
    decide: desktops with 16 GB and handhelds with 64 GB exist.
    """
    if overrides.tier is not None:
        return overrides.tier, "the user says so"
    if overrides.is_strix_halo:
        return "halo", "the user says that this is a Strix Halo"
    if igpu is None:
        return "none", "no AMD APU was found"
    is_halo = igpu.device == STRIX_HALO_DEVICE or igpu.gfx == STRIX_HALO_GFX
    if is_halo and overrides.is_strix_halo is not False:
        return "halo", "the GPU is a Strix Halo"
    if igpu.device in _HANDHELD_DEVICES:
        return "handheld", f"{igpu.codename} is a handheld's chip"
    if supply.chassis_type in power.HANDHELD_CHASSIS:
        return "handheld", f"the firmware states chassis type {supply.chassis_type}"
    if table.is_handheld(supply.vendor, supply.product):
        return "handheld", f"{supply.vendor} {supply.product} is a known handheld"
    return "standard", "an AMD APU, neither Strix Halo nor a handheld"
