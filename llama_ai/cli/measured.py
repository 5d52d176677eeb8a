"""What the engine measured before, so that a router over many models starts at once.

An answer is kept by everything that it depends on: the engine, the files, the layout, the device
and the driver's switches. A cache entry is only a shortcut: what cannot be read is measured again.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from llama_ai import paths
from llama_ai.engine.probe import Measured, Side, layout_words
from llama_ai.errors import LlamaAiError

if TYPE_CHECKING:
    from pathlib import Path

    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.planning import Profile

_MAX_AGE_S: Final = 30 * 24 * 3600
"""A driver's update changes little, but is seen nowhere in the key."""
_MAX_ENTRIES: Final = 1024


def recall(engine: EngineInfo, profile: Profile, draft: tuple[str, Path] | None) -> Measured | None:
    """The answer of an earlier time, if there is one."""
    entry = _entry(engine, profile, draft)
    try:
        if time.time() - entry.stat().st_mtime > _MAX_AGE_S:
            return None
        data = json.loads(entry.read_bytes())
        return Measured(
            host=Side(**data["host"]) if data["host"] else None,
            devices=tuple(Side(**side) for side in data["devices"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def remember(
    engine: EngineInfo, profile: Profile, draft: tuple[str, Path] | None, answer: Measured
) -> None:
    """Keep an answer; a failure to measure is none."""
    if answer.error is not None:
        return
    entry = _entry(engine, profile, draft)
    try:
        paths.private(entry.parent)
        paths.write_atomic(entry, json.dumps(asdict(answer)).encode(), durable=False)
        entries = list(entry.parent.iterdir())
        if len(entries) > _MAX_ENTRIES:
            oldest = sorted(entries, key=lambda item: item.lstat().st_mtime_ns)
            for old in oldest[: len(entries) // 2]:
                old.unlink(missing_ok=True)
    except (OSError, LlamaAiError):
        return  # the next start is slower, nothing else


def _entry(engine: EngineInfo, profile: Profile, draft: tuple[str, Path] | None) -> Path:
    target = profile.target
    device = target.device
    headers = [profile.model.header]
    if profile.draft is not None and profile.draft.facts is not None:
        headers.append(profile.draft.facts.header)
    key = json.dumps(
        [
            engine.key,
            [
                (str(shard.path), shard.size_bytes, shard.mtime_ns)
                for header in headers
                for shard in header.shards
            ],
            layout_words(profile.plan.layout, device.name if device else None, draft),
            (device.name, device.description, device.total_bytes) if device else None,
            sorted(target.child_env.set.items()),
        ]
    )
    name = hashlib.sha256(key.encode()).hexdigest()
    return paths.cache_dir() / "measured" / f"{name}.json"
