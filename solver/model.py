"""What the solver must know of a model: its weights by place, its caches, and the shape of a layer.

Filled in from the file's header by ``llama_ai.gguf``; nothing here is read from a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

CacheKind = Literal["full", "sliding", "compressed"]
"""``full`` holds every token; ``sliding`` a window and a ubatch; ``compressed`` one row in N."""


SparseKind = Literal["selected", "pooled", "compressed", "blocks", "experimental"]
"""Rows by score (DeepSeek-V3.2), of pooled keys (GLM 5 next), compressed rows (DeepSeek-V4),
blocks of rows (MiniMax-M3), or by every head apart (Qwen4 experimental)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensors:
    """Bytes of a group of tensors that are allocated together.

    A buffer pads each tensor to its alignment, which differs by backend; ``ragged`` lists the
    sizes that are no multiple of 256, so that the padded sum is exact for every alignment.
    """

    total_bytes: int = 0
    ragged: tuple[int, ...] = ()

    def padded_bytes(self, alignment: int) -> int:
        """What a buffer with that alignment (at most 256) takes for them."""
        return self.total_bytes + sum(-size % alignment for size in self.ragged)


NO_TENSORS = Tensors()


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The tensors of one block, or of the input or output layer."""

    dense: Tensors = NO_TENSORS
    experts: Tensors = NO_TENSORS
    """What ``--n-cpu-moe`` moves to the host."""
    pinned: Tensors = NO_TENSORS
    """No device operation exists for them: on the host wherever the layer goes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """The attention cache of one layer. Widths are elements of a row, 0: none of that kind."""

    layer: int
    kind: CacheKind
    k_width: int
    v_width: int
    ratio: int = 1
    """Tokens a row, for ``compressed``."""
    per_sequence: bool = False
    """Each sequence has its own rows, even when the cache is unified."""
    indexer: bool = False
    """Of a sparse-attention indexer: kept apart from the attention cache itself."""
    always: bool = False
    """In the main context too, although its block belongs to NextN."""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """Recurrent state of one layer: f32, for each sequence and each rollback copy."""

    layer: int
    sequence_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """The shape of one block, as far as it decides the size of its intermediate results."""

    index: int
    nextn: bool
    sliding: bool
    recurrent: bool
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    n_expert_used: int
    tensors: tuple[tuple[str, tuple[int, ...], int], ...]
    """Name within the block (``ffn_up.weight``), shape (contiguous dimension first) and bytes."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model, as the solver sees it."""

    name: str
    architecture: str
    size_bytes: int
    """Of all its files."""
    n_ctx_train: int
    n_layer: int
    """Blocks, those of NextN included: the engine counts its ``--gpu-layers`` over them."""
    n_layer_nextn: int
    n_embd: int
    n_embd_out: int
    n_vocab: int
    n_expert: int
    n_expert_used: int
    n_swa: int
    """Tokens of the sliding window; 0 without one."""
    mla: bool
    head_k_mla: int = 0
    head_v_mla: int = 0
    causal: bool
    """An encoder or diffusion model keeps no cache."""
    input: Weights
    output: Weights
    tied: bool
    """The output matrix is the embedding: the engine loads it twice when they are apart."""
    tied_output: Tensors = NO_TENSORS
    """That matrix."""
    tied_repacks: bool = False
    """The CPU rearranges that matrix for multiplication, so that it is there twice as well."""
    layer_weights: tuple[Weights, ...]
    once_per_side: Tensors = NO_TENSORS
    """RoPE factors and the like: one copy wherever a layer lives."""
    blocks: tuple[Block, ...]
    caches: tuple[Cache, ...]
    states: tuple[State, ...]
    rollback: bool
    """State is kept in further copies while drafting."""
    mtp: bool
    """Has NextN layers that this engine can draft with."""
    flash_attn: bool = True
    """The engine can use flash attention for it at all."""
    sparse: SparseKind | None = None
    """How attention selects the cached rows that it reads, if it does."""
    indexer_rotated: bool = False
    """Its keys and queries are rotated whatever the cache's type."""
    indexer_heads: int = 0
    indexer_head_size: int = 0
    indexer_top_k: int = 0
    indexer_pool: int = 0
    """Tokens whose index keys are pooled into one; 0: not pooled."""
    hyper_connections: int = 0
    per_layer_embedding: int = 0
    """Width of a per-layer input embedding (Gemma 3n, Gemma 4)."""
    learned_positions: bool = False
    """Has a table of position embeddings."""
    projector_bytes: int = 0
    """Of a vision or audio projector: its weights and what it computes with."""
    draft_model: Model | None = None
    """The file that drafts for it, if there is one."""
    expert_use: tuple[tuple[float, ...], ...] | None = None
    """How often each expert of each layer was chosen (shares of the layer's tokens, largest first;
    a layer without experts is empty); ``None``: not known."""

    @cached_property
    def kinds(self) -> tuple[int, ...]:
        """A number for each block, the same for blocks that differ only in index and bytes."""
        numbers: dict[object, int] = {}
        return tuple(
            numbers.setdefault(
                (
                    tuple((name, shape) for name, shape, _ in block.tensors),
                    block.sliding,
                    block.recurrent,
                    block.n_head,
                ),
                len(numbers),
            )
            for block in self.blocks
        )

    @property
    def is_moe(self) -> bool:
        """Has experts that can live apart from the rest."""
        return any(weights.experts.total_bytes for weights in self.layer_weights)

    @property
    def is_recurrent(self) -> bool:
        """Has recurrent state in some layer."""
        return bool(self.states)
