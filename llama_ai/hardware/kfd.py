"""KFD's topology (``/sys/class/kfd``): compute targets and memory pools as ROCm sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.hardware.facts import gfx_name
from llama_ai.hardware.root import parse_int

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

NODES = "sys/class/kfd/kfd/topology/nodes"

_HEAP_SYSTEM = 0


@dataclass(frozen=True, kw_only=True)
class KfdNode:
    """One GPU node. Ids are lower-case hexadecimal; the pool is in bytes."""

    vendor: str | None
    device: str | None
    gfx: str | None
    render_node: str | None
    bus_slot: str | None
    """``DDDD:BB:dd.f`` from ``domain`` and ``location_id``, when KFD states a place."""
    pool_bytes: int | None
    """Size of the pool from which ROCm allocates; a driver's report, not a bound."""


def read_nodes(root: Root) -> tuple[KfdNode, ...]:
    """The GPU nodes (those with a ``gfx_target_version``), in KFD's order."""
    nodes: list[KfdNode] = []
    for name in root.listdir(NODES):
        properties = _properties(root.read_text(NODES, name, "properties"))
        target = properties.get("gfx_target_version")
        if not target:
            continue
        nodes.append(
            KfdNode(
                vendor=_hex_id(properties.get("vendor_id")),
                device=_hex_id(properties.get("device_id")),
                gfx=gfx_name(target // 10000, target // 100 % 100, target % 100),
                render_node=_render_node(properties.get("drm_render_minor")),
                bus_slot=_slot(properties.get("domain"), properties.get("location_id")),
                pool_bytes=_pool(root, name),
            )
        )
    return tuple(nodes)


def _pool(root: Root, node: str) -> int | None:
    banks = f"{NODES}/{node}/mem_banks"
    total = 0
    for bank in root.listdir(banks):
        properties = _properties(root.read_text(banks, bank, "properties"))
        if properties.get("heap_type", _HEAP_SYSTEM) != _HEAP_SYSTEM:
            total += properties.get("size_in_bytes", 0)
    return total or None


def _properties(text: str | None) -> dict[str, int]:
    result: dict[str, int] = {}
    for line in (text or "").splitlines():
        key, _, value = line.partition(" ")
        number = parse_int(value.strip())
        if number is not None:
            result[key] = number
    return result


def _hex_id(value: int | None) -> str | None:
    return f"{value:04x}" if value is not None and 0 < value <= 0xFFFF else None


def _render_node(minor: int | None) -> str | None:
    # 0 stands for a node without a render device.
    return f"renderD{minor}" if minor and minor < 1 << 20 else None


def _slot(domain: int | None, location: int | None) -> str | None:
    if not location or location > 0xFFFF or (domain or 0) > 0xFFFF:
        return None
    return f"{domain or 0:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7:x}"
