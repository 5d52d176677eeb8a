"""Which tensor belongs where: by class for people, by place for the memory model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from llama_ai.gguf.hparams import Hparams
    from llama_ai.gguf.parse import TensorInfo

Part = Literal[
    "embedding",
    "per_layer_embedding",
    "attention",
    "recurrent",
    "ffn",
    "experts",
    "output",
    "other",
]

Place = Literal["input", "layer", "output", "everywhere", "unused"]
"""``everywhere``: one copy on each side that holds a layer (RoPE factors)."""

_BLOCK: Final = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.(.+)|(?:posnet|convnext)\.(\d+)\.(.+)")
# The names that the engine's --n-cpu-moe selects.
_EXPERTS: Final = re.compile(r"ffn_(?:up|down|gate|gate_up)_(?:ch)?exps")
_INPUT: Final = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.")
_FIRST_LAYER: Final = (
    "token_embd_norm.",
    "per_layer_model_proj.",
    "per_layer_proj_norm.",
    "hrm.z_l_init",
    "conv1d.",
    "nextn.pre_projection.",
)
_EVERYWHERE: Final = ("rope_freqs.", "rope_factors_long.", "rope_factors_short.")
_UNUSED: Final = ("masked_embd_centroids", "masked_embd_ordering")


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightsByClass:
    """Bytes of all tensors, by what they are for. ``expert_bytes`` has one entry a layer."""

    embedding_bytes: int
    per_layer_embedding_bytes: int
    attention_bytes: int
    recurrent_bytes: int
    dense_ffn_bytes: int
    expert_bytes: tuple[int, ...]
    output_bytes: int
    nextn_bytes: int
    other_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them: the size of the file without its header."""
        return (
            self.embedding_bytes
            + self.per_layer_embedding_bytes
            + self.attention_bytes
            + self.recurrent_bytes
            + self.dense_ffn_bytes
            + sum(self.expert_bytes)
            + self.output_bytes
            + self.nextn_bytes
            + self.other_bytes
        )


def place_of(name: str, architecture: str) -> tuple[Place, int]:
    """Where the engine puts a tensor, and for ``layer`` which one."""
    match = _BLOCK.match(name)
    if match:
        return "layer", int(match[1] if match[1] is not None else match[3])
    if name.startswith(_INPUT):
        return "input", 0
    if name.startswith("token_embd_norm.") and architecture in {"lfm2", "lfm2moe"}:
        return "output", 0  # so named by mistake: it is the norm before the output
    if name.startswith(_FIRST_LAYER):
        return "layer", 0
    if name.startswith(_EVERYWHERE):
        return "everywhere", 0
    if name.startswith(_UNUSED):
        return "unused", 0
    return "output", 0


def is_expert(name: str) -> bool:
    """One of the tensors that ``--n-cpu-moe`` keeps in system memory."""
    return _EXPERTS.search(name) is not None


def part_of(name: str) -> Part:
    """What a tensor is for."""
    match = _BLOCK.match(name)
    if match is None:
        if name.startswith("per_layer_token_embd."):
            return "per_layer_embedding"
        if name.startswith(("token_embd.", "position_embd.", "token_types.")):
            return "embedding"
        return "output" if name.startswith(("output", "cls", "dec.output")) else "other"
    rest = match[2] or match[4]
    if is_expert(rest):
        return "experts"
    if rest.startswith(("ssm", "time_mix", "shortconv", "channel_mix")):
        return "recurrent"
    if rest.startswith("ffn"):
        return "ffn"
    return "attention" if rest.startswith(("attn", "cross_attn", "indexer")) else "other"


def by_class(tensors: Iterable[TensorInfo], hparams: Hparams) -> WeightsByClass:
    """Sum a tensor table by class."""
    sums: dict[Part, int] = {}
    experts = [0] * max(len(hparams.layers), 1)
    nextn = 0
    for tensor in tensors:
        place, layer = place_of(tensor.name, hparams.architecture)
        if place == "layer" and layer < len(hparams.layers) and hparams.layers[layer].nextn:
            nextn += tensor.size_bytes
            continue
        part = part_of(tensor.name)
        if part == "experts" and layer < len(experts):
            experts[layer] += tensor.size_bytes
        else:
            sums[part] = sums.get(part, 0) + tensor.size_bytes
    return WeightsByClass(
        embedding_bytes=sums.get("embedding", 0),
        per_layer_embedding_bytes=sums.get("per_layer_embedding", 0),
        attention_bytes=sums.get("attention", 0),
        recurrent_bytes=sums.get("recurrent", 0),
        dense_ffn_bytes=sums.get("ffn", 0),
        expert_bytes=tuple(experts),
        output_bytes=sums.get("output", 0),
        nextn_bytes=nextn,
        other_bytes=sums.get("other", 0) + sums.get("experts", 0),
    )
