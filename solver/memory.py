"""How many bytes a layout takes on the device and on the host.

:func:`estimate` adds up what the engine allocates: weights (exactly, tensor by tensor), the
attention cache and recurrent state (exactly, in the engine's padding), the buffers for intermediate
results (a model of them, see :mod:`solver.compute`), a draft's context, the projector, and the
process itself. It is checked against the engine's own measurement, see
``benchmarks/memory_accuracy.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from solver.cache import cache_bytes
from solver.compute import compute_bytes, draft_compute_bytes
from solver.placement import Placement
from solver.residency import loaded_experts, pool_overhead_bytes
from solver.types import Components, Layout, Memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from solver.model import Model, Weights

HOST_ALIGNMENT = 32
"""Of the CPU's buffers."""
PINNED_HOST_ALIGNMENT = 64
"""Of host memory that a device can read; the engine uses it for the host's part beside a device."""
PROCESS_BYTES = 60 << 20
"""Code and HTTP server, measured."""
DEVICE_ALIGNMENT = 16
"""Of Vulkan buffers on Mesa (RADV asks for less; the difference is a few bytes a tensor)."""


def estimate(
    model: Model,
    layout: Layout,
    *,
    compute: Callable[[Model, Layout, Placement], tuple[int, int]] = compute_bytes,
) -> Memory:
    """Bytes on the device and on the host. Pure: the same input gives the same answer.

    ``compute`` may remember what :func:`~solver.compute.compute_bytes`, the slow part, said before.
    """
    place = Placement(model, layout)
    gpu_weights, host_weights = weight_bytes(model, layout, place)
    main = cache_bytes(model, layout, place)
    gpu_compute, host_compute = compute(model, layout, place)
    gpu_draft = host_draft = 0
    if place.mtp:
        draft = cache_bytes(model, layout, place, draft=True)
        gpu_draft, host_draft = draft_compute_bytes(model, layout, place)
        gpu_draft += draft.gpu_kv
        host_draft += draft.host_kv
    if layout.draft_file and model.draft_model is not None:
        gpu, host = draft_file_bytes(model.draft_model, layout)
        gpu_draft += gpu
        host_draft += host
    return Memory(
        gpu=Components(
            weights_bytes=gpu_weights,
            kv_bytes=main.gpu_kv,
            recurrent_bytes=main.gpu_state,
            compute_bytes=gpu_compute,
            draft_bytes=gpu_draft,
            projector_bytes=model.projector_bytes if place.any_on_gpu else 0,
        ),
        host=Components(
            weights_bytes=host_weights,
            kv_bytes=main.host_kv,
            recurrent_bytes=main.host_state,
            compute_bytes=host_compute,
            draft_bytes=host_draft,
            projector_bytes=0 if place.any_on_gpu else model.projector_bytes,
            experts_bytes=layout.expert_budget_bytes or 0,
            overhead_bytes=overhead_bytes(model) + pool_overhead_bytes(layout),
        ),
    )


def draft_file_bytes(draft: Model, layout: Layout) -> tuple[int, int]:
    """What a draft file takes on the device and on the host: weights, cache, compute, vocabulary.

    Weights and cache agree with the engine's measurement to the byte; a block draft's logits are
    kept for each token of a ubatch, where other drafts keep one row a sequence.
    """
    beside = estimate(draft, draft_layout(draft, layout))
    logits = layout.ubatch * draft.n_vocab * 4 if draft.architecture == "dflash" else 0
    gpu = beside.gpu.total_bytes
    host = beside.host.total_bytes - PROCESS_BYTES
    return (gpu + logits, host) if layout.gpu_layers else (gpu, host + logits)


def draft_layout(draft: Model, layout: Layout) -> Layout:
    """How a draft file is loaded: on the device if there is one, a context as long as the model's.

    The engine's default of f16 for a draft's cache is kept: it is small and read for each token.
    """
    return replace(
        layout,
        kv_type_k="f16",
        kv_type_v="f16",
        gpu_layers=draft.n_layer + 1 if layout.gpu_layers else 0,
        n_cpu_moe=0,
        mtp=False,
        draft_file=False,
        expert_budget_bytes=None,
    )


def overhead_bytes(model: Model) -> int:
    """The process without model and context: code, vocabulary, HTTP server.

    Measured: about 60 MiB, and 250 bytes for each token of the vocabulary (text, score, two maps).
    """
    return PROCESS_BYTES + 250 * model.n_vocab


def weight_bytes(model: Model, layout: Layout, place: Placement) -> tuple[int, int]:
    """Weights on the device and on the host."""
    host_alignment = PINNED_HOST_ALIGNMENT if place.any_on_gpu else HOST_ALIGNMENT
    gpu = host = 0

    def add(weights: Weights, *, on_gpu: bool, experts_on_gpu: bool) -> None:
        nonlocal gpu, host
        for tensors, there in ((weights.dense, on_gpu), (weights.experts, experts_on_gpu)):
            if there:
                gpu += tensors.padded_bytes(DEVICE_ALIGNMENT)
            else:
                host += tensors.padded_bytes(host_alignment)
        host += weights.pinned.padded_bytes(HOST_ALIGNMENT)

    add(model.input, on_gpu=False, experts_on_gpu=False)
    add(model.output, on_gpu=place.output_on_gpu, experts_on_gpu=place.output_on_gpu)
    if model.tied and place.output_on_gpu:
        gpu += model.tied_output.padded_bytes(DEVICE_ALIGNMENT)
    elif model.tied and model.tied_repacks and layout.repack:
        host += model.tied_output.padded_bytes(HOST_ALIGNMENT)
    for index, weights in enumerate(model.layer_weights):
        if place.loads(index):
            experts_on_gpu = place.on_gpu(index) and index >= layout.n_cpu_moe
            loaded = weights
            if layout.expert_budget_bytes is not None and not experts_on_gpu:
                # The rest is a mapping that nobody reads through: it takes no memory.
                loaded = replace(weights, experts=loaded_experts(model, index))
            add(loaded, on_gpu=place.on_gpu(index), experts_on_gpu=experts_on_gpu)
    if place.any_layer_on_gpu:
        gpu += model.once_per_side.padded_bytes(DEVICE_ALIGNMENT)
    if place.any_layer_on_host:
        host += model.once_per_side.padded_bytes(host_alignment)
    return gpu, host
