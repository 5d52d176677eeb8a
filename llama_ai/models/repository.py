"""The models of a repository on the hub: its files by quantisation, with what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Literal

from llama_ai.errors import ModelNotFoundError, UsageError
from llama_ai.models.names import (
    DraftKind,
    base_of,
    belongs,
    draft_kind_of,
    kind_of,
    quant_of,
    shard_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_ai.models.hub import Listing, RemoteFile

_PROJECTOR_ORDER = ("F16", "FP16", "Q8_0", "BF16", "F32", "FP32")
_DRAFT_ORDER: tuple[DraftKind, ...] = ("dspark", "mtp", "dflash", "simple")


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """One model: its shards in order, and the projector and the draft that go with it."""

    name: str
    quant: str | None
    files: tuple[RemoteFile, ...]
    projector: RemoteFile | None
    draft: tuple[RemoteFile, ...]
    missing: tuple[str, ...] = ()
    """Shards that the repository does not hold."""

    @property
    def size_bytes(self) -> int:
        """Of the model's own files."""
        return sum(file.size_bytes for file in self.files)

    def wanted(self, *, projector: bool, draft: bool) -> tuple[RemoteFile, ...]:
        """The files to fetch."""
        return (
            *self.files,
            *((self.projector,) if projector and self.projector else ()),
            *(self.draft if draft else ()),
        )


@dataclass(frozen=True)
class _Set:
    folder: str
    stem: str
    total: int
    files: dict[int, RemoteFile]

    @property
    def kind(self) -> Literal["model", "projector", "draft", "adapter"]:
        return kind_of(self.stem)

    @property
    def ordered(self) -> tuple[RemoteFile, ...]:
        return tuple(self.files[number] for number in sorted(self.files))


def remote_models(listing: Listing) -> tuple[RemoteModel, ...]:
    """The models of a repository, smallest first."""
    sets = _sets(listing.files)
    projectors = [one for one in sets if one.kind == "projector"]
    drafts = [one for one in sets if one.kind == "draft"]
    models = [one for one in sets if one.kind == "model"]
    # Files that name no model serve all of a repository, which publishes one model as a rule.
    found = [
        RemoteModel(
            name=one.stem,
            quant=quant_of(one.stem) or quant_of(PurePosixPath(one.folder).name),
            files=one.ordered,
            projector=_projector(projectors, one),
            draft=_draft(drafts, one),
            missing=tuple(
                f"part {number} of {one.total}"
                for number in range(1, one.total + 1)
                if number not in one.files or not one.files[number].size_bytes
            ),
        )
        for one in models
    ]
    return tuple(sorted(found, key=lambda model: (model.size_bytes, model.name)))


def pick(models: Sequence[RemoteModel], word: str, repo: str) -> RemoteModel:
    """The model that ``word`` names: its quantisation, its name or its file, exactly.

    Never a near one: an unknown word is an error that lists what there is.
    """
    wanted = word.lower().removesuffix(".gguf")
    for matches in (
        [model for model in models if (model.quant or "").lower() == wanted],
        [
            model
            for model in models
            if wanted in {model.name.lower(), *(_stem(file.name) for file in model.files)}
        ],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = ", ".join(model.name for model in matches)
            raise UsageError(f"{repo} has several models in {word}", hint=f"name one: {names}")
    there = ", ".join(dict.fromkeys(model.quant or model.name for model in models))
    raise ModelNotFoundError(f"{repo} has no {word}", hint=f"it has: {there or 'no GGUF files'}")


def _stem(name: str) -> str:
    return PurePosixPath(name).name.lower().removesuffix(".gguf")


def _sets(files: Iterable[RemoteFile]) -> list[_Set]:
    found: dict[tuple[str, str, int], _Set] = {}
    for file in files:
        path = PurePosixPath(file.name)
        if path.suffix.lower() != ".gguf" or ".." in path.parts or path.is_absolute():
            continue
        shard = shard_of(path.stem)
        stem, number, total = (
            (shard.stem, shard.number, shard.total) if shard else (path.stem, 1, 1)
        )
        key = (str(path.parent), stem, total)
        found.setdefault(key, _Set(str(path.parent), stem, total, {})).files[number] = file
    return list(found.values())


def _serving(candidates: Sequence[_Set], model: _Set) -> list[_Set]:
    named = [one for one in candidates if belongs(one.stem, model.stem)]
    if named:
        return named
    return [one for one in candidates if not base_of(one.stem)]


def _projector(candidates: Sequence[_Set], model: _Set) -> RemoteFile | None:
    def rank(one: _Set) -> tuple[int, str]:
        quant = (quant_of(one.stem) or "").upper()
        known = quant in _PROJECTOR_ORDER
        return (_PROJECTOR_ORDER.index(quant) if known else len(_PROJECTOR_ORDER)), one.stem

    best = min(_serving(candidates, model), key=rank, default=None)
    return None if best is None else best.ordered[0]


def _draft(candidates: Sequence[_Set], model: _Set) -> tuple[RemoteFile, ...]:
    wanted = (quant_of(model.stem) or "").lower()

    def rank(one: _Set) -> tuple[int, bool, int]:
        kind, quant = draft_kind_of(one.stem), (quant_of(one.stem) or "").lower()
        size = sum(file.size_bytes for file in one.ordered)
        return _DRAFT_ORDER.index(kind), quant != wanted, size

    best = min(_serving(candidates, model), key=rank, default=None)
    return () if best is None else best.ordered
