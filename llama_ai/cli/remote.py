"""What a model on the hub is, from its header alone: the verdicts of ``pull --list``.

Only headers are read, by ranges; the same code then reads them that reads a local file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.cli.catalog_rows import About, Fit, about_of, fit_with
from llama_ai.cli.pipeline import model_disk
from llama_ai.cli.remote_source import RangeSource, Vocabulary
from llama_ai.companions import companions_from_headers
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.facts import facts_of
from llama_ai.gguf.header import Header, Shard
from llama_ai.gguf.parse import parse
from llama_ai.models.stores import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Sequence

    import httpx

    from llama_ai.config import Settings
    from llama_ai.gguf.parse import FileHeader
    from llama_ai.models.hub import Hub, Listing, RemoteFile
    from llama_ai.models.repository import RemoteModel
    from llama_ai.planning import Target
    from solver.types import Disk


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A model of a repository and whether it fits here; ``problem`` when that is not known."""

    model: RemoteModel
    about: About | None = None
    fit: Fit | None = None
    problem: str | None = None


class HeaderReader:
    """Reads the headers of a repository's models; a vocabulary that they share is read once."""

    def __init__(self, hub: Hub, client: httpx.Client, listing: Listing) -> None:
        self._hub = hub
        self._client = client
        self._listing = listing
        self._vocabularies: list[Vocabulary] = []
        self._known: dict[str, Header] = {}

    def read(self, files: Sequence[RemoteFile]) -> Header:
        """The header of a model's files, all shards, as ``gguf.header.read_header`` gives it.

        Raises :class:`~llama_ai.gguf.errors.BadModelFileError` and what the hub's errors are.
        """
        key = "\n".join(file.name for file in files)
        if key not in self._known:
            parsed = [self._parse(file, index) for index, file in enumerate(files)]
            self._known[key] = joined(files, parsed)
        return self._known[key]

    def _source(self, file: RemoteFile) -> RangeSource:
        return RangeSource(self._hub, self._client, self._hub.url(self._listing, file), file)

    def _parse(self, file: RemoteFile, index: int) -> FileHeader:
        source = self._source(file)
        if index == 0 and any(source.share(known) for known in self._vocabularies):
            try:
                return parse(source, shard=index)
            except BadModelFileError:
                source = self._source(file)  # read all of it: it may differ in between after all
        header = parse(source, shard=index)
        if index == 0 and not header.big_endian:
            found = Vocabulary.of(source.start(header.data_offset))
            if found is not None:
                self._vocabularies.append(found)
        return header


def joined(files: Sequence[RemoteFile], parsed: Sequence[FileHeader]) -> Header:
    """One header from those of all shards."""
    tensors = tuple(tensor for header in parsed for tensor in header.tensors)
    wanted = parsed[0].kv.get("split.tensors.count")
    if isinstance(wanted, int) and wanted != len(tensors):
        raise BadModelFileError(
            f"{files[0].name}: its parts hold {len(tensors)} tensors where {wanted} are expected",
            hint="the repository is not complete: take another",
        )
    return Header(
        version=parsed[0].version,
        big_endian=parsed[0].big_endian,
        kv=parsed[0].kv,
        tensors=tensors,
        shards=tuple(
            Shard(
                path=Path(file.name),
                size_bytes=file.size_bytes,
                mtime_ns=0,
                alignment=header.alignment,
                data_offset=header.data_offset,
            )
            for file, header in zip(files, parsed, strict=True)
        ),
    )


def verdicts(
    hub: Hub,
    listing: Listing,
    models: Sequence[RemoteModel],
    target: Target | None,
    settings: Settings,
    *,
    projector: bool = True,
    draft: bool = True,
) -> list[Verdict]:
    """What each model is and whether it fits, read from its header on the hub."""
    disk = _disk_of_cache()
    with hub.client() as client:
        read = HeaderReader(hub, client, listing).read
        found: list[Verdict] = []
        for model in models:
            if model.missing:
                gap = f"not complete: {', '.join(model.missing)}"
                found.append(Verdict(model=model, problem=gap))
                continue
            try:
                facts = facts_of(read(model.files))
                companions = companions_from_headers(
                    facts,
                    read(model.draft) if draft and model.draft else None,
                    read((model.projector,)) if projector and model.projector else None,
                    settings,
                )
            except BadModelFileError as error:
                found.append(Verdict(model=model, problem=error.message))
                continue
            about = about_of(facts)
            if target is None:
                found.append(Verdict(model=model, about=about, problem="this machine is unknown"))
                continue
            fit = fit_with(facts, companions, model.name, target, settings, disk=disk)
            found.append(Verdict(model=model, about=about, fit=fit))
    return found


def _disk_of_cache() -> Disk | None:
    """The disk that a model would be fetched to."""
    place = huggingface_cache(os.environ)
    while not place.exists() and place != place.parent:
        place = place.parent
    return model_disk(place / "model.gguf")


def best(found: Sequence[Verdict]) -> Verdict | None:
    """The one to take: on the device if any is, with a context of use, the finest of them."""
    fitting = [one for one in found if one.fit is not None and one.fit.fits]

    def rank(one: Verdict) -> tuple[bool, bool, int]:
        fit, about = one.fit, one.about
        trained = (about.n_ctx_train if about else None) or 0
        roomy = ((fit.ctx_size if fit else None) or 0) >= min(32768, trained)
        return (fit is not None and fit.strategy == "gpu"), roomy, one.model.size_bytes

    return max(fitting, key=rank, default=None)
