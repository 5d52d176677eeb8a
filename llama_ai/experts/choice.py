"""What the engine is told about a MoE model's experts beside the memory that they get (pure)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai import paths

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llama_ai.config import Settings, Source


@dataclass(frozen=True, kw_only=True)
class Experts:
    """The choice for one model."""

    tracking: bool
    """Count which experts are chosen; the counts are kept in :attr:`stats_path`."""
    stats_path: Path
    prefetch_threads: int
    """Reads in flight at once: they wait for the disk, not for a core."""
    prewarm: bool
    """At the start, read the experts that were used most before."""
    sources: Mapping[str, Source]


def stats_path(model_path: Path, size_bytes: int) -> Path:
    """Where the counts of a model are kept: by its name and size, so that moving it loses nothing.

    The engine compares what the file says of its model as well.
    """
    name = re.sub(r"[^A-Za-z0-9._-]", "_", model_path.stem)[:80]
    identity = f"{model_path.name}\0{size_bytes}".encode(errors="surrogateescape")
    digest = hashlib.sha256(identity).hexdigest()[:12]
    return paths.state_dir() / "experts" / f"{name}-{digest}.json"


def choose(settings: Settings, model_path: Path, size_bytes: int) -> Experts:
    """The choice for this model: the table's defaults, and what the user said instead."""
    tracking = bool(settings.switch("expert_tracking"))
    return Experts(
        tracking=tracking,
        stats_path=stats_path(model_path, size_bytes),
        prefetch_threads=settings.number("expert_prefetch_threads") or 1,
        # What was used most is only known where it is counted.
        prewarm=tracking and bool(settings.switch("expert_prewarm")),
        sources={
            name: settings.source(name, "default")
            for name in ("expert_tracking", "expert_prefetch_threads", "expert_prewarm")
        },
    )
