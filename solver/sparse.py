"""Sketches of attention that first selects which cached rows to look at. See :mod:`solver.blocks`.

An indexer scores every cached row for every token; the best ``top_k`` survive in a copy of the
mask. These tables are as large as the mask, or larger, so they decide the buffer's size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from solver.graph import LARGEST_RESULT

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def select(sketch: Sketch, norm: int, query: int, filled: int | None) -> tuple[int, int]:
    """Scores of all rows, and the rows selected: i32, ``top_k`` a token; also the hiding mask.

    That is made while the rows are selected, if it is not there yet.
    """
    model, rows = sketch.model, rows_of(sketch)
    width = model.indexer_heads * model.indexer_head_size
    chosen = min(model.indexer_top_k, rows)
    scored = sketch.make(width, query)
    if sketch.indexer_rotated:
        scored = sketch.make(width, scored)
    scored = sketch.make(width, scored)
    weights = sketch.position(model.indexer_heads, sketch.make(model.indexer_heads, norm))
    mask = sketch.more_masks.get("indexer")
    scores = sketch.make(rows, scored, weights, *(sketch.mask() if mask is None else (mask,)))
    if sketch.device and sketch.indexer_rotated:
        filled = filled or fill_mask(sketch)
    best = sketch.make(chosen, scores)
    if sketch.device:
        filled = filled or fill_mask(sketch)
    selection = sketch.make(chosen, best)
    return selection, filled or fill_mask(sketch)


def fill_mask(sketch: Sketch) -> int:
    """A mask that hides everything, to be opened where rows are selected."""
    return sketch.graph.add(sketch.graph.size_of(sketch.mask()[0]), *sketch.mask())


def selected_mask(sketch: Sketch, zeros: int, selection: int, filled: int) -> int:
    """A copy of the mask that hides everything that was not selected."""
    mask_bytes = sketch.graph.size_of(sketch.mask()[0])
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
    if sketch.has("attn_compressor_kv"):
        out = _attend_compressed(sketch, norm, residual, query)
    else:
        out = sketch.attend(query, width, sketch.mask)
    out = sketch.position(width, out)
    shape = sketch.tensors["attn_output_a.weight"][0]
    low = shape[1] * (shape[2] if len(shape) > 2 else 1)
    return sketch.make(model.n_embd, sketch.make(low, sketch.make(low, out)))


def _attend_compressed(sketch: Sketch, norm: int, residual: int, query: int) -> int:
    """Raw rows and the compressed ones before them, brought together with their masks."""
    graph, selects = sketch.graph, sketch.has("indexer.proj")
    kind = "selected" if selects else "all"
    rows = sketch.cells[True] + sketch.compressed_cells[kind]
    key_bytes = sketch.key_bytes(sketch.block.head_k * rows) * sketch.sequences
    keys = 0
    if not (selects and sketch.flash):
        keys = graph.add(key_bytes)

    def masks() -> tuple[int, ...]:
        all_keys, compressed = keys, sketch.more_masks[kind]
        if selects:
            made, compressed = _selected_compressed(sketch, norm, residual, key_bytes)
            all_keys = made or keys
        size = graph.size_of(sketch.mask()[0]) + graph.size_of(compressed)
        return all_keys, graph.add(size, *sketch.mask(), compressed)

    width = sketch.rows("attn_q_b")
    return sketch.attend(query, width, masks, rows=rows, copied_bytes=key_bytes)


def _selected_compressed(
    sketch: Sketch, norm: int, residual: int, key_bytes: int
) -> tuple[int, int]:
    """The keys and the mask of the rows that the indexer selected."""
    model, graph = sketch.model, sketch.graph
    mask = sketch.more_masks["selected"]
    rows = sketch.compressed_cells["selected"]
    chosen = min(model.indexer_top_k, rows)
    zeros = sketch.zeros.pop(0) if sketch.zeros else sketch.make(chosen // 2)
    width = model.indexer_heads * model.indexer_head_size
    # A device's driver brings multiplications and the hiding mask forward.
    several = sketch.sequences > 1
    early = sketch.device and not sketch.rotated and not several
    keys = 0

    def add_keys(*, here: bool) -> int:
        return graph.add(key_bytes) if here and sketch.flash else keys

    keys = add_keys(here=not sketch.device)
    scored = sketch.make(width, residual)
    keys = add_keys(here=sketch.device and not several)
    scored = sketch.make(width, scored)
    weights = sketch.make(model.indexer_heads, norm)
    keys = add_keys(here=sketch.device and several)
    scored = sketch.make(width, scored)
    filled = graph.add(graph.size_of(mask), mask) if early else 0
    scores = sketch.make(rows, scored, weights, sketch.more_masks["indexer"])
    if sketch.device and not early:
        filled = graph.add(graph.size_of(mask), mask)
    selection = sketch.make(chosen, sketch.make(chosen, scores))
    if not sketch.device:
        filled = graph.add(graph.size_of(mask), mask)
    graph.add(0, filled, zeros, selection)
    return keys, graph.add(graph.size_of(mask), filled, mask)


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


def pool_keys(sketch: Sketch, norm: int) -> Iterator[None]:
    """GLM-5 next: the keys of new tokens are cached, and all pools' means taken anew.

    Yields where a device's driver brings multiplications forward: the first of the query, the
    second, and those behind it.
    """
    graph, size = sketch.graph, sketch.model.indexer_head_size
    packed = sketch.make(2 * size, sketch.make(size, norm), sketch.make(size, norm))
    graph.add(0, sketch.make(3 * size, packed, sketch.make(size)))
    each = 4 * size * pools_of(sketch) * sketch.model.indexer_pool
    rows = graph.add(2 * each)
    yield
    gates = graph.add(each, rows)
    if sketch.device:
        keys = graph.add(each, rows)
        gates = graph.add(each, gates)
        yield
        shares = graph.add(each, gates)
        yield
    else:
        shares = graph.add(each, graph.add(each, gates), in_place=True)
        keys = graph.add(each, rows)
    weighted = graph.add(each, keys, shares, in_place=True)
    graph.add(0, graph.add(4 * size * pools_of(sketch), weighted))


def index_query(sketch: Sketch, query: int) -> int:
    """What every head of the indexer asks for."""
    return sketch.make(sketch.model.indexer_heads * sketch.model.indexer_head_size, query)


def pooled_selection(sketch: Sketch, norm: int, query: int, asked: int | None) -> int:
    """GLM-5 next: the pools of rows with the best score, and the mask that only they pass.

    The mask has a spare row for every selected one, where those that are hidden anyway go.
    """
    model, graph = sketch.model, sketch.graph
    pools = scored_pools(pools_of(sketch))
    rows = selected_rows(pools_of(sketch), model.indexer_top_k, model.indexer_pool)
    chosen = min(pools, model.indexer_top_k // model.indexer_pool)
    scored = index_query(sketch, query) if asked is None else asked
    keys = graph.add(4 * model.indexer_head_size * pools)
    weights = sketch.make(model.indexer_heads, norm)
    scores = sketch.make(pools, scored, keys, weights, sketch.more_masks["pools"])
    best = sketch.make(chosen, scores)
    copied = sketch.make(chosen, best)
    order = sketch.make(chosen, sketch.make(chosen, scores, best))
    spare_rows = graph.add(4 * rows) if sketch.device else 0
    ordered = sketch.make(chosen, sketch.make(chosen, sketch.make(chosen, copied, order)))
    members = sketch.make(rows, sketch.make(model.indexer_pool * chosen, ordered))
    size = graph.size_of(sketch.mask()[0])
    wider = size + size * rows // rows_of(sketch)
    gather = sketch.more_masks["gather"]
    if sketch.device:  # whose driver changes the order
        numbers = sketch.make(rows, members)
        zeros = sketch.make(rows)
        moved = sketch.over(rows, numbers, sketch.over(rows, gather), spare_rows)
        hidden = graph.add(wider, moved)
        targets = sketch.make(rows, moved)
    else:
        zeros = sketch.make(rows, members)
        numbers = sketch.make(rows, members)
        targets = sketch.make(rows, sketch.over(rows, numbers, sketch.make(rows, gather)))
        hidden = graph.add(wider)
    graph.add(0, hidden, zeros, targets)
    return graph.add(size, hidden, *sketch.mask())


def pools_of(sketch: Sketch) -> int:
    """Pools of all sequences: each may have filled every cell that it sees."""
    return sketch.sequences * rows_of(sketch) // sketch.model.indexer_pool


def scored_pools(pools: int) -> int:
    """With at least one that stands for nothing, in whole groups of 64."""
    return -(-(pools + 1) // 64) * 64


def selected_rows(pools: int, top_k: int, pool: int) -> int:
    """Rows of the selected pools, with those of a pool that is not complete yet."""
    return pool * min(scored_pools(pools), top_k // pool) + pool - 1


def block_mask(sketch: Sketch) -> int:
    """MiniMax-M3: a mask for each group of heads, from the blocks of rows that it selected."""
    mask = _block_mask(sketch)
    if sketch.streams > 1 and not sketch.device:
        sketch.graph.add(0, mask)
        mask = _block_mask(sketch)  # of the next stream, beside the wide mask
    return mask


def _block_mask(sketch: Sketch) -> int:
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
