"""Which block of a model is where, as the engine decides it from ``--gpu-layers``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.model import Model
    from solver.types import Layout


class Placement:
    """Blocks are put on the device from the last one backwards; the output layer counts as one.

    The input layer (token embeddings) stays on the host. NextN blocks are counted like others, but
    their weights are loaded only for drafting.
    """

    def __init__(self, model: Model, layout: Layout) -> None:
        count = model.n_layer
        self.first_on_gpu = max(count + 1 - layout.gpu_layers, 0)
        self.any_on_gpu = layout.gpu_layers > 0
        self.output_on_gpu = layout.gpu_layers > 0
        self.mtp = layout.mtp and model.mtp
        self._blocks = model.blocks
        loaded = [index for index in range(count) if self.loads(index)]
        self.any_layer_on_gpu = any(self.on_gpu(index) for index in loaded)
        self.any_layer_on_host = any(not self.on_gpu(index) for index in loaded)

    def on_gpu(self, index: int) -> bool:
        """Whether a block's weights and cache are on the device."""
        return index >= self.first_on_gpu

    def loads(self, index: int) -> bool:
        """Whether a block's weights are loaded at all."""
        return self.mtp or not self._blocks[index].nextn
