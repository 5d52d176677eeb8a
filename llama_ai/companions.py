"""What goes with a model: the draft that speculates for it and the projector that sees for it.

The catalog finds them by name; here their headers are read and checked against the model, so that
what the engine would refuse, or silently do badly, is left out and said before it starts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_ai.errors import LlamaAiError, ModelNotFoundError, UsageError
from llama_ai.gguf import arch as known
from llama_ai.gguf.cache import read_header_cached
from llama_ai.gguf.facts import ModelFacts, facts_of, vocabulary_size
from llama_ai.models.names import DraftKind
from llama_ai.models.names import quant_of as _quant
from solver.types import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.config import Settings
    from llama_ai.gguf.header import Header
    from llama_ai.models.catalog import Companion

_RANK: Final[dict[DraftKind, int]] = {"dspark": 0, "mtp": 1, "dflash": 2, "simple": 3}
"""The seed's order: DSpark, then MTP, then DFlash."""

SIMPLE_N_MAX: Final = 3
VOCABULARY_TOLERANCE: Final = 128
"""Tokens by which two vocabularies may differ for the engine."""

PROJECTOR_LEAST_BYTES: Final = 128 * MIB
PROJECTOR_MOST_BYTES: Final = 2 * GIB


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A draft that fits its model."""

    kind: DraftKind
    n_max: int
    """Tokens that it may run ahead."""
    p_min: float | None
    """Least probability of a proposed token; ``None`` leaves it to the engine."""
    facts: ModelFacts | None = None
    """Its file; ``None`` for layers inside the model."""
    needed: bool = False
    """The user named it: a plan without it is none."""

    @property
    def path(self) -> Path | None:
        """The file to load, if it is one."""
        return None if self.facts is None else self.facts.path


@dataclass(frozen=True, kw_only=True)
class Projector:
    """A vision or audio projector: what it weighs, and what it takes to compute."""

    path: Path
    size_bytes: int
    compute_bytes: int
    """An upper bound, from the size of a picture (see :func:`projector_compute_bytes`)."""

    @property
    def total_bytes(self) -> int:
        """Both."""
        return self.size_bytes + self.compute_bytes


@dataclass(frozen=True, kw_only=True)
class Companions:
    """What is loaded with a model, and what was left out and why."""

    draft: Draft | None = None
    projector: Projector | None = None
    notes: tuple[str, ...] = ()


NONE: Final = Companions()


def choose_companions(
    model: ModelFacts, beside: Sequence[Companion], projector: Path | None, settings: Settings
) -> Companions:
    """The draft and the projector to load with ``model``.

    ``beside`` are the files that the catalog attached, ``projector`` the one it chose. A draft that
    the user named and that does not fit is an error (:class:`~llama_ai.errors.UsageError`); one
    that was merely found is left out with a note.
    """
    notes: list[str] = []
    seen: Projector | None = None
    if projector is not None and settings.switch("mmproj") is not False:
        try:
            seen = read_projector(projector)
        except LlamaAiError as error:
            notes.append(f"projector {projector.name} left out: {error.message}")
    draft = _choose_draft(model, beside, settings, notes)
    return Companions(draft=draft, projector=seen, notes=tuple(notes))


def companions_from_headers(
    model: ModelFacts, draft: Header | None, projector: Header | None, settings: Settings
) -> Companions:
    """The same for a model that is not here: from headers alone, what does not belong left out."""
    chosen: Draft | None = None
    seen: Projector | None = None
    notes: list[str] = []
    if settings.text("draft") != "off":
        if draft is not None:
            try:
                chosen = draft_from_header(model, draft)
            except LlamaAiError as error:
                notes.append(error.message)
        inside = Draft(kind="mtp", n_max=1, p_min=None)
        if model.has_mtp and (chosen is None or _RANK[chosen.kind] >= _RANK["mtp"]):
            chosen = inside
        chosen = _with_settings(chosen, settings) if chosen else None
    if projector is not None and settings.switch("mmproj") is not False:
        try:
            seen = projector_from_header(projector)
        except UsageError as error:
            notes.append(error.message)
    return Companions(draft=chosen, projector=seen, notes=tuple(notes))


def _choose_draft(
    model: ModelFacts, beside: Sequence[Companion], settings: Settings, notes: list[str]
) -> Draft | None:
    word = settings.text("draft") or "auto"
    if word == "off":
        return None
    if word != "auto":
        path = Path(word).expanduser()
        try:
            found = read_draft(model, path)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(f"--draft: {error.message}", hint=error.hint) from error
        return replace(_with_settings(found, settings), needed=True)
    found_here: list[Draft] = []
    if model.has_mtp:
        found_here.append(Draft(kind="mtp", n_max=1, p_min=None))
    for companion in beside:
        if companion.kind != "draft":
            continue
        try:
            found_here.append(read_draft(model, companion.path))
        except LlamaAiError as error:
            notes.append(f"draft {companion.path.name} left out: {error.message}")
    if not found_here:
        return None
    wanted = (_quant(model.path.stem) or "").lower()

    def rank(draft: Draft) -> tuple[int, bool, bool, int]:
        stem = draft.path.stem if draft.path else ""
        size = draft.facts.size_bytes if draft.facts else 0
        # Inside before beside; then the quantisation that the model has; then the smallest.
        same = (_quant(stem) or "").lower() == wanted
        return _RANK[draft.kind], draft.facts is not None, not same, size

    return _with_settings(min(found_here, key=rank), settings)


def _with_settings(draft: Draft, settings: Settings) -> Draft:
    if draft.kind == "simple":
        return replace(draft, n_max=SIMPLE_N_MAX, p_min=None)
    n_max = settings.number(f"{draft.kind}_n_max")
    return replace(
        draft, n_max=n_max or SIMPLE_N_MAX, p_min=settings.fraction(f"{draft.kind}_p_min")
    )


def read_draft(model: ModelFacts, path: Path) -> Draft:
    """The draft in ``path``, checked against ``model``.

    Its header says what it is; its name does not matter. Raises
    :class:`~llama_ai.errors.UsageError` when it cannot draft for this model, and what
    :func:`~llama_ai.gguf.facts.read_facts` raises for a file that cannot be read.
    """
    return draft_from_header(model, read_header_cached(path))


def draft_from_header(model: ModelFacts, header: Header) -> Draft:
    """:func:`read_draft` for a header that was read already."""
    facts, path = facts_of(header), header.path
    kind = _kind(header, facts)
    _check_vocabulary(model, header, path)
    if kind in {"dspark", "dflash"}:
        _check_features(model, facts, path)
    elif kind == "mtp" and facts.architecture != model.architecture:
        raise UsageError(
            f"{path.name} holds MTP layers for {facts.architecture}, not for {model.architecture}"
        )
    elif facts.architecture in known.DRAFT_ONLY:
        raise UsageError(f"drafts of the architecture {facts.architecture} are not supported")
    return Draft(kind=kind, n_max=SIMPLE_N_MAX, p_min=None, facts=facts)


def _kind(header: Header, facts: ModelFacts) -> DraftKind:
    if facts.architecture == "dflash":
        # The Markov head is what makes DSpark of DFlash.
        names = {tensor.name for tensor in header.tensors}
        return "dspark" if "markov_w1.weight" in names else "dflash"
    return "mtp" if facts.has_mtp else "simple"


def _check_vocabulary(model: ModelFacts, draft: Header, path: Path) -> None:
    """What the engine compares that a header says: the tokenizer's kind, its size, its marks."""
    mine, theirs = model.header.kv, draft.kv
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.pre"):
        if key in mine and key in theirs and mine[key] != theirs[key]:
            raise UsageError(
                f"{path.name} has another vocabulary ({theirs[key]}) than the model ({mine[key]})"
            )
    sizes = vocabulary_size(model.header), vocabulary_size(draft)
    if sizes[0] is None or sizes[1] is None:
        raise UsageError(f"{path.name}: its vocabulary, or the model's, is not in the file")
    if abs(sizes[0] - sizes[1]) > VOCABULARY_TOLERANCE:
        raise UsageError(
            f"{path.name} has another vocabulary ({sizes[1]} tokens) than the model"
            f" ({sizes[0]} tokens)"
        )
    for key in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
        if key in mine and key in theirs and mine[key] != theirs[key]:
            raise UsageError(f"{path.name} has another {key.rpartition('.')[2]} than the model")


def _check_features(model: ModelFacts, draft: ModelFacts, path: Path) -> None:
    """DFlash reads the model's hidden state after given layers: width and layers must exist."""
    if draft.hparams.n_embd != model.hparams.n_embd:
        raise UsageError(
            f"{path.name} was made for a model of width {draft.hparams.n_embd}, not"
            f" {model.hparams.n_embd}"
        )
    layers = draft.header.kv.get("dflash.target_layers")
    if not isinstance(layers, tuple) or not layers:
        raise UsageError(f"{path.name} does not say which layers of the model it reads")
    if max(int(layer) for layer in layers) > len(model.hparams.layers):
        raise UsageError(
            f"{path.name} reads layer {max(int(layer) for layer in layers)} of a model that has"
            f" {len(model.hparams.layers)}"
        )


def read_projector(path: Path) -> Projector:
    """A projector's sizes. Raises :class:`~llama_ai.errors.UsageError` for another kind of file."""
    return projector_from_header(read_header_cached(path))


def projector_from_header(header: Header) -> Projector:
    """:func:`read_projector` for a header that was read already."""
    if header.kv.get("general.architecture") != "clip":
        raise UsageError(f"{header.path.name} is not a projector")
    return Projector(
        path=header.path,
        size_bytes=header.size_bytes,
        compute_bytes=projector_compute_bytes(header),
    )


def projector_compute_bytes(header: Header) -> int:
    """Device memory to encode one picture, without flash attention: an upper bound.

    For ``n`` patches: attention scores ``n² · heads`` and six rows of the width a patch, in f32.
    Gemma 3's projector (896 pixels, patch 14, 16 heads, width 1152) then takes 1132 MiB, which is
    what the engine reported for it before it had flash attention there. At least 128 MiB, at most
    2 GiB: encoders that take pictures of any size bound them by other means.
    """

    def number(name: str) -> int:
        value = header.kv.get(f"clip.vision.{name}")
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    size, patch = number("image_size"), number("patch_size")
    patches = (size // patch) ** 2 if patch > 0 else 0
    scores = patches * patches * number("attention.head_count") * 4
    rows = patches * 6 * number("embedding_length") * 4
    return min(max(scores + rows, PROJECTOR_LEAST_BYTES), PROJECTOR_MOST_BYTES)
