"""ModelFacts -> what the solver sees of a model."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.gguf import arch as known
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.hparams import MAX_LAYERS
from llama_ai.gguf.quants import TENSOR_TYPES
from llama_ai.gguf.weights import is_expert, place_of
from solver.memory import estimate
from solver.model import Block, Cache, Model, State, Tensors, Weights
from solver.types import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.gguf.facts import ModelFacts
    from llama_ai.gguf.hparams import LayerHparams
    from solver.model import SparseKind

_SCAN = re.compile(r"blk\.\d+\.ssm_a$")
_BLOCK = re.compile(r"(?:dec\.)?blk\.(\d+)\.(.+)")
_REPACKED = frozenset({"q4_0", "q4_k", "iq4_nl", "mxfp4"})  # with AVX2
_TRIALS = (
    Layout(ctx_size=512, n_parallel=2),
    Layout(ctx_size=512, gpu_layers=MAX_LAYERS, n_cpu_moe=1, mtp=True),
)
_CSA_RATIO = 4
_HCA_RATIO = 128


def model_from_facts(facts: ModelFacts, *, projector_bytes: int = 0) -> Model:
    """The solver's view. ``projector_bytes``: size of a vision or audio projector to load too.

    Raises :class:`BadModelFileError` when the tensors do not make up the blocks that the metadata
    promises; the engine would refuse such a file as well.
    """
    try:
        model = _model(facts, projector_bytes)
        for layout in _TRIALS:
            estimate(model, layout)
    except (LookupError, ArithmeticError, ValueError, TypeError) as error:
        raise BadModelFileError(
            f"{facts.path}: its tensors do not fit its architecture ({facts.architecture})",
            hint="the file is broken, or newer than this engine: download it again",
        ) from error
    return model


def _model(facts: ModelFacts, projector_bytes: int) -> Model:
    hparams = facts.hparams
    layers = hparams.layers
    first, last, everywhere, per_layer = _place(facts)
    caches, states = _caches(facts)
    tensors: list[list[tuple[str, tuple[int, ...], int]]] = [[] for _ in layers]
    for tensor in facts.header.tensors:
        match = _BLOCK.match(tensor.name)
        if match and int(match[1]) < len(layers):
            tensors[int(match[1])].append((match[2], tensor.shape, tensor.size_bytes))
    return Model(
        name=facts.name,
        architecture=facts.architecture,
        size_bytes=facts.size_bytes,
        n_ctx_train=hparams.n_ctx_train,
        n_layer=len(layers),
        n_layer_nextn=hparams.n_layer_nextn,
        n_embd=hparams.n_embd,
        n_embd_out=hparams.n_embd_out,
        n_vocab=hparams.n_vocab,
        n_expert=hparams.n_expert,
        n_expert_used=max((layer.n_expert_used for layer in layers), default=0),
        n_swa=hparams.n_swa,
        mla=hparams.mla,
        head_k_mla=hparams.head_k_mla,
        head_v_mla=hparams.head_v_mla,
        causal=facts.architecture not in known.NO_CACHE,
        input=first,
        output=last,
        tied=facts.tied_embeddings,
        tied_output=_group(
            [t.size_bytes for t in facts.header.tensors if t.name == "token_embd.weight"]
        ),
        tied_repacks=any(
            t.name == "token_embd.weight" and TENSOR_TYPES[t.type].name in _REPACKED
            for t in facts.header.tensors
        ),
        layer_weights=per_layer,
        once_per_side=everywhere,
        blocks=tuple(
            Block(
                index=layer.index,
                nextn=layer.nextn,
                sliding=layer.sliding,
                recurrent=layer.recurrent,
                n_head=layer.n_head,
                n_head_kv=layer.n_head_kv,
                head_k=layer.head_k,
                head_v=layer.head_v,
                n_expert_used=layer.n_expert_used,
                tensors=tuple(tensors[layer.index]),
            )
            for layer in layers
        ),
        caches=caches,
        states=states,
        rollback=facts.architecture in known.ROLLBACK,
        mtp=facts.has_mtp,
        flash_attn=facts.architecture not in known.FLASH_ATTENTION_OFF,
        sparse=_sparse(facts),
        indexer_rotated=facts.architecture in known.INDEXER_ROTATED,
        indexer_heads=hparams.indexer_heads,
        indexer_head_size=hparams.indexer_head_size,
        indexer_top_k=hparams.indexer_top_k,
        indexer_pool=hparams.indexer_pool,
        hyper_connections=hparams.hyper_connections,
        per_layer_embedding=hparams.n_embd_per_layer,
        learned_positions=any(t.name == "position_embd.weight" for t in facts.header.tensors),
        projector_bytes=projector_bytes,
    )


def _sparse(facts: ModelFacts) -> SparseKind | None:
    # A full-attention checkpoint of such an architecture has no indexer.
    kind = known.SPARSE.get(facts.architecture)
    if kind == "compressed":
        return kind
    hparams = facts.hparams
    return kind if hparams.indexer_top_k and (hparams.indexer_pool or kind != "pooled") else None


def _group(sizes: Sequence[int]) -> Tensors:
    return Tensors(
        total_bytes=sum(sizes), ragged=tuple(sorted(size for size in sizes if size % 256))
    )


def _place(facts: ModelFacts) -> tuple[Weights, Weights, Tensors, tuple[Weights, ...]]:
    """Weights of the input layer, of the output layer, of every side, and of each block."""
    count = len(facts.hparams.layers)
    first: list[int] = []
    last: list[int] = []
    everywhere: list[int] = []
    dense: list[list[int]] = [[] for _ in range(count)]
    experts: list[list[int]] = [[] for _ in range(count)]
    pinned: list[list[int]] = [[] for _ in range(count)]
    for tensor in facts.header.tensors:
        place, layer = place_of(tensor.name, facts.architecture)
        if place == "input":
            first.append(tensor.size_bytes)
        elif place == "output" or (place == "layer" and layer >= count):
            last.append(tensor.size_bytes)
        elif place == "everywhere":
            everywhere.append(tensor.size_bytes)
        elif place == "layer":
            if is_expert(tensor.name):
                group = experts
            elif _SCAN.match(tensor.name) and not _scans_on_device(facts, tensor.shape):
                group = pinned
            else:
                group = dense
            group[layer].append(tensor.size_bytes)
    return (
        Weights(dense=_group(first)),
        Weights(dense=_group(last)),
        _group(everywhere),
        tuple(
            Weights(dense=_group(rest), experts=_group(moe), pinned=_group(host))
            for rest, moe, host in zip(dense, experts, pinned, strict=True)
        ),
    )


def _scans_on_device(facts: ModelFacts, shape: tuple[int, ...]) -> bool:
    """Whether Vulkan has the selective scan for this layer: Mamba-2 with a state of 128 or 256."""
    if facts.architecture not in known.SELECTIVE_SCAN:
        return True
    heads = shape[1] if len(shape) > 1 else 1
    return (
        shape[0] == 1
        and facts.hparams.ssm_state in {128, 256}
        and heads > 0
        and facts.hparams.ssm_inner // heads % 16 == 0
    )


def _caches(facts: ModelFacts) -> tuple[tuple[Cache, ...], tuple[State, ...]]:
    caches: list[Cache] = []
    states: list[State] = []
    deepseek4 = facts.architecture == "deepseek4"
    for layer in facts.hparams.layers:
        if layer.k_width or layer.v_width:
            caches.append(
                Cache(
                    layer=layer.index,
                    kind="sliding" if layer.sliding else "full",
                    k_width=layer.k_width,
                    v_width=layer.v_width,
                    per_sequence=deepseek4,
                )
            )
        if layer.indexer_width:
            caches.append(
                Cache(
                    layer=layer.index,
                    kind="full",
                    k_width=layer.indexer_width,
                    v_width=layer.indexer_v_width,
                    indexer=True,
                )
            )
        if layer.state_r or layer.state_s:
            states.append(
                State(layer=layer.index, sequence_bytes=4 * (layer.state_r + layer.state_s))
            )
        if deepseek4 and layer.compress_ratio:
            _compressed(facts, layer, caches, states)
    return tuple(caches), tuple(states)


def _compressed(
    facts: ModelFacts, layer: LayerHparams, caches: list[Cache], states: list[State]
) -> None:
    """DeepSeek-V4: beside the window, one row for each 4 (with an indexer) or 128 tokens."""
    ratio, indexer = layer.compress_ratio, facts.hparams.indexer_head_size
    widths = {_CSA_RATIO: (layer.k_width, indexer), _HCA_RATIO: (layer.k_width,)}.get(ratio, ())
    caches.extend(
        Cache(
            layer=layer.index,
            kind="compressed",
            k_width=width,
            v_width=0,
            ratio=ratio,
            per_sequence=True,
        )
        for width in widths
    )
    if layer.nextn:
        return
    # Two f32 planes (values and scores) that wait for the next compressed row.
    if ratio == _CSA_RATIO:
        values = 2 * _CSA_RATIO * (2 * layer.head_k + 2 * indexer)
    elif ratio == _HCA_RATIO:
        values = _HCA_RATIO * layer.head_k
    else:
        return
    states.append(State(layer=layer.index, sequence_bytes=2 * 4 * values))
