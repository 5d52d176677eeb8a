"""GPUs as the kernel's DRM and PCI classes show them (``/sys/class/drm``, ``/sys/bus/pci``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.hardware.facts import Carveout, GpuFacts

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

DRM = "sys/class/drm"
PCI = "sys/bus/pci/devices"
AMD = "1002"

_CARD = re.compile(r"card([0-9]{1,4})", re.ASCII)
_RENDER = re.compile(r"renderD([0-9]{1,4})", re.ASCII)
_HEX_ID = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,4})", re.ASCII)
_HEX_CLASS = re.compile(r"(?:0[xX])?([0-9a-fA-F]{1,6})", re.ASCII)
_SLOT = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", re.ASCII)

_GC_HARDWARE_ID = 11
"""AMD's IP-discovery number for the graphics core; the kernel also links it as ``GC``."""


@dataclass(frozen=True, kw_only=True)
class DrmGpu:
    """A GPU with what its directory says, before it is named."""

    gpu: GpuFacts
    gc_version: str | None
    """The graphics core's version from IP discovery, ``11.5.1``."""


def read_gpus(root: Root) -> tuple[DrmGpu, ...]:
    """All GPUs: DRM cards by number, then display devices on the bus that no card stands for.

    A card that vanishes while it is read, or whose files fail, keeps ``None`` in their place.
    """
    numbers = {name: match[1] for name in root.listdir(DRM) if (match := _CARD.fullmatch(name))}
    found = [
        gpu
        for card in sorted(numbers, key=lambda name: (int(numbers[name]), name))
        if (gpu := _read_device(root, f"{DRM}/{card}/device", card)) is not None
    ]
    slots = {one.gpu.pci_slot for one in found if one.gpu.pci_slot}
    # A card whose slot could not be read is recognised by its id.
    ids = {(one.gpu.vendor, one.gpu.device) for one in found if one.gpu.pci_slot is None}
    for slot in root.listdir(PCI):
        pci_class = _match(_HEX_CLASS, root.read_word(PCI, slot, "class"))
        if slot in slots or pci_class is None or int(pci_class, 16) >> 16 != 0x03:
            continue
        unbound = _read_device(root, f"{PCI}/{slot}", None)
        if unbound is not None and (unbound.gpu.vendor, unbound.gpu.device) not in ids:
            found.append(unbound)
    return tuple(found)


def _read_device(root: Root, where: str, card: str | None) -> DrmGpu | None:
    """The GPU at ``where``; ``None`` for a card without a PCI identity (a frame buffer, vkms)."""
    uevent = _uevent(root.read_text(where, "uevent"))
    vendor, device = _ids(uevent.get("PCI_ID"))
    vendor = _pci_id(root.read_word(where, "vendor")) or vendor
    device = _pci_id(root.read_word(where, "device")) or device
    if vendor is None:
        return None
    slot = uevent.get("PCI_SLOT_NAME") or (root.link_name(where) if card else where[len(PCI) + 1 :])
    sub_vendor = _pci_id(root.read_word(where, "subsystem_vendor"))
    sub_device = _pci_id(root.read_word(where, "subsystem_device"))
    revision = _match(_HEX_ID, root.read_word(where, "revision"))
    gpu = GpuFacts(
        card=card,
        render_node=_render_node(root, where),
        vendor=vendor,
        device=device,
        revision=None if revision is None or len(revision) > 2 else revision.zfill(2),
        subsystem=None
        if sub_vendor is None or sub_device is None
        else f"{sub_vendor}:{sub_device}",
        pci_slot=slot.lower() if slot and _SLOT.fullmatch(slot) else None,
        pci_class=_match(_HEX_CLASS, root.read_word(where, "class") or uevent.get("PCI_CLASS")),
        driver=uevent.get("DRIVER") or root.link_name(where, "driver"),
        vram_bytes=root.read_int(where, "mem_info_vram_total"),
        vram_used_bytes=root.read_int(where, "mem_info_vram_used"),
        vis_vram_bytes=root.read_int(where, "mem_info_vis_vram_total"),
        gtt_bytes=root.read_int(where, "mem_info_gtt_total"),
        gtt_used_bytes=root.read_int(where, "mem_info_gtt_used"),
        vbios=root.read_word(where, "vbios_version"),
        carveout=_carveout(root, where),
    )
    return DrmGpu(gpu=gpu, gc_version=_gc_version(root, where) if vendor == AMD else None)


def _render_node(root: Root, where: str) -> str | None:
    for name in root.listdir(where, "drm"):
        if _RENDER.fullmatch(name):
            return name
    return None


def _gc_version(root: Root, where: str) -> str | None:
    """``major.minor.revision`` of the graphics core, by the name ``GC`` or its number."""
    die = f"{where}/ip_discovery/die/0"
    for name in ("GC", str(_GC_HARDWARE_ID)):
        for instance in root.listdir(die, name):
            parts = [
                root.read_int(die, name, instance, part) for part in ("major", "minor", "revision")
            ]
            if all(part is not None for part in parts):
                return ".".join(str(part) for part in parts)
    return None


def _carveout(root: Root, where: str) -> Carveout | None:
    options = root.read_text(where, "uma/carveout_options")
    if options is None:
        return None
    return Carveout(
        current=root.read_word(where, "uma/carveout"),
        options=tuple(line.strip() for line in options.splitlines() if line.strip()),
    )


def _uevent(text: str | None) -> dict[str, str]:
    pairs = (line.strip().partition("=") for line in (text or "").splitlines())
    return {key: value for key, _, value in pairs if key and value and value.isprintable()}


def _ids(pair: str | None) -> tuple[str | None, str | None]:
    vendor, _, device = (pair or "").partition(":")
    return _pci_id(vendor), _pci_id(device)


def _pci_id(text: str | None) -> str | None:
    digits = _match(_HEX_ID, text)
    return None if digits is None else digits.zfill(4)


def _match(pattern: re.Pattern[str], text: str | None) -> str | None:
    """The digits of a hexadecimal number, lower case, or ``None``."""
    match = pattern.fullmatch(text or "")
    return None if match is None else match[1].lower()
