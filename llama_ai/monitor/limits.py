"""What the plan says about sizes, so that a bar can show how far there is to go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bytes and tokens of the plan that the server was started with; ``None`` where unknown."""

    gpu_budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    kv_bytes: int | None = None
    ctx_tokens: int | None = None
    cache_ram_bytes: int | None = None


def from_plan(document: Mapping[str, Any] | None) -> Limits:
    """From the object of ``profile --format json`` (any part of it may be absent)."""
    memory, profile = _object(document, "memory"), _object(document, "profile")
    gpu, host = _object(memory, "gpu"), _object(memory, "host")
    kv = [value for side in (gpu, host) if (value := _int(side, "kv_bytes")) is not None]
    cache_mib = _int(profile, "cache_ram_mib")
    return Limits(
        gpu_budget_bytes=_int(gpu, "budget_bytes"),
        host_budget_bytes=_int(host, "budget_bytes"),
        kv_bytes=sum(kv) if kv else None,
        ctx_tokens=_int(profile, "ctx_size"),
        cache_ram_bytes=None if cache_mib is None else cache_mib << 20,
    )


def _object(document: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    value = None if document is None else document.get(key)
    return value if isinstance(value, Mapping) else {}


def _int(document: Mapping[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if type(value) is int and value >= 0 else None
