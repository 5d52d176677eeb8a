"""The engine's answers as records. Pure. Whatever an answer lacks is ``None``.

Every text from outside goes through :func:`clean`: a model's or a user's name may hold anything,
also what a terminal would obey.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


LARGEST = 1 << 60
"""A count above this is garbage."""


class ForeignAnswerError(ValueError):
    """The answer is not what a llama-server gives."""


def clean(text: str, limit: int = 400) -> str:
    """Printable text on one line, at most ``limit`` characters."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else " " for c in text)
    return text[:limit]


@dataclass(frozen=True, kw_only=True)
class SlotReading:
    """One entry of ``/slots``."""

    id: int
    busy: bool
    task_id: int | None
    user: str | None
    ctx_tokens: int | None
    ctx_used_tokens: int | None
    cached_tokens: int | None
    read_tokens: int | None
    generated_tokens: int | None
    remaining_tokens: int | None


@dataclass(frozen=True, kw_only=True)
class Props:
    """What matters of ``/props``."""

    model: str | None = None
    build: str | None = None
    sleeping: bool | None = None
    slots_total: int | None = None


def parse_slots(body: bytes) -> tuple[SlotReading, ...]:
    """``/slots``; raises :class:`ValueError` when it is not a list of slots."""
    data = json.loads(body)
    if not isinstance(data, list):
        raise ForeignAnswerError("not a list of slots")
    return tuple(_slot(entry) for entry in data)


def _slot(entry: object) -> SlotReading:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), int):
        raise ForeignAnswerError("not a slot")
    next_token = entry.get("next_token")
    if isinstance(next_token, list):
        next_token = next_token[0] if next_token else None
    after = next_token if isinstance(next_token, dict) else {}
    remaining = _count(after, "n_remain", lowest=-1)
    params = entry.get("params")
    user = entry.get("llama_user_id") or (
        params.get("llama_user_id") if isinstance(params, dict) else None
    )
    return SlotReading(
        id=entry["id"],
        busy=bool(entry.get("is_processing")),
        task_id=_count(entry, "id_task"),
        user=clean(user, 64) if isinstance(user, str) and user else None,
        ctx_tokens=_count(entry, "n_ctx"),
        ctx_used_tokens=_count(entry, "n_prompt_tokens"),
        cached_tokens=_count(entry, "n_prompt_tokens_cache"),
        read_tokens=_count(entry, "n_prompt_tokens_processed"),
        generated_tokens=_count(after, "n_decoded"),
        # -1 says "no limit": there is no number of remaining tokens.
        remaining_tokens=None if remaining == -1 else remaining,
    )


def _count(entry: Mapping[str, Any], key: str, lowest: int = 0) -> int | None:
    value = entry.get(key)
    return value if type(value) is int and lowest <= value <= LARGEST else None


def parse_metrics(body: bytes) -> dict[str, float]:
    """Prometheus text: samples without labels, by name. Raises :class:`ValueError` for other text.

    A sample with labels is another thing for each of them and is left out.
    """
    found: dict[str, float] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        if not line or line[0] == "#":
            continue
        name, _, rest = line.partition(" ")
        if "{" in name:
            continue
        found[name] = float(rest.split()[0]) if rest.split() else float("")
    # NaN and infinity stand for "not known".
    return {name: value for name, value in found.items() if isfinite(value)}


def parse_props(body: bytes) -> Props:
    """``/props``; raises :class:`ValueError` when it is not an object."""
    data = json.loads(body)
    if not isinstance(data, dict):
        raise ForeignAnswerError("not an object")
    alias, path, build = data.get("model_alias"), data.get("model_path"), data.get("build_info")
    name = alias or (str(path).rpartition("/")[2] if isinstance(path, str) else None)
    sleeping = data.get("is_sleeping")
    return Props(
        model=clean(name, 120) if isinstance(name, str) and name else None,
        build=clean(build, 60) if isinstance(build, str) else None,
        sleeping=sleeping if isinstance(sleeping, bool) else None,
        slots_total=_count(data, "total_slots"),
    )


def error_message(body: bytes) -> str | None:
    """The server's own words in an error answer."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, TypeError, KeyError):
        return None
    return clean(message, 160) if isinstance(message, str) else None
