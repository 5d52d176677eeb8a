"""Whether conversations are kept on disk, where, and how many (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llama_ai import paths

if TYPE_CHECKING:
    from llama_ai.config import Settings, Source

Tier = Literal["halo", "standard", "handheld", "none"]

# By hardware tier. The seed left it off on Strix Halo for the cost of its writes; ours was measured
# (benchmarks/kv_cache.md) and is on everywhere.
_DEFAULT: dict[Tier, tuple[bool, str]] = {
    "halo": (True, "conversations survive a restart, and prompts are the wait on this hardware"),
    "standard": (True, "conversations survive a restart, and need not stay in memory"),
    "handheld": (True, "conversations survive a restart, and memory is short"),
    "none": (True, "conversations survive a restart"),
}


BUFFER_BYTES = 256 << 20
"""Host memory that the engine may hold for copies that are not written yet (native/README.md)."""


@dataclass(frozen=True, kw_only=True)
class KvDisk:
    """What the engine is told about the KV cache on disk."""

    enabled: bool
    directory: Path
    max_gib: int
    max_age_days: int
    """Files that nobody used for so long are dropped; 0 keeps them."""
    system_prompts: int
    """So many system prompts of a model are dropped last."""
    source: Source
    why: str


def default_directory() -> Path:
    """Where it is unless the user says otherwise; the engine makes it private."""
    return paths.cache_dir() / "kv"


def directory_of(settings: Settings) -> Path:
    """The directory that these settings name, absolute."""
    named = settings.text("kv_dir")
    return Path(named).expanduser().absolute() if named else default_directory()


def choose(settings: Settings, tier: Tier, cache_ram_mib: int) -> KvDisk:
    """The choice for this machine. ``kv_disk`` wins over the older word ``ssd_cache``."""
    wish = settings.get("kv_disk") or settings.get("ssd_cache")
    enabled, why = _DEFAULT[tier]
    source: Source = "solver"
    if wish is not None:
        enabled, source = bool(wish.value), wish.source
        why = "you asked for it" if enabled else "you switched it off"
    if cache_ram_mib == 0 and enabled:
        enabled, why = False, "it needs a prompt cache in memory, and --cache-ram is 0"
    return KvDisk(
        enabled=enabled,
        directory=directory_of(settings),
        max_gib=_number(settings, "kv_max_gib"),
        max_age_days=_number(settings, "kv_max_age_days"),
        system_prompts=_number(settings, "system_prompts"),
        source=source,
        why=why,
    )


def _number(settings: Settings, name: str) -> int:
    return settings.number(name) or 0
