"""One look at everything: the records of a sample, and their JSON form.

``None`` means "not known", never 0. A value that the server was slow to renew keeps its last
reading and is named in :attr:`Sample.late` with its age; a value that cannot be had at all is named
in :attr:`Sample.missing` with the reason.
"""

from __future__ import annotations

import types
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

SlotState = Literal["idle", "prompt", "generating"]


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """The GPU as its driver reports it. VRAM is the carve-out, GTT the part of RAM it may map."""

    card: str | None = None
    name: str | None = None
    busy_percent: int | None = None
    vram_used_bytes: int | None = None
    vram_total_bytes: int | None = None
    gtt_used_bytes: int | None = None
    gtt_total_bytes: int | None = None
    budget_bytes: int | None = None
    """What a plan may use of both together."""
    power_w: float | None = None
    temp_c: float | None = None
    freq_mhz: int | None = None


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Load in per cent of one core's time, 0 to 100, since the sample before."""

    percent: float | None = None
    cores_percent: tuple[float, ...] = ()
    temp_c: float | None = None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """System memory; ``used`` is total less available."""

    ram_total_bytes: int | None = None
    ram_available_bytes: int | None = None
    ram_used_bytes: int | None = None
    budget_bytes: int | None = None
    """What a plan may use on the host."""
    swap_total_bytes: int | None = None
    swap_used_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One slot of the engine. Tokens are counts; ``*_tps`` tokens per second, smoothed."""

    id: int
    state: SlotState
    task_id: int | None = None
    user: str | None = None
    ctx_tokens: int | None = None
    ctx_used_tokens: int | None = None
    cached_tokens: int | None = None
    """Of this turn's prompt: taken from the cache."""
    read_tokens: int | None = None
    """Of this turn's prompt: computed so far."""
    cache_hit_ratio: float | None = None
    """``cached / (cached + read)``, once the prompt is read."""
    cache_tier: str | None = None
    miss_reason: str | None = None
    """Why not more came from the cache, where the engine's log says so."""
    generated_tokens: int | None = None
    remaining_tokens: int | None = None
    prompt_tps: float | None = None
    gen_tps: float | None = None
    draft_acceptance: float | None = None
    """Of the slot's last finished request."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """The server. ``state`` is one word (see :func:`llama_ai.monitor.judge.judge`)."""

    state: str
    detail: str | None = None
    """A line about the state: since when, why, what to do."""
    connection: str = "unknown"
    url: str | None = None
    model: str | None = None
    build: str | None = None
    slots: tuple[Slot, ...] = ()
    prompt_tps: float | None = None
    gen_tps: float | None = None
    requests_processing: int | None = None
    requests_deferred: int | None = None
    prompt_tokens_total: int | None = None
    cached_tokens_total: int | None = None
    generated_tokens_total: int | None = None
    cache_hit_ratio: float | None = None
    """Over the engine's life: prompt tokens from the cache, of all prompt tokens."""
    draft_acceptance: float | None = None
    """Over the engine's life: accepted draft tokens, of all draft tokens."""
    kv_used_tokens: int | None = None
    kv_total_tokens: int | None = None
    kv_used_bytes: int | None = None
    """Estimated: the plan's KV bytes, in the share of its tokens that are used."""
    kv_total_bytes: int | None = None
    kv_ram_bytes: int | None = None
    kv_ram_limit_bytes: int | None = None
    kv_disk_bytes: int | None = None
    kv_disk_limit_bytes: int | None = None
    kv_hits_hot: int | None = None
    """Requests that went on from the slot; from the RAM cache (warm); from disk (cold)."""
    kv_hits_warm: int | None = None
    kv_hits_cold: int | None = None
    kv_misses: int | None = None
    kv_restored_tokens: int | None = None
    expert_hit_ratio: float | None = None
    """Over the engine's life, where experts are read from disk: those found in memory."""
    expert_read_bytes_per_token: float | None = None
    expert_stall_share: float | None = None
    """Of the time, lately: the computation waited for experts from disk."""
    expert_resident_bytes: int | None = None
    expert_budget_bytes: int | None = None
    cpu_percent: float | None = None
    """Of one core: 200 means two cores busy."""
    rss_bytes: int | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Instance:
    """What the supervisor says about the server; ``None`` fields where it says nothing."""

    name: str
    state: str
    url: str
    model: str | None = None
    summary: str | None = None
    pid: int | None = None
    engine_pid: int | None = None
    restarts: int = 0
    last_failure: str | None = None
    last_failure_at: str | None = None
    started_at: str | None = None
    detail: str | None = None
    log_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class Missing:
    """A value that cannot be had, and why."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Late:
    """Values that are older than they should be."""

    what: str
    age_s: float
    why: str


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Everything at one moment. ``at_s`` is seconds since 1970 (UTC)."""

    at_s: float
    engine: Engine
    gpu: Gpu | None = None
    cpu: Cpu = field(default_factory=Cpu)
    memory: Memory = field(default_factory=Memory)
    instance: Instance | None = None
    missing: tuple[Missing, ...] = ()
    late: tuple[Late, ...] = ()


def to_json(sample: Sample) -> dict[str, Any]:
    """Plain objects, ready for :mod:`json`."""
    return asdict(sample)


T = TypeVar("T")


class DamagedError(ValueError):
    """A recorded sample is not one."""


def from_json(kind: type[T], data: object) -> T:
    """The record ``kind`` from plain objects; unknown keys are ignored.

    Raises :class:`DamagedError` when something that is needed is absent or of the wrong kind.
    """
    if not isinstance(data, dict):
        raise DamagedError(f"{kind.__name__} is not an object")
    hints = _hints(kind)  # type: ignore[arg-type] # a class is hashable
    values = {name: _value(hint, data[name], name) for name, hint in hints.items() if name in data}
    try:
        return kind(**values)
    except TypeError as error:
        raise DamagedError(str(error)) from error


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {entry.name: hints[entry.name] for entry in fields(kind)}


def _value(hint: Any, data: object, name: str) -> object:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if data is None:
            return None
        return _value(next(kind for kind in get_args(hint) if kind is not type(None)), data, name)
    if origin is tuple:
        if not isinstance(data, list):
            raise DamagedError(f"{name} is not a list")
        return tuple(_value(get_args(hint)[0], item, name) for item in data)
    if origin is Literal:
        if data not in get_args(hint):
            raise DamagedError(f"{name} is {data!r}")
        return data
    if is_dataclass(hint):
        return from_json(hint, data)  # type: ignore[arg-type]
    accepted = (int, float) if hint is float else (hint,)
    if not isinstance(data, accepted) or (isinstance(data, bool) and hint is not bool):
        raise DamagedError(f"{name} is {data!r}, not {getattr(hint, '__name__', hint)}")
    return data
