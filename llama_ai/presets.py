"""Presets: shipped intent. The seed's table, for ``--noauto`` and for a profile's legacy name."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from llama_ai import paths
from llama_ai.errors import LlamaAiError
from solver.types import GIB

if TYPE_CHECKING:
    from solver.types import Tier

Kind = Literal["moe", "dense", "ssm"]


@dataclass(frozen=True, kw_only=True)
class Preset:
    """One row: for which models it is, and what it asks for."""

    name: str
    tier: Literal["halo", "other"]
    kind: Kind
    ctx_size: int
    kv_type: str
    batch: int
    ubatch: int
    above_gib: int = 0
    cpu_moe_from_gib: int | None = None


@cache
def presets() -> tuple[Preset, ...]:
    """The shipped table, in order."""
    path = paths.asset("profiles") / "presets" / "seed.toml"
    try:
        rows = tomllib.loads(path.read_text(encoding="utf-8"))["preset"]
        return tuple(Preset(**row) for row in rows)
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise LlamaAiError(f"{path} is damaged: {error}", hint="install llama-ai again") from error


def preset_for(tier: Tier, kind: Kind, size_bytes: int) -> Preset:
    """The first row that matches; the table's rows without a size close every case."""
    side = "halo" if tier == "halo" else "other"
    return next(
        preset
        for preset in presets()
        if (preset.tier, preset.kind) == (side, kind) and size_bytes > preset.above_gib * GIB
    )
