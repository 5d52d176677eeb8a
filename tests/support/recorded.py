"""Headers of real and of upstream's tiny models, with what the engine said that it needs for them.

Written by ``benchmarks/memory_accuracy.py record``; ``headers`` are published models (their
tensor data were never there), ``shapes`` are further ones whose sizes were written from memory,
``zoo`` is one or two of every architecture that the engine knows.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llama_ai.gguf.facts import ModelFacts, facts_of
from llama_ai.gguf.header import Header, Shard
from llama_ai.gguf.parse import Skipped, TensorInfo
from llama_ai.gguf.quants import TENSOR_TYPES
from llama_ai.gguf.solver_model import model_from_facts
from solver.model import Model
from solver.types import Layout

_FOLDER = Path(__file__).parent.parent / "unit" / "headers"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A model, and layouts of it beside the engine's figures (bytes by side and kind)."""

    name: str
    facts: ModelFacts
    model: Model
    truth: tuple[tuple[Layout, dict[str, int]], ...]


@cache
def recorded(kind: str) -> tuple[Recorded, ...]:
    """All models of ``headers``, ``shapes`` or ``zoo``."""
    found = []
    for name, entry in json.loads((_FOLDER / f"{kind}.json").read_text()).items():
        facts = facts_of(_header(name, entry))
        truth = tuple((Layout(**{"ctx_size": 0, **row[0]}), row[1]) for row in entry["truth"])
        model = model_from_facts(facts)
        found.append(Recorded(name=name, facts=facts, model=model, truth=truth))
    return tuple(found)


def model(kind: str, name: str) -> Recorded:
    """One of them, by the start of its name."""
    return next(item for item in recorded(kind) if item.name.startswith(name))


def _header(name: str, entry: dict[str, Any]) -> Header:
    tensors = []
    for template, shape, kind, runs in entry["tensors"]:
        storage = TENSOR_TYPES[kind]
        elements = 1
        for dim in shape:
            elements *= dim
        size = elements // storage.block_elements * storage.block_bytes
        for first, last in runs:
            for block in range(first, last + 1):
                full = template if block < 0 else f"blk.{block}.{template}"
                tensors.append(TensorInfo(full, tuple(shape), kind, 0, size, 0))
    shard = Shard(
        path=Path(f"{name}.gguf"),
        size_bytes=entry["size_bytes"],
        mtime_ns=0,
        alignment=32,
        data_offset=0,
    )
    kv = {key: _value(value) for key, value in entry["kv"].items()}
    return Header(version=3, big_endian=False, kv=kv, tensors=tuple(tensors), shards=(shard,))


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return Skipped(*value["skipped"]) if "skipped" in value else _alike(*value["alike"])
    return tuple(value) if isinstance(value, list) else value


def _alike(value: Any, count: int) -> tuple[Any, ...]:
    return (value,) * count
