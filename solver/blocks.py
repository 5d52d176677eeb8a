"""Sketches of a model's blocks: which intermediate results they make, in which order.

Everything follows from the names and shapes of a block's tensors, so that a new architecture made
of known parts needs no code. Widths are f32 values a token. See :mod:`solver.graph`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from solver import feed, latent, mixers, sparse
from solver.graph import LARGEST_RESULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from solver.graph import Graph
    from solver.model import Block, Model

_NOTHING: Final[tuple[tuple[int, ...], int]] = ((), 0)


class Sketch:
    """Adds blocks to a graph.

    ``tokens`` is the ubatch, ``sequences`` how many share it, in how many ``streams`` of the
    cache; ``rotated``: a quantized cache needs keys, queries and values rotated; ``cells`` are the
    rows that attention sees, by whether a block's attention is sliding.
    """

    def __init__(
        self,
        graph: Graph,
        model: Model,
        *,
        tokens: int,
        sequences: int,
        streams: int,
        rotated: bool,
        flash: bool,
        cells: dict[bool, int],
        device: bool,
    ) -> None:
        self.graph = graph
        self.model = model
        self.tokens = tokens
        self.sequences = sequences
        self.streams = streams
        self.masks: dict[bool, int] = {}
        self.rotated = rotated
        self.flash = flash
        self.cells = cells
        self.device = device
        self.host_experts = self.host_block = False
        self.host_bytes = 0
        self.indexer_rotated = rotated or model.indexer_rotated
        self.selected: int | None = None
        self.first_value: int | None = None
        self.wide_mask: int | None = None
        self.decay: int | None = None
        self.zeros: list[int] = []
        self.more_masks: dict[str, int] = {}
        self.compressed_cells: dict[str, int] = {}
        self.key_bytes: Callable[[int], int] = lambda values: 2 * values
        self.per_layer: int | None = None
        self.per_layer_input = self.embedding = 0
        self.masks_behind: int | None = None
        self.make_masks: Callable[[], dict[bool, int]] | None = None
        self.reshaped = False
        self.block: Block
        self.tensors: dict[str, tuple[tuple[int, ...], int]] = {}

    # -- helpers ---------------------------------------------------------------------------

    def rows(self, name: str) -> int:
        """Width of what a weight produces; 0 without it."""
        found = self.tensors.get(f"{name}.weight")
        return found[0][1] if found and len(found[0]) > 1 else 0

    def has(self, name: str) -> bool:
        return f"{name}.weight" in self.tensors

    def make(self, width: int, *sources: int) -> int:
        return self.graph.add(4 * width * self.tokens, *sources)

    def over(self, width: int, *sources: int) -> int:
        return self.graph.add(4 * width * self.tokens, *sources, in_place=True)

    def project(self, name: str, *sources: int) -> int:
        """A multiplication by a weight."""
        return self.multiply(name, self.rows(name), *sources)

    def multiply(self, name: str, width: int, *sources: int) -> int:
        """The same, of another width; a weight that lies on the host is copied over first."""
        if not self.host_block and not (self.host_experts and "_exps" in name):
            return self.make(width, *sources)
        weight = self.graph.add(self.tensors.get(f"{name}.weight", _NOTHING)[1])
        behind = self.masks_behind == self.block.index and "_down" in name
        if self.make_masks is not None and behind:
            self.masks, self.make_masks = self.make_masks(), None
        return self.make(width, weight, *sources)

    # -- one block -------------------------------------------------------------------------

    def add(
        self, block: Block, residual: int, *, host_experts: bool = False, host_block: bool = False
    ) -> int:
        """The block's output. What lies on the host is copied to the device to be used there."""
        self.block = block
        self.host_experts, self.host_block = host_experts, host_block
        self.tensors = {name: (shape, size) for name, shape, size in block.tensors}
        width = self.model.n_embd
        if self.has("hc_attn_fn"):
            return self._add_hyper(residual)
        has_attention_norm = self.has("attn_norm") or self.has("attn_norm_2")
        norm = self.make(width, residual) if has_attention_norm else residual
        self.reshaped = block.recurrent and not self.has("attn_output")
        mixed = self._mix(norm)
        parallel = self._has_ffn() and self._is_parallel()
        if mixed is None or parallel:
            joined, before = residual, norm
        else:
            # A recurrent mixer's result is reshaped: the sum goes over the residual instead.
            first, second = (residual, mixed) if self.reshaped else (mixed, residual)
            joined = self.over(width, first, second)
            before = joined
        if not self._has_ffn():
            return joined
        if mixed is not None and not parallel and self._has_ffn_norm():
            before = self.make(width, joined)
        out = feed.feed_forward(self, before)
        if parallel and mixed is not None:
            out = self.over(width, out, mixed)
        out = self.over(width, out, joined)
        return self._add_per_layer(out) if self.has("inp_gate") else out

    def _add_hyper(self, streams: int) -> int:
        """Hyper-connections: several residual streams, mixed into one for each half and back."""
        width, count = self.model.n_embd, self.model.hyper_connections
        combined = max(self.rows("hc_attn_fn") - 2 * count, 0)
        for half in (self._mix, lambda norm: feed.feed_forward(self, norm)):
            normed = self.make(width * count, streams)
            weights = self.project("hc_attn_fn", normed)
            first = self.model.sparse == "compressed" and half != self._mix
            back = (self.make(count, weights), self.make(combined, weights)) if first else ()
            mixed = self.make(width, streams, self.make(count, weights))
            out = half(self.over(width, mixed))
            back = back or (self.make(count, weights), self.make(combined, weights))
            streams = self.make(width * count, streams, *back, *(() if out is None else (out,)))
        return streams

    def _add_per_layer(self, joined: int) -> int:
        """Gemma's per-layer embeddings; the table for all blocks is made in the first of them."""
        model, width = self.model, self.rows("inp_gate")
        gate = self.over(width, self.make(width, joined))
        if self.per_layer is None:
            table = model.per_layer_embedding * (model.n_layer - model.n_layer_nextn)
            projected = self.make(table, self.make(table, self.embedding))
            self.per_layer = self.make(table, projected, self.per_layer_input)
        out = self.make(model.n_embd, self.over(width, gate, self.per_layer))
        return self.over(model.n_embd, joined, out)

    def _has_ffn(self) -> bool:
        return any(
            self.has(name)
            for name in ("ffn_up", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down", "channel_mix_key")
        )

    def _has_ffn_norm(self) -> bool:
        return any(
            self.has(name)
            for name in ("ffn_norm", "post_attention_norm", "pre_ffw_norm", "attn_post_norm")
        )

    def _is_parallel(self) -> bool:
        """Attention and feed-forward read the same norm."""
        return not any(
            self.has(name)
            for name in ("ffn_norm", "post_attention_norm", "post_ffw_norm", "attn_output_norm")
        )

    def _mix(self, norm: int) -> int | None:
        """Attention or what takes its place; ``None`` for a block without."""
        if self.model.sparse == "compressed" and self.mask():
            return sparse.compressed_attention(self, norm)
        if self.has("attn_kv_a_mqa"):
            return latent.latent_attention(self, norm)
        if self.has("ssm_conv1d") and self.has("attn_qkv"):
            return mixers.delta_net(self, norm)
        if self.has("ssm_conv1d_q"):
            return mixers.kimi_delta(self, norm)
        if self.has("ssm_in") and not self.has("attn_output"):
            return mixers.mamba(self, norm)
        if self.has("ssm_in"):
            return self.over(self.model.n_embd, mixers.mamba(self, norm), self._attention(norm))
        if self.has("shortconv.in_proj"):
            return mixers.short_convolution(self, norm)
        if self.block.recurrent and self.has("attn_qkv"):
            return mixers.lightning(self, norm)
        if self.has("time_mix_key") or self.has("time_mix_receptance"):
            return mixers.time_mix(self, norm)
        if self.has("attn_output") or self.has("attn_q") or self.has("attn_qkv"):
            return self._attention(norm)
        return None

    # -- attention -------------------------------------------------------------------------

    def attend(
        self,
        query: int,
        width: int,
        masks: Callable[[], tuple[int, ...]],
        *,
        rows: int = 0,
        copied_bytes: int = 0,
    ) -> int:
        """Scores over the cache and their sum; ``width`` is what comes out.

        ``rows`` are those that a token sees, 0: the block's cache. Without flash attention,
        ``copied_bytes`` of values are turned first (latent attention reads them from the keys), and
        the masks are made after the scores.
        """
        block = self.block
        if self.flash:
            return self.make(width, query, *masks())
        scores = block.n_head * (rows or self.cells[block.sliding])
        if self.device and 4 * scores * self.tokens >= LARGEST_RESULT:
            self.host_bytes = max(self.host_bytes, 4 * self.tokens * (scores + 2 * width))
            return self.make(width, query)
        values = (self.graph.add(copied_bytes),) if copied_bytes else ()
        product = self.make(scores, query)
        soft = self.over(scores, product, *masks())
        return self.make(width, self.make(width, soft, *values))

    def _masks(self, norm: int) -> tuple[int, ...]:
        """What hides rows from attention: the mask, or what was made of it for this block."""
        selects = self.has("indexer.q_proj") and bool(self.mask())
        together = self.streams == 1 and self.sequences > 1  # then the engine does without
        if selects and self.model.sparse == "blocks" and self.flash and not together:
            return (sparse.block_mask(self),)
        if selects and self.model.sparse == "experimental":
            return (sparse.scores_by_head(self, norm),)
        return self.mask()

    def mask(self) -> tuple[int, ...]:
        mask = self.masks.get(self.block.sliding, self.masks.get(False))
        return () if mask is None else (mask,)

    def _attention(self, norm: int) -> int:
        block = self.block
        out_width = self.tensors.get("attn_output.weight", ((block.n_head * block.head_v,), 0))[0][
            0
        ]
        gated = False
        if self.has("attn_qkv"):
            both = self.project("attn_qkv", norm)
            query_width = block.n_head * block.head_k
            key_width = block.n_head_kv * block.head_k
            query = self._turned(query_width, self.make(query_width, both))
            turned = self._turned(key_width, both)
            self.graph.add(0, self._turned(key_width, self.make(key_width, both)), turned)
            full = both
        else:
            query_width = self.rows("attn_q") or block.n_head * block.head_k
            gated = query_width == 2 * block.n_head * block.head_k
            full = query = self.multiply("attn_q", query_width, norm)
            if gated:
                query_width //= 2
                query = self.make(query_width, full)
            value: int | None = None
            key: int | None = None
            value_width = self.rows("attn_v") or self.rows("attn_k")
            key_width = self.rows("attn_k")
            if self.device:  # the device's driver brings independent multiplications together
                value = self.multiply("attn_v", value_width, norm) if value_width else None
                key = self.project("attn_k", norm) if key_width else None
            query = self._rotate("attn_q_norm", query_width, query)
            if value_width:
                value = self.multiply("attn_v", value_width, norm) if value is None else value
                value = self.make(value_width, value) if self.rotated else value
            if key_width:
                key = self.project("attn_k", norm) if key is None else key
                key = self._rotate("attn_k_norm", key_width, key)
            self.graph.add(0, *(item for item in (key, value) if item is not None))
        gate = self.make(query_width, full) if gated and self.device else None
        out = self.attend(query, out_width, lambda: self._masks(norm))
        if self.rotated:
            out = self.make(out_width, out)
        if gated:
            gate = self.make(query_width, full) if gate is None else gate
            out = self.over(out_width, out, self.over(query_width, gate))
        elif self.has("attn_gate"):
            gate = self.project("attn_gate", norm)
            out = self.over(out_width, out, gate)
        return self.multiply("attn_output", self.model.n_embd, out)

    def _rotate(self, norm: str, width: int, projected: int) -> int:
        """Norm, position and (for a quantized cache) rotation of a query or key.

        A norm is not written over its reshaped input, on a device no position is either.
        """
        if self.has(norm) or self.device:
            projected = self.make(width, projected)
        return self._turned(width, projected)

    def _turned(self, width: int, source: int) -> int:
        """Rotated as a quantized cache needs it."""
        return self.make(width, source) if self.rotated else source

    def position(self, width: int, source: int) -> int:
        """An operation on a reshaped result: written over it by the host, not by a device."""
        return self.make(width, source) if self.device else self.over(width, source)
