"""ModelFacts: what one model file says, in the words of the engine and of people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llama_ai.gguf import arch as known
from llama_ai.gguf.cache import read_header_cached
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.hparams import Hparams, read_hparams
from llama_ai.gguf.parse import Skipped
from llama_ai.gguf.quants import TENSOR_TYPES
from llama_ai.gguf.weights import WeightsByClass, by_class, is_expert

if TYPE_CHECKING:
    from pathlib import Path

    from llama_ai.gguf.header import Header

# What reasoning templates have in common: a tag around the thoughts, or a switch for them.
_REASONING: Final = re.compile(
    r"<think|</think|\[THINK\]|enable_thinking|reasoning_content|reasoning_effort|<\|channel\|>"
    r"|thinking_budget|<seed:think>|<\|START_THINKING\|>",
)
_SHARD: Final = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """One model. ``hparams`` has the per-layer view, ``weights`` the bytes by class.

    ``None`` stands for what the file does not say.
    """

    header: Header
    hparams: Hparams
    weights: WeightsByClass
    name: str
    architecture: str
    quant: str | None
    """The type that holds most of the weights' bytes, ``q4_k``."""
    n_params: int
    is_moe: bool
    is_recurrent: bool
    tied_embeddings: bool
    has_mtp: bool
    """Holds NextN layers that the engine can draft with."""
    chat_template: str | None
    reasons: bool | None
    """The chat template provides for thoughts; ``None`` without a template."""

    @property
    def path(self) -> Path:
        """The file to hand to the engine."""
        return self.header.path

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return self.header.size_bytes

    @property
    def n_ctx_train(self) -> int:
        """Longest context that the model was trained for, in tokens."""
        return self.hparams.n_ctx_train


def read_facts(path: Path) -> ModelFacts:
    """Facts of the model that ``path`` (any of its shards) belongs to.

    Raises :class:`~llama_ai.errors.ModelNotFoundError` or its subclass
    :class:`~llama_ai.gguf.errors.BadModelFileError`.
    """
    return facts_of(read_header_cached(path))


def architecture_of(header: Header) -> str:
    """``general.architecture``, checked against what the engine knows."""
    name = header.kv.get("general.architecture")
    if not isinstance(name, str) or not name:
        raise BadModelFileError(
            f"{header.path}: does not name its architecture",
            hint="give the model file itself (a vocabulary or adapter file is not a model)",
        )
    if name not in known.KNOWN:
        raise BadModelFileError(
            f"{header.path}: architecture {name[:40]!r} is not known to this engine",
            hint="a newer engine may know it: see 'llama-ai build --source'",
        )
    return name


def facts_of(header: Header) -> ModelFacts:
    """Facts of a header that was read already. Raises :class:`BadModelFileError`."""
    architecture = architecture_of(header)
    if architecture in known.NOT_LANGUAGE:
        kind = "a vision or audio projector" if architecture == "clip" else "a codec"
        raise BadModelFileError(
            f"{header.path}: is {kind}, not a language model",
            hint="give the model that it belongs to; a projector beside it is found by itself",
        )
    if header.big_endian:
        raise BadModelFileError(
            f"{header.path}: is big-endian, the engine on this machine cannot load it",
            hint="convert it with gguf-convert-endian, or download the usual version",
        )
    if not header.tensors:
        raise BadModelFileError(
            f"{header.path}: holds no tensors (a vocabulary file?)", hint="give the model file"
        )
    names = frozenset(tensor.name for tensor in header.tensors)
    hparams = read_hparams(header.kv, architecture, str(header.path), names)
    template = header.kv.get("tokenizer.chat_template")
    text = template if isinstance(template, str) else None
    return ModelFacts(
        header=header,
        hparams=hparams,
        weights=by_class(header.tensors, hparams),
        name=_name(header),
        architecture=architecture,
        quant=_quant(header),
        n_params=sum(_elements(tensor.shape) for tensor in header.tensors),
        is_moe=hparams.n_expert > 0 and any(is_expert(name) for name in names),
        is_recurrent=any(layer.state_r or layer.state_s for layer in hparams.layers),
        tied_embeddings=(
            "output.weight" not in names
            and "token_embd.weight" in names
            and architecture not in known.ENCODERS
        ),
        has_mtp=_has_mtp(hparams, architecture, names),
        chat_template=text,
        reasons=None if text is None else _REASONING.search(text) is not None,
    )


def _name(header: Header) -> str:
    value = header.kv.get("general.name")
    if isinstance(value, str) and value.strip():
        return value.strip()
    return _SHARD.sub("", header.path.stem)


def _quant(header: Header) -> str | None:
    sums: dict[int, int] = {}
    for tensor in header.tensors:
        sums[tensor.type] = sums.get(tensor.type, 0) + tensor.size_bytes
    return TENSOR_TYPES[max(sums, key=lambda kind: sums[kind])].name if sums else None


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _has_mtp(hparams: Hparams, architecture: str, names: frozenset[str]) -> bool:
    """NextN layers count only when their tensors are in the file (some files drop them)."""
    if architecture not in known.MTP_ON_REQUEST or hparams.n_layer_nextn == 0:
        return False
    prefix = f"blk.{hparams.n_layer}.nextn."
    return any(name.startswith(prefix) for name in names)


def vocabulary_size(header: Header) -> int | None:
    """Tokens of the vocabulary; ``None`` when the file lists none."""
    tokens = header.kv.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.length
    return len(tokens) if isinstance(tokens, tuple) else None
