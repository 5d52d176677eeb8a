"""Attention cache and recurrent state: bytes by side, exactly as the engine allocates them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from solver.model import Cache, Model
    from solver.placement import Placement
    from solver.types import Layout

# Elements and bytes of a block, by KV type.
KV_BLOCKS: Final[dict[str, tuple[int, int]]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}

CELL_PADDING: Final = 256
"""The engine rounds contexts and windows up to this many tokens."""


@dataclass(frozen=True, kw_only=True)
class CacheBytes:
    """Bytes on each side."""

    gpu_kv: int = 0
    host_kv: int = 0
    gpu_state: int = 0
    host_state: int = 0


def row_bytes(kv_type: str, width: int) -> int:
    """Bytes of one row of ``width`` elements."""
    elements, size = KV_BLOCKS[kv_type]
    return -(-width // elements) * size


def padded(tokens: int) -> int:
    """Rounded up to whole cells."""
    return -(-tokens // CELL_PADDING) * CELL_PADDING


def context_per_sequence(layout: Layout) -> int:
    """Tokens that one stream of the cache holds."""
    total = padded(layout.ctx_size)
    return total if layout.kv_unified else padded(total // layout.n_parallel)


def cells(cache: Cache, layout: Layout, n_swa: int, ubatch: int) -> int:
    """Rows of a cache, over all its streams."""
    context = context_per_sequence(layout)
    unified = layout.kv_unified and not cache.per_sequence
    streams = 1 if unified else layout.n_parallel
    if cache.kind == "full" or (cache.kind == "sliding" and layout.swa_full):
        return context * streams
    if cache.kind == "compressed":
        return padded(max(1, -(-context // cache.ratio))) * streams
    window = n_swa * (layout.n_parallel if unified else 1) + ubatch
    return padded(min(context, window)) * streams


def effective_ubatch(layout: Layout) -> int:
    """The engine never computes more at once than a batch, nor than the context."""
    return min(layout.ubatch, layout.batch, padded(layout.ctx_size))


def cache_bytes(
    model: Model, layout: Layout, place: Placement, *, draft: bool = False
) -> CacheBytes:
    """The main context's cache, or with ``draft`` that of the model's own NextN layers."""
    gpu = host = gpu_state = host_state = 0
    ubatch = effective_ubatch(layout)
    # Without flash attention the values are stored transposed, every row as wide as the widest.
    widest = {
        indexer: max((c.v_width for c in model.caches if c.indexer == indexer), default=0)
        for indexer in (False, True)
    }
    transposed = not (layout.flash_attn and model.flash_attn)
    for cache in model.caches:
        if model.blocks[cache.layer].nextn != draft and not cache.always:
            continue
        v_width = widest[cache.indexer] if transposed and cache.v_width else cache.v_width
        size = cells(cache, layout, model.n_swa, ubatch) * (
            row_bytes(layout.kv_type_k, cache.k_width) + row_bytes(layout.kv_type_v, v_width)
        )
        if place.on_gpu(cache.layer):
            gpu += size
        else:
            host += size
    if draft:
        return CacheBytes(gpu_kv=gpu, host_kv=host)
    ahead = layout.mtp_n_max if (place.mtp or layout.draft_file) and model.rollback else 0
    copies = layout.n_parallel * (1 + ahead)
    for state in model.states:
        size = state.sequence_bytes * copies
        if place.on_gpu(state.layer):
            gpu_state += size
        else:
            host_state += size
    return CacheBytes(gpu_kv=gpu, host_kv=host, gpu_state=gpu_state, host_state=host_state)
