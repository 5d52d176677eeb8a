"""Buffers for intermediate results, by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from solver.blocks import Sketch
from solver.cache import (
    KV_BLOCKS,
    cells,
    context_per_sequence,
    effective_ubatch,
    padded,
    row_bytes,
)
from solver.graph import Graph
from solver.mixers import decay_bytes
from solver.sparse import POOLED_ROWS, scored_pools, selected_rows

if TYPE_CHECKING:
    from solver.model import Block, Model
    from solver.placement import Placement
    from solver.types import Layout

_DEVICE_CHUNK_BYTES: Final = 1 << 30
"""Vulkan allocates no larger buffer at once."""

_SELECTED_RATIO: Final = 4

_SPARE_ROWS: Final = 3
_MOST_SPARE: Final = 16 << 20
"""The order of operations of a few families differs from what we follow, which makes at most this
many embedding-sized results; all get them, because too much is harmless and too little is not."""

_SPARSE_SPARE: Final = {
    ("selected", True): 40,
    ("blocks", True): 24,
    ("experimental", True): 12,
    ("experimental", False): 24,
}
"""Where attention selects what it reads, tables of the mask's size leave gaps that we miss: the
peak's divisor, by kind and by whether it is on the device."""

_COPIED_SPARE: Final = 20
"""The same where the host computes a part, or expert weights are copied over from it."""

_SMALL: Final = 64
"""Bytes a token for the small inputs (ids, positions, cache indices, output rows)."""


def compute_bytes(model: Model, layout: Layout, place: Placement) -> tuple[int, int]:
    """Peak of the intermediate results on the device and on the host."""
    shape = _Shape(model, layout, place)
    if not place.any_on_gpu:
        return 0, shape.whole_on_host()
    return shape.device(), shape.host_beside_device()


def draft_compute_bytes(model: Model, layout: Layout, place: Placement) -> tuple[int, int]:
    """The same for the context of the model's own NextN layers."""
    shape = _Shape(model, layout, place, draft=True)
    if not place.any_on_gpu:
        return 0, shape.whole_on_host()
    return shape.device(), shape.host_beside_device()


class _Shape:
    """Sizes of the inputs of one forward pass, and the passes over the blocks."""

    def __init__(
        self, model: Model, layout: Layout, place: Placement, *, draft: bool = False
    ) -> None:
        self.model = model
        self.layout = layout
        self.place = place
        self.draft = draft
        self.compressed_cells: dict[str, int] = {}
        self.tokens = effective_ubatch(layout)
        self.flash = layout.flash_attn and model.flash_attn
        context = context_per_sequence(layout)
        unified = layout.kv_unified
        self.streams = 1 if unified else layout.n_parallel
        shared = unified and model.sparse != "compressed"
        window = model.n_swa * (layout.n_parallel if shared else 1) + self.tokens
        sliding = context if layout.swa_full else padded(min(context, window))
        self.cells = {False: context, True: sliding}
        kinds = {
            model.blocks[cache.layer].sliding
            for cache in model.caches
            if model.blocks[cache.layer].nextn == draft and not cache.indexer
        }
        if not model.causal:
            self.cells = {False: self.tokens, True: self.tokens}
            kinds = {False, *(block.sliding for block in model.blocks)}
        mask_type = 2 if self.flash else 4
        per_stream = self.tokens // self.streams if model.causal else self.tokens
        self.mask_bytes = {
            kind: mask_type * self.cells[kind] * per_stream * (self.streams if model.causal else 1)
            for kind in sorted(kinds)
        }
        self.more_masks = self._more_masks(context, mask_type) if not draft else {}
        # Without flash attention every value of a token has its own place in the cache.
        widest = max((c.v_width for c in model.caches if not c.indexer), default=0)
        transposed = not self.flash and model.causal
        self.value_places = 8 * widest * self.tokens * len(kinds) if transposed else 0
        quantized = KV_BLOCKS[layout.kv_type_k][0] > 1 or KV_BLOCKS[layout.kv_type_v][0] > 1
        self.host_bytes = 0
        # Four of a kind settle the peak, unless gaps of many sizes are left over.
        # Layers whose experts are copied over to the device to read a prompt.
        self.copied = layout.n_cpu_moe if layout.op_offload else 0
        settled = not (self.copied or model.sparse)
        self.repeats = 4 if settled else len(model.blocks)
        self.rotations = self._rotations() if quantized and model.caches else 0

    def _more_masks(self, context: int, mask_type: int) -> dict[str, int]:
        """Bytes of the masks beside those of the attention cache itself."""
        kind = self.model.sparse
        if kind == "pooled":
            pool = self.model.indexer_pool
            pools = self.layout.n_parallel * context // pool
            chosen = selected_rows(pools, self.model.indexer_top_k, pool)
            return {
                # Their members and those of the new ones (all of them, at worst), and their rows.
                "members": (8 * pool + 12) * pools,
                "pools": 2 * scored_pools(pools) * self.tokens,
                "gather": 4 * chosen * self.tokens,
            }
        if kind == "experimental":
            return {"bias": 4 * (context // POOLED_ROWS) * self.tokens}
        if kind == "selected":
            return {"indexer": self.mask_bytes.get(False, 0) * 2 // mask_type}
        if kind != "compressed":
            return {}
        ratios = {c.ratio for c in self.model.caches if c.kind == "compressed"}
        rows = {ratio: padded(max(1, -(-context // ratio))) for ratio in ratios}
        names = {_SELECTED_RATIO: ("indexer", "selected"), 128: ("all",)}
        self.compressed_cells = {
            name: rows[ratio] for ratio in sorted(ratios) for name in names.get(ratio, ())
        }
        return {
            name: mask_type * count * self.tokens for name, count in self.compressed_cells.items()
        }

    def _rotations(self) -> int:
        """Bytes of the matrices that a quantized cache is rotated by."""
        heads = {self.model.blocks[c.layer].head_k for c in self.model.caches if not c.indexer}
        if len(heads) != 1 or self.model.mla:
            return 0
        size, head = 64, heads.pop()
        if head % size:
            return 0
        while head % (2 * size) == 0:
            size *= 2
        return 4 * (size * size + 64 * 64)

    def _blocks(self) -> list[Block]:
        """A few of each distinct kind, in order."""
        seen: dict[object, int] = {}
        chosen: list[Block] = []
        for block, kind in zip(self.model.blocks, self.model.kinds, strict=True):
            if block.nextn != self.draft:
                continue
            host_block = self.place.any_on_gpu and not self.place.on_gpu(block.index)
            host_experts = block.index < self.layout.n_cpu_moe
            # Of weights that are copied over, the bytes count too.
            copied = tuple(
                size if host_block or "_exps" in name else 0
                for name, _, size in (block.tensors if host_block or host_experts else ())
            )
            key = (kind, host_block, host_experts, copied)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= self.repeats:
                chosen.append(block)
        return chosen

    def _zeros(self, graph: Graph) -> list[int]:
        """Tables of zeros that selecting attention needs, one a block, all from the start."""
        model = self.model
        if model.sparse == "selected":
            count = sum(1 for b in model.blocks if b.nextn == self.draft and not b.sliding)
            size = 4 * min(model.indexer_top_k, self.cells[False])
        elif "selected" in self.compressed_cells:
            count = sum(1 for c in model.caches if c.ratio == _SELECTED_RATIO) // 2
            size = 2 * min(model.indexer_top_k, self.compressed_cells["selected"])
        else:
            return []
        return [graph.input(size * self.tokens) for _ in range(count)]

    def _embedding(self) -> int:
        return 4 * self.model.n_embd * self.tokens

    def _with_spare(self, peak_bytes: int, *, on_gpu: bool) -> int:
        spare = min(_SPARE_ROWS * self._embedding(), _MOST_SPARE)
        divisor = _SPARSE_SPARE.get((self.model.sparse or "", on_gpu))
        if divisor is None and on_gpu and (self.copied or self.host_bytes):
            divisor = _COPIED_SPARE
        return peak_bytes + spare + (peak_bytes // divisor if divisor else 0)

    def _sketch(self, graph: Graph, *, on_gpu: bool) -> Sketch:
        sketch = Sketch(
            graph,
            self.model,
            tokens=self.tokens,
            sequences=self.layout.n_parallel,
            streams=self.streams,
            rotated=self.rotations > 0,
            flash=self.flash,
            cells=self.cells,
            device=on_gpu,
        )
        sketch.key_bytes = lambda values: row_bytes(self.layout.kv_type_k, values)
        return sketch

    def _copied_cache_bytes(self) -> int:
        """Keys and values of a block on the host, copied to the device that computes with them."""
        layout, sizes = self.layout, [0]
        for cache in self.model.caches:
            if not self.place.on_gpu(cache.layer) and not cache.indexer:
                row = row_bytes(layout.kv_type_k, cache.k_width)
                # Latent attention reads its values from the keys, which are then copied twice.
                row += row_bytes(layout.kv_type_v, cache.v_width) if cache.v_width else row
                sizes.append(row * cells(cache, layout, self.model.n_swa, self.tokens))
        # One of the two is often copied again before the first copy is free.
        again = max(sizes) // 2 if self.model.mla else min(max(sizes), _MOST_SPARE)
        return max(sizes) + again

    def _inputs(self, graph: Graph) -> dict[str, int]:
        return {name: graph.input(size) for name, size in self.more_masks.items()}

    def _masks(self, graph: Graph) -> dict[bool, int]:
        return {kind: graph.input(size) for kind, size in self.mask_bytes.items()}

    def _per_layer_input(self) -> int:
        """Bytes of the per-layer embeddings of a ubatch, gathered on the host."""
        model = self.model
        layers = model.n_layer - model.n_layer_nextn
        return 4 * model.per_layer_embedding * layers * self.tokens

    def _decay(self) -> int:
        """A table that linear attention (MiniMax-01) reads."""
        heads = [
            block.n_head
            for block in self.model.blocks
            if block.recurrent
            and any(name == "attn_qkv.weight" for name, _, _ in block.tensors)
            and not any(name.startswith("ssm_conv1d") for name, _, _ in block.tensors)
        ]
        return decay_bytes(heads[0], self.tokens, self.layout.n_parallel) if heads else 0

    def _positions(self) -> int:
        """Learned position embeddings are gathered on the host, too."""
        return self._embedding() if self.model.learned_positions else 0

    def _walk(self, sketch: Sketch, start: int, *, on_gpu: bool) -> None:
        """All blocks, then the output."""
        graph, model = sketch.graph, self.model
        current = start
        if model.hyper_connections:
            current = graph.add(model.hyper_connections * self._embedding(), start)
        sketch.compressed_cells = self.compressed_cells
        if decay := self._decay():
            sketch.decay = graph.input(decay)
        for block in self._blocks():
            current = sketch.add(
                block,
                current,
                host_experts=on_gpu and block.index < self.copied,
                host_block=on_gpu and not self.place.on_gpu(block.index),
            )
        rows = graph.add(4 * model.n_embd_out * self.layout.n_parallel, current)
        graph.add(4 * model.n_vocab * self.layout.n_parallel, rows)

    def whole_on_host(self) -> int:
        """Everything in one buffer."""
        graph = Graph()
        sketch = self._sketch(graph, on_gpu=False)
        sketch.zeros = self._zeros(graph)
        graph.input(_SMALL * self.tokens + self.rotations + self.value_places)
        graph.input(self._embedding())  # for prompts that are embeddings already; never freed
        if self.model.sparse == "compressed":  # whose attention's own mask comes first
            sketch.masks, sketch.more_masks = self._masks(graph), self._inputs(graph)
        else:
            sketch.more_masks, sketch.masks = self._inputs(graph), self._masks(graph)
        sketch.embedding = start = graph.add(self._embedding())
        sketch.per_layer_input = graph.add(self._per_layer_input())
        self._walk(sketch, start, on_gpu=False)
        return self._with_spare(graph.peak_bytes(), on_gpu=False)

    def device(self) -> int:
        """Copies of the inputs, and the results of the blocks."""
        graph = Graph()
        sketch = self._sketch(graph, on_gpu=True)
        sketch.zeros = self._zeros(graph)
        sketch.embedding = start = graph.input(self._embedding())
        sketch.per_layer_input = graph.input(self._per_layer_input())
        graph.input(_SMALL * self.tokens + self.rotations + self.value_places)
        graph.input(self._copied_cache_bytes())
        sketch.more_masks = self._inputs(graph)
        sketch.masks_behind = self._last_host_experts_before_attention()
        if sketch.masks_behind is None:
            sketch.masks = self._masks(graph)
        else:
            sketch.make_masks = lambda: self._masks_later(graph)
        self._walk(sketch, start, on_gpu=True)
        self.host_bytes = sketch.host_bytes
        return self._with_spare(graph.peak_bytes(_DEVICE_CHUNK_BYTES), on_gpu=True)

    def _experts_on_host(self) -> int:
        """What routed experts compute on the host beside a device, which keeps the rest.

        An upper bound for the widest block; measured with the memory probe on nine models. Where a
        block with attention comes first, its mask is free by then; how much of that room is used
        again is not followed.
        """
        if self.layout.op_offload or not self.place.any_on_gpu:
            return 0
        widest = 0
        for block in self.model.blocks:
            shapes = {name: shape for name, shape, _ in block.tensors}
            _, width, _ = shapes.get("ffn_down_exps.weight", (0, 0, 0))
            results = 3 if "ffn_down_exps.bias" in shapes else 2
            widest = max(widest, results * width * block.n_expert_used)
        return 4 * widest * self.tokens

    def _last_host_experts_before_attention(self) -> int | None:
        """The block behind whose expert weights the masks come, if not at the start.

        The pass is cut at each weight that is copied over; a mask is copied with the first piece
        that needs it.
        """
        last = None
        for block in self._blocks():
            if has_cache(self.model, block):
                return last
            if (
                block.index < self.copied
                and self.model.layer_weights[block.index].experts.total_bytes
            ):
                last = block.index
        return None

    def _masks_later(self, graph: Graph) -> dict[bool, int]:
        return {kind: graph.add(size) for kind, size in self.mask_bytes.items()}

    def host_beside_device(self) -> int:
        """The inputs, and the embedding of the tokens."""
        return (
            sum(self.mask_bytes.values())
            + sum(self.more_masks.values())
            + 2 * self._embedding()
            + self._per_layer_input()
            + _SMALL * self.tokens
            + self.value_places
            + self.rotations
            + self._positions()
            + self._decay()
            + self.host_bytes
            + self._experts_on_host()
        )


def has_cache(model: Model, block: Block) -> bool:
    """Whether a block reads an attention cache, its own or another's."""
    has_own = any(cache.layer == block.index for cache in model.caches)
    return has_own or any(name.startswith("attn_q.") for name, _, _ in block.tensors)
