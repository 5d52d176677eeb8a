"""Sketches of attention that first selects which cached rows to look at. See :mod:`solver.blocks`.

An indexer scores every cached row for every token; the best ``top_k`` survive in a copy of the
mask. These tables are as large as the mask, or larger, so they decide the buffer's size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.blocks import Sketch


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
    residual = sketch.over(sketch.rows("attn_q_a"), sketch.make(sketch.rows("attn_q_a"), norm))
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
