"""Sketches of attention that first selects which cached rows to look at. See :mod:`solver.blocks`.

An indexer scores every cached row for every token; the best ``top_k`` survive in a copy of the
mask. These tables are as large as the mask, or larger, so they decide the buffer's size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from solver.graph import LARGEST_RESULT

if TYPE_CHECKING:
    from solver.blocks import Sketch

POOLED_ROWS: Final = 4


def rows_of(sketch: Sketch) -> int:
    """Cached rows that one token sees."""
    return sketch.cells[False]


def indexer_key(sketch: Sketch, norm: int) -> None:
    """The key of each new token goes to the indexer's cache."""
    size = sketch.model.indexer_head_size
    key = sketch.make(size, norm)
    key = sketch.make(size, key)
    key = sketch.position(size, key)
    if sketch.indexer_rotated:
        key = sketch.make(size, key)
    sketch.graph.add(0, key)


def select(sketch: Sketch, norm: int, query: int) -> int:
    """Scores of all rows, and the rows selected: i32, ``top_k`` a token."""
    model, rows = sketch.model, rows_of(sketch)
    width = model.indexer_heads * model.indexer_head_size
    chosen = min(model.indexer_top_k, rows)
    scored = sketch.make(width, query)
    if sketch.indexer_rotated:
        scored = sketch.position(width, scored)
    scored = sketch.make(width, scored)
    weights = sketch.position(model.indexer_heads, sketch.make(model.indexer_heads, norm))
    scores = sketch.make(rows, scored, weights, *sketch.mask())
    return sketch.make(chosen, sketch.make(chosen, scores))


def selected_mask(sketch: Sketch, zeros: int, selection: int, *, filled: int | None = None) -> int:
    """A copy of the mask that hides everything that was not selected."""
    mask_bytes = sketch.graph.size_of(sketch.mask()[0])
    if filled is None:
        filled = sketch.graph.add(mask_bytes, *sketch.mask())
    sketch.graph.add(0, filled, zeros, selection)
    return sketch.graph.add(mask_bytes, filled, *sketch.mask())


def compressed_attention(sketch: Sketch, norm: int) -> int:
    """DeepSeek-V4: a window of raw rows, with compressed rows before it, all or selected."""
    block, model = sketch.block, sketch.model
    selects = sketch.has("indexer.proj")
    if sketch.has("attn_compressor_kv"):
        _compress(sketch, norm, "attn_compressor", block.head_k, overlap=selects)
    if selects:
        _compress(sketch, norm, "indexer_compressor", model.indexer_head_size, overlap=True)
    residual = sketch.over(sketch.rows("attn_q_a"), sketch.project("attn_q_a", norm))
    width = sketch.rows("attn_q_b")
    query = sketch.make(width, sketch.make(width, residual))
    key_width = sketch.rows("attn_kv")
    sketch.graph.add(0, sketch.over(key_width, sketch.make(key_width, norm)))
    mask = sketch.mask()[0]
    if sketch.has("attn_compressor_kv"):
        kind = "selected" if selects else "all"
        compressed = sketch.more_masks[kind]
        rows = sketch.cells[True] + sketch.compressed_cells[kind]
        keys = sketch.graph.add(sketch.key_bytes(block.head_k * rows))
        if selects:
            compressed = _selected_compressed(sketch, norm, residual, compressed)
        size = sketch.graph.size_of
        mask = sketch.graph.add(size(mask) + size(compressed), mask, compressed)
        out = sketch.make(width, query, keys, mask)
    else:
        out = sketch.make(width, query, mask)
    out = sketch.position(width, out)
    shape = sketch.tensors["attn_output_a.weight"][0]
    low = shape[1] * (shape[2] if len(shape) > 2 else 1)
    return sketch.make(model.n_embd, sketch.make(low, sketch.make(low, out)))


def _selected_compressed(sketch: Sketch, norm: int, residual: int, mask: int) -> int:
    model, graph = sketch.model, sketch.graph
    rows = sketch.compressed_cells["selected"]
    chosen = min(model.indexer_top_k, rows)
    zeros = sketch.zeros.pop() if sketch.zeros else sketch.make(chosen // 2)
    filled = graph.add(graph.size_of(mask), mask) if sketch.device else None
    width = model.indexer_heads * model.indexer_head_size
    scored = sketch.position(width, sketch.make(width, residual))
    scored = sketch.make(width, scored)
    weights = sketch.make(model.indexer_heads, norm)
    scores = sketch.make(rows, scored, weights, sketch.more_masks["indexer"])
    selection = sketch.make(chosen, sketch.make(chosen, scores))
    if filled is None:
        filled = graph.add(graph.size_of(mask), mask)
    graph.add(0, filled, zeros, selection)
    return graph.add(graph.size_of(mask), filled, mask)


def _compress(sketch: Sketch, norm: int, name: str, head: int, *, overlap: bool) -> None:
    """Keys and scores of the tokens that make up the next compressed rows, and their mean."""
    width = sketch.rows(f"{name}_kv")
    both = 2 if overlap else 1
    values = _gathered(sketch, sketch.make(width, norm), width, both)
    scores = sketch.over(width, sketch.make(width, norm))
    scores = _gathered(sketch, scores, width, both)
    scores = sketch.over(width * both, scores)
    weighted = sketch.over(width * both, values, scores)
    sketch.graph.add(0, sketch.make(max(head // 4, 1), weighted))


def _gathered(sketch: Sketch, source: int, width: int, both: int) -> int:
    rows = sketch.make(width, source)
    if both == 1:
        return sketch.make(width, sketch.make(width, rows))
    rows = sketch.make(2 * width, sketch.make(width, rows))
    halves = sketch.make(width, rows), sketch.make(width, rows)
    return sketch.make(2 * width, sketch.make(2 * width, *halves))


def pooled_selection(sketch: Sketch, norm: int, query: int) -> int:
    """GLM-5 next: the pools of rows with the best score, and the mask that only they pass."""
    model, graph = sketch.model, sketch.graph
    size = model.indexer_head_size
    pools = pools_of(sketch)
    rows = selected_rows(sketch)
    packed = sketch.make(2 * size, sketch.make(size, norm), sketch.make(size, norm))
    gathered = sketch.make(2 * size, packed)
    logits = sketch.make(size, sketch.make(size, gathered))
    pooled = sketch.make(size, sketch.over(size, sketch.make(size, gathered), logits))
    sketch.graph.add(0, pooled)
    scored = sketch.make(model.indexer_heads * size, query)
    weights = sketch.make(model.indexer_heads, norm)
    scores = sketch.make(pools, scored, weights, sketch.more_masks["pools"])
    best = sketch.make(min(pools, model.indexer_top_k // model.indexer_pool), scores)
    copied = sketch.make(min(pools, model.indexer_top_k // model.indexer_pool), best)
    order = sketch.make(min(pools, model.indexer_top_k // model.indexer_pool), scores, best)
    sorted_ = sketch.make(min(pools, model.indexer_top_k // model.indexer_pool), copied, order)
    indices = sketch.make(rows, sketch.make(rows, sorted_))
    hidden = sketch.make(rows_of(sketch))
    numbers = sketch.make(rows, indices)
    inside = sketch.make(rows, sketch.more_masks["gather"])
    moved = sketch.over(rows, sketch.over(rows, numbers, indices), inside)
    chosen = sketch.make(rows, moved)
    zeros = sketch.make(rows)
    sketch.graph.add(0, zeros, chosen)
    return graph.add(2 * rows_of(sketch) * sketch.tokens, hidden, zeros, *sketch.mask())


def pools_of(sketch: Sketch) -> int:
    """Pools of all sequences: each may have filled every cell that it sees."""
    return sketch.sequences * rows_of(sketch) // sketch.model.indexer_pool


def selected_rows(sketch: Sketch) -> int:
    """Rows of the selected pools, with those of a pool that is not complete yet."""
    pool = sketch.model.indexer_pool
    return pool * min(pools_of(sketch), sketch.model.indexer_top_k // pool) + pool - 1


def block_mask(sketch: Sketch) -> int:
    """MiniMax-M3: a mask for each group of heads, from the blocks of rows that it selected."""
    graph, heads = sketch.graph, sketch.model.indexer_heads
    size = 4 * rows_of(sketch) * heads * (sketch.tokens // sketch.streams)
    if sketch.device:
        _widen(sketch)
    rows = graph.add(size)
    spread = graph.add(size, rows)
    _widen(sketch)
    wide = () if sketch.wide_mask is None else (sketch.wide_mask,)
    hidden = graph.add(size, spread, *wide, in_place=True)
    return graph.add(size // 2, hidden, *wide)


def _widen(sketch: Sketch) -> None:
    """One f32 copy of the mask serves all blocks; a device's driver makes it early."""
    if sketch.wide_mask is None:
        graph = sketch.graph
        sketch.wide_mask = graph.add(2 * graph.size_of(sketch.mask()[0]), *sketch.mask())


def scores_by_head(sketch: Sketch, norm: int) -> int:
    """Qwen4 experimental: every index head scores every pooled row; a mask from the best.

    A device that cannot hold so large a result leaves it to the host, but may copy each head's part
    of it back, as long as that fits.
    """
    model, graph = sketch.model, sketch.graph
    pooled = rows_of(sketch) // POOLED_ROWS
    width = model.indexer_heads * model.indexer_head_size
    hidden = sketch.make(rows_of(sketch))
    query = sketch.make(width, sketch.make(width, norm))
    query = sketch.position(width, query)
    size = 4 * pooled * model.indexer_heads * sketch.tokens
    if sketch.device and size >= LARGEST_RESULT:
        sketch.host_bytes = max(sketch.host_bytes, 2 * size)
        parts = graph.add(size * model.indexer_heads if size <= LARGEST_RESULT else 0)
        graph.add(0, parts, sketch.make(rows_of(sketch)), sketch.make(rows_of(sketch)))
        scores = sketch.make(pooled, query, sketch.more_masks["bias"])
    else:
        each = graph.add(size, graph.add(size, query))
        scores = sketch.make(pooled, each, sketch.more_masks["bias"])
    return graph.add(2 * rows_of(sketch) * sketch.tokens, hidden, scores, *sketch.mask())
