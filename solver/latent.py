"""Sketches of multi-head latent attention. See :mod:`solver.blocks`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from solver import sparse

if TYPE_CHECKING:
    from solver.blocks import Sketch


def latent_attention(sketch: Sketch, norm: int) -> int:
    """Multi-head latent attention, absorbed (compressed cache) or not."""
    block, model = sketch.block, sketch.model
    selects = model.sparse == "selected" and not block.sliding and bool(sketch.mask())
    if selects and sketch.has("indexer.proj"):
        sparse.indexer_key(sketch, norm)
    if sketch.has("attn_q_a"):
        residual = sketch.over(sketch.rows("attn_q_a"), sketch.project("attn_q_a", norm))
        query_width = sketch.rows("attn_q_b")
        query = sketch.project("attn_q_b", residual)
    else:
        query_width = sketch.rows("attn_q")
        query = residual = sketch.project("attn_q", norm)
    latent = sketch.tensors["attn_kv_a_norm.weight"][0][0]
    compressed_width = sketch.rows("attn_kv_a_mqa")
    rope = compressed_width - latent
    value_width = block.n_head * (model.head_v_mla if model.mla else block.head_v)
    if sketch.has("attn_k_b") and model.mla:
        plain = model.is_recurrent  # without positions; the driver's order differs then
        early = sketch.project("attn_kv_a_mqa", norm) if plain and sketch.device else None
        rope_q = sketch.make(block.n_head * rope, query)
        absorbed = sketch.make(block.n_head * latent, query)
        whole = sketch.make(block.n_head * (latent + rope), absorbed, rope_q)
        compressed = sketch.project("attn_kv_a_mqa", norm) if early is None else early
        key_norm = sketch.make(latent, compressed)
        # Without positions the key's second part is still in the compressed row.
        key_rope = compressed if plain else sketch.make(rope, compressed)
        key = sketch.make(compressed_width, key_norm, key_rope)
        sketch.graph.add(0, key, key_norm)
        if model.sparse == "pooled" and not block.sliding:
            if sketch.has("indexer.proj") or sketch.selected is None:
                sketch.selected = sparse.pooled_selection(sketch, norm, residual)
            out = sketch.make(block.n_head * latent, whole, sketch.selected)
        elif selects:
            mask = _selection(sketch, norm, residual)
            out = sketch.make(block.n_head * latent, whole, mask)
        else:
            out = sketch.attend(whole, block.n_head * latent, norm)
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
        out = sketch.attend(query, value_width, norm)
    if sketch.has("attn_gate"):
        out = sketch.over(value_width, out, sketch.project("attn_gate", norm))
    return sketch.make(model.n_embd, out)


def _selection(sketch: Sketch, norm: int, residual: int) -> int:
    """The mask of the rows that the indexer selected, here or in an earlier block."""
    rows = sparse.rows_of(sketch)
    filled = None
    if sketch.device:
        filled = sketch.graph.add(sketch.graph.size_of(sketch.mask()[0]), *sketch.mask())
    zeros = (
        sketch.zeros.pop() if sketch.zeros else sketch.make(min(sketch.model.indexer_top_k, rows))
    )
    if sketch.has("indexer.proj") or sketch.selected is None:
        sketch.selected = sparse.select(sketch, norm, residual)
    return sparse.selected_mask(sketch, zeros, sketch.selected, filled=filled)
