"""Sketches of multi-head latent attention. See :mod:`solver.blocks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from solver import sparse

if TYPE_CHECKING:
    from solver.blocks import Sketch


def latent_attention(sketch: Sketch, norm: int) -> int:
    """Multi-head latent attention, absorbed (compressed cache) or not."""
    block, model = sketch.block, sketch.model
    indexes = sketch.has("indexer.proj") and not block.sliding and bool(sketch.mask())
    if indexes and model.sparse == "selected":
        sparse.indexer_key(sketch, norm)
    pools = indexes and model.sparse == "pooled"
    steps = iter(sparse.pool_keys(sketch, norm) if pools else ())
    for _ in steps:
        if sketch.device:
            break
    if sketch.has("attn_q_a"):
        residual = sketch.over(sketch.rows("attn_q_a"), sketch.project("attn_q_a", norm))
        next(steps, None)
        query_width = sketch.rows("attn_q_b")
        query = sketch.project("attn_q_b", residual)
    else:
        query_width = sketch.rows("attn_q")
        query = residual = sketch.project("attn_q", norm)
    next(steps, None)
    latent = sketch.tensors["attn_kv_a_norm.weight"][0][0]
    compressed_width = sketch.rows("attn_kv_a_mqa")
    rope = compressed_width - latent
    value_width = block.n_head * (model.head_v_mla if model.mla else block.head_v)
    if sketch.has("attn_k_b") and model.mla:
        plain = model.is_recurrent  # without positions; the driver's order differs then
        brought = plain and rope and sketch.device
        early = sketch.project("attn_kv_a_mqa", norm) if brought else None
        if rope:
            rope_q = sketch.make(block.n_head * rope, query)
            absorbed = sketch.make(block.n_head * latent, query)
            whole = sketch.make(block.n_head * (latent + rope), absorbed, rope_q)
        else:
            whole = sketch.make(block.n_head * latent, query)
        compressed = sketch.project("attn_kv_a_mqa", norm) if early is None else early
        next(steps, None)
        key_norm = sketch.make(latent, compressed)
        if rope:
            # Without positions the key's second part is still in the compressed row.
            key_rope = compressed if plain else sketch.make(rope, compressed)
            key = sketch.make(compressed_width, key_norm, key_rope)
            sketch.graph.add(0, key, key_norm)
        else:
            sketch.graph.add(0, sketch.over(latent, key_norm))
        rows = sketch.cells[block.sliding] * sketch.streams
        # Without flash attention a device's driver makes the index query before the scores.
        first = pools and sketch.device and not sketch.flash
        asked = sparse.index_query(sketch, residual) if first else None
        out = sketch.attend(
            whole,
            block.n_head * latent,
            lambda: _masks(sketch, norm, residual, asked),
            copied_bytes=rows * sketch.key_bytes(latent),
        )
        if sketch.device and sketch.streams > 1:
            # No device operation multiplies several streams by a matrix a head.
            matrix = sketch.tensors["attn_v_b.weight"][1] if sketch.has("attn_v_b") else 0
            moved = 4 * (block.n_head * latent + value_width) * sketch.tokens + matrix
            sketch.host_bytes = max(sketch.host_bytes, moved)
        out = sketch.make(value_width, sketch.make(value_width, out))
    else:
        query = sketch.over(query_width, query)
        compressed = sketch.project("attn_kv_a_mqa", norm)
        key_norm = sketch.make(latent, compressed)
        both = sketch.project("attn_kv_b", key_norm)
        value = sketch.make(value_width, both)
        key_rope = sketch.make(rope, compressed)
        repeated = sketch.make(block.n_head * rope, key_rope)
        key = sketch.make(block.n_head * block.head_k, both, repeated)
        sketch.graph.add(0, key, value)
        out = sketch.attend(query, value_width, sketch.mask)
    if sketch.has("attn_gate"):
        out = sketch.over(value_width, out, sketch.project("attn_gate", norm))
    return sketch.make(model.n_embd, out)


def _masks(sketch: Sketch, norm: int, residual: int, asked: int | None) -> tuple[int, ...]:
    """What hides rows: the mask, or what was made of it by selecting."""
    kind = sketch.model.sparse
    if sketch.block.sliding or not sketch.mask() or kind not in {"selected", "pooled"}:
        return sketch.mask()
    if kind == "selected":
        return (_selection(sketch, norm, residual),)
    if sketch.has("indexer.proj") or sketch.selected is None:
        sketch.selected = sparse.pooled_selection(sketch, norm, residual, asked)
    return (sketch.selected,)


def _selection(sketch: Sketch, norm: int, residual: int) -> int:
    """The mask of the rows that the indexer selected, here or in an earlier block."""
    model = sketch.model
    selection = None if sketch.has("indexer.proj") else sketch.selected
    # A device's driver brings the hiding mask forward by up to 20 operations: the fewer lie between
    # (one stream, or rotations instead of views), the earlier it comes.
    early = sketch.device and sketch.indexer_rotated and (sketch.streams == 1 or model.n_swa > 0)
    filled = sparse.fill_mask(sketch) if early or selection is not None else None
    chosen = min(model.indexer_top_k, sparse.rows_of(sketch))
    zeros = sketch.zeros.pop(0) if sketch.zeros else sketch.make(chosen)
    if selection is None or filled is None:
        selection, filled = sparse.select(sketch, norm, residual, filled)
        sketch.selected = selection
    return sparse.selected_mask(sketch, zeros, selection, filled)
