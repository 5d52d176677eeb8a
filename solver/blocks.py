"""Sketches of a model's blocks: which intermediate results they make, in which order.

Everything follows from the names and shapes of a block's tensors, so that a new architecture made
of known parts needs no code. Widths are f32 values a token. See :mod:`solver.graph`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from solver import mixers, sparse

if TYPE_CHECKING:
    from collections.abc import Callable

    from solver.graph import Graph
    from solver.model import Block, Model

_LOOK_AHEAD: Final = 20


class Sketch:
    """Adds blocks to a graph.

    ``tokens`` is the ubatch, ``sequences`` how many share it. ``masks`` maps a block's kind of
    attention (sliding or not) to the mask that it reads; ``rotations`` are the matrices that a
    quantized cache needs, or none. ``offloaded`` says whether a tensor's weights lie on the host
    and must be copied to the device for a multiplication.
    """

    def __init__(
        self,
        graph: Graph,
        model: Model,
        *,
        tokens: int,
        sequences: int,
        rotated: bool,
        flash: bool,
        cells: dict[bool, int],
        device: bool,
    ) -> None:
        self.graph = graph
        self.model = model
        self.tokens = tokens
        self.sequences = sequences
        self.masks: dict[bool, int] = {}
        self.rotated = rotated
        self.flash = flash
        self.cells = cells
        self.device = device
        self.host_experts = False
        self.host_bytes = 0
        self.indexer_rotated = rotated or model.indexer_rotated
        self.selected: int | None = None
        self.zeros: list[int] = []
        self.more_masks: dict[str, int] = {}
        self.compressed_cells: dict[str, int] = {}
        self.key_bytes: Callable[[int], int] = lambda width: 2 * width
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

    def multiply(self, name: str, width: int, *sources: int) -> int:
        """A multiplication by a weight; one that lies on the host is copied over first."""
        if self.host_experts and "_exps" in name:
            weight = self.graph.add(self.tensors[f"{name}.weight"][1])
            if self.make_masks is not None and self.masks_behind == self.block.index:
                if "_down" in name:
                    self.masks, self.make_masks = self.make_masks(), None
            return self.make(width, weight, *sources)
        return self.make(width, *sources)

    # -- one block -------------------------------------------------------------------------

    def add(self, block: Block, residual: int, *, host_experts: bool) -> int:
        """The block's output."""
        self.block = block
        self.host_experts = host_experts
        self.tensors = {name: (shape, size) for name, shape, size in block.tensors}
        width = self.model.n_embd
        if self.has("hc_attn_fn"):
            return self._add_hyper(residual)
        has_attention_norm = self.has("attn_norm") or self.has("attn_norm_2")
        norm = self.make(width, residual) if has_attention_norm else residual
        self.reshaped = block.recurrent and not self.has("attn_output")
        mixed = self._mix(norm)
        parallel = self._is_parallel()
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
        out = self._feed_forward(before)
        if parallel and mixed is not None:
            out = self.over(width, out, mixed)
        out = self.over(width, out, joined)
        return self._add_per_layer(out) if self.has("inp_gate") else out

    def _add_hyper(self, streams: int) -> int:
        """Hyper-connections: several residual streams, mixed into one for each half and back."""
        width, count = self.model.n_embd, self.model.hyper_connections
        for half in (self._mix, self._feed_forward):
            normed = self.make(width * count, streams)
            weights = self.make(self.rows("hc_attn_fn"), normed)
            mixed = self.make(width, streams, weights)
            out = half(self.over(width, mixed))
            streams = self.make(width * count, streams, weights, *(() if out is None else (out,)))
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
        if self.model.sparse == "compressed":
            return sparse.compressed_attention(self, norm)
        if self.has("attn_kv_a_mqa"):
            return self._latent_attention(norm)
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
        if self.has("time_mix_key") or self.has("time_mix_receptance"):
            return self.make(6 * self.model.n_embd, norm)
        if self.has("attn_output") or self.has("attn_q") or self.has("attn_qkv"):
            return self._attention(norm)
        return None

    # -- attention -------------------------------------------------------------------------

    def _attend(self, query: int, width: int, *, widest: int | None = None) -> int:
        """Scores over the cache and their sum; ``width`` is what comes out."""
        block = self.block
        if self.flash:
            return self.make(width, query, *self.mask())
        scores = block.n_head * self.cells[block.sliding]
        product = self.make(scores, query)
        soft = self.over(scores, product, *self.mask())
        out = self.make(widest or width, soft)
        return self.make(width, out)

    def mask(self) -> tuple[int, ...]:
        mask = self.masks.get(self.block.sliding, self.masks.get(False))
        return () if mask is None else (mask,)

    def _attention(self, norm: int) -> int:
        block = self.block
        out_width = self.tensors.get("attn_output.weight", ((block.n_head * block.head_v,), 0))[0][
            0
        ]
        gated = False
        if fused := self.rows("attn_qkv"):
            both = self.make(fused, norm)
            query_width = block.n_head * block.head_k
            key_width = block.n_head_kv * block.head_k
            query = self.make(query_width, both)
            key = self.make(key_width, both)
            self.graph.add(0, key, both)
            full = both
        else:
            query_width = self.rows("attn_q") or block.n_head * block.head_k
            gated = query_width == 2 * block.n_head * block.head_k
            full = query = self.make(query_width, norm)
            if gated:
                query_width //= 2
                query = self.make(query_width, full)
            value = key = None
            value_width = self.rows("attn_v") or self.rows("attn_k")
            key_width = self.rows("attn_k")
            if self.device:  # the device's driver brings independent multiplications together
                value = self.make(value_width, norm) if value_width else None
                key = self.make(key_width, norm) if key_width else None
            query = self._rotate("attn_q_norm", query_width, query)
            if value_width:
                value = self.make(value_width, norm) if value is None else value
                value = self.make(value_width, value) if self.rotated else value
            if key_width:
                key = self.make(key_width, norm) if key is None else key
                key = self._rotate("attn_k_norm", key_width, key)
            self.graph.add(0, *(item for item in (key, value) if item is not None))
        gate = self.make(query_width, full) if gated and self.device else None
        out = self._attend(query, out_width)
        if self.rotated:
            out = self.make(out_width, out)
        if gated:
            gate = self.make(query_width, full) if gate is None else gate
            out = self.over(out_width, out, self.over(query_width, gate))
        elif self.has("attn_gate"):
            gate = self.make(self.rows("attn_gate"), norm)
            out = self.over(out_width, out, gate)
        return self.make(self.model.n_embd, out)

    def _rotate(self, norm: str, width: int, projected: int) -> int:
        """Norm, position and (for a quantized cache) rotation of a query or key.

        A norm is not written over its reshaped input, on a device no position is either.
        """
        if self.has(norm) or self.device:
            projected = self.make(width, projected)
        return self.make(width, projected) if self.rotated else projected

    def position(self, width: int, source: int) -> int:
        """An operation on a reshaped result: written over it by the host, not by a device."""
        return self.make(width, source) if self.device else self.over(width, source)

    def _latent_attention(self, norm: int) -> int:
        """Multi-head latent attention, absorbed (compressed cache) or not."""
        block, model = self.block, self.model
        selects = model.sparse == "selected" and not block.sliding
        if selects and self.has("indexer.proj"):
            sparse.indexer_key(self, norm)
        if self.has("attn_q_a"):
            residual = self.over(self.rows("attn_q_a"), self.make(self.rows("attn_q_a"), norm))
            query_width = self.rows("attn_q_b")
            query = self.make(query_width, residual)
        else:
            query_width = self.rows("attn_q")
            query = residual = self.make(query_width, norm)
        latent = self.tensors["attn_kv_a_norm.weight"][0][0]
        compressed_width = self.rows("attn_kv_a_mqa")
        rope = compressed_width - latent
        value_width = block.n_head * (model.head_v_mla if model.mla else block.head_v)
        if self.has("attn_k_b") and model.mla:
            rope_q = self.make(block.n_head * rope, query)
            absorbed = self.make(block.n_head * latent, query)
            whole = self.make(block.n_head * (latent + rope), absorbed, rope_q)
            compressed = self.make(compressed_width, norm)
            key_norm = self.make(latent, compressed)
            key_rope = self.make(rope, compressed)
            key = self.make(compressed_width, key_norm, key_rope)
            self.graph.add(0, key, key_norm)
            if selects:
                mask = self._selection(norm, residual)
                out = self.make(block.n_head * latent, whole, mask)
            else:
                out = self._attend(whole, block.n_head * latent)
            out = self.make(value_width, self.make(value_width, out))
        else:
            query = self.over(query_width, query)
            compressed = self.make(compressed_width, norm)
            key_norm = self.make(latent, compressed)
            both = self.make(self.rows("attn_kv_b"), key_norm)
            value = self.make(value_width, both)
            key_rope = self.make(rope, compressed)
            repeated = self.make(block.n_head * rope, key_rope)
            key = self.make(block.n_head * block.head_k, both, repeated)
            self.graph.add(0, key, value)
            out = self._attend(query, value_width)
        if self.has("attn_gate"):
            out = self.over(value_width, out, self.make(self.rows("attn_gate"), norm))
        return self.make(model.n_embd, out)

    def _selection(self, norm: int, residual: int) -> int:
        """The mask of the rows that the indexer selected, here or in an earlier block."""
        rows = sparse.rows_of(self)
        filled = None
        if self.device:
            filled = self.graph.add(self.graph.size_of(self.mask()[0]), *self.mask())
        zeros = self.zeros.pop() if self.zeros else self.make(min(self.model.indexer_top_k, rows))
        if self.has("indexer.proj") or self.selected is None:
            self.selected = sparse.select(self, norm, residual)
        return sparse.selected_mask(self, zeros, self.selected, filled=filled)

    # -- feed-forward ----------------------------------------------------------------------

    def _feed_forward(self, norm: int) -> int:
        model = self.model
        shared = "_shexp" if self.has("ffn_down_shexp") else ""
        if self.has("ffn_up_exps") or self.has("ffn_gate_up_exps"):
            also_dense = bool(shared) or self.has("ffn_down")
            experts, early = self._experts(norm, shared)
            if not also_dense:
                return experts
            return self.over(model.n_embd, experts, self._dense(norm, shared, early))
        if self.has("channel_mix_key"):
            key = self.make(self.rows("channel_mix_key"), norm)
            return self.make(model.n_embd, self.over(self.rows("channel_mix_key"), key))
        return self._dense(norm, "")

    def _gates(self, norm: int, suffix: str) -> tuple[int, ...]:
        """The multiplications of a dense feed-forward before its activation."""
        up = self.rows(f"ffn_up{suffix}")
        gate = self.rows(f"ffn_gate{suffix}")
        return tuple(self.make(width, norm) for width in (gate, up) if width)

    def _activate(self, gates: tuple[int, ...], suffix: str) -> int:
        inner = self.tensors[f"ffn_down{suffix}.weight"][0][0]
        both = self.rows(f"ffn_up{suffix}") != inner
        return self.make(inner, *gates) if both or len(gates) > 1 else self.over(inner, *gates)

    def _dense(self, norm: int, suffix: str, early: tuple[int, ...] = ()) -> int:
        if len(early) != 1:
            early = (self._activate(early or self._gates(norm, suffix), suffix),)
        return self.make(self.model.n_embd, *early)

    def _experts(self, norm: int, shared: str) -> tuple[int, tuple[int, ...]]:
        """The routed experts' sum, and what was computed of the shared ones on the way.

        A device's driver looks 20 operations ahead for multiplications that could start already,
        so that with few experts the shared ones begin before the routed ones have ended.
        """
        model, used = self.model, self.block.n_expert_used
        inner, width, count = self.tensors["ffn_down_exps.weight"][0]
        ahead = self.device and shared and not self.host_experts
        distance = 2 * used + 4 if ahead else 2 * _LOOK_AHEAD
        scores = self.make(count, norm)
        scores = self.over(count, scores)
        biased = self.make(count, scores) if "exp_probs_b.bias" in self.tensors else scores
        order = self.make(count, biased)
        weights = self.make(used, scores, order)
        early: tuple[int, ...] = ()
        if self.has("ffn_gate_up_exps"):
            gates = (self.multiply("ffn_gate_up_exps", 2 * inner * used, norm, order),)
        else:
            names = [name for name in ("ffn_gate_exps", "ffn_up_exps") if self.has(name)]
            gates = tuple(self.multiply(name, inner * used, norm, order) for name in names)
        if distance < _LOOK_AHEAD:
            early = self._gates(norm, shared)
        if len(gates) > 1 or self.has("ffn_gate_up_exps"):
            out = self.make(inner * used, *gates)
        else:
            out = self.over(inner * used, *gates)
        if early:
            early = (self._activate(early, shared),)
        elif distance - 2 < _LOOK_AHEAD:
            early = self._gates(norm, shared)
        down = self.multiply("ffn_down_exps", width * used, out, order)
        down = self.over(width * used, down, weights)
        total = self.make(width, down)
        for _ in range(used - 2):
            total = self.over(width, total, down)
        if width != model.n_embd:
            total = self.make(model.n_embd, total)
        return total, early
