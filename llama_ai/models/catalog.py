"""Which models are here: one resolver for every command.

The places of :mod:`.stores` are read in their order. Split files are joined; projectors, drafts and
adapters are attached to the model that they serve and not listed; a model that lies in several
places is listed once with all of them. Names and sizes decide; only files of equal size are opened,
to see whether they are the same.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.errors import ModelNotFoundError
from llama_ai.models.names import (
    DraftKind,
    Kind,
    base_of,
    belongs,
    draft_kind_of,
    kind_of,
    quant_of,
    shard_of,
)
from llama_ai.models.stores import gguf_files, ollama_models, places

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from llama_ai.models.stores import Place

_SAMPLE_BYTES = 1 << 16
_HEADER_SAMPLE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Companion:
    """A file that serves a model: its projector, a draft, an adapter."""

    kind: Kind
    path: Path
    size_bytes: int
    draft_kind: DraftKind | None = None


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One model: its name, its first (or only) file, all its files and their size together."""

    name: str
    path: Path
    files: tuple[Path, ...]
    size_bytes: int
    quant: str | None
    source: str
    """Where it was found, for people: ``models/``, ``huggingface`` …"""
    repo: str | None = None
    """``owner/repo`` for a model in the Hugging Face cache."""
    missing: tuple[str, ...] = ()
    """What is not there or empty: ``part 2 of 3``."""
    also: tuple[Path, ...] = ()
    """First files of the same content in other places."""
    other_names: tuple[str, ...] = ()
    """What it is called there."""
    companions: tuple[Companion, ...] = ()

    @property
    def projector(self) -> Companion | None:
        """The projector to use: the type that GPUs are quickest and most exact with first."""
        order = {"F16": 0, "FP16": 0, "Q8_0": 1, "BF16": 2, "F32": 3, "FP32": 3}

        def rank(found: Companion) -> tuple[int, str]:
            quant = quant_of(found.path.stem)
            return order.get((quant or "").upper(), 4), found.path.name

        return min((c for c in self.companions if c.kind == "projector"), key=rank, default=None)

    @property
    def drafts(self) -> tuple[Companion, ...]:
        """The draft files beside it."""
        return tuple(found for found in self.companions if found.kind == "draft")


@dataclass(frozen=True)
class _File:
    """One whole file or one whole set of shards in one directory."""

    directory: Path
    stem: str
    files: Mapping[int, Path]
    total: int


def scan(config_dirs: Sequence[Path], environ: Mapping[str, str]) -> tuple[Entry, ...]:
    """Every model, in the order of the places; one that is found again is listed once."""
    entries: list[Entry] = []
    for place in places(config_dirs, environ):
        entries += _scan_place(place)
    return _joined(entries)


def resolve(word: str, config_dirs: Sequence[Path], environ: Mapping[str, str]) -> Entry:
    """The model that ``word`` names: a path, a name, ``owner/repo[:QUANT]``, or a unique part.

    Raises :class:`~llama_ai.errors.ModelNotFoundError` when nothing, or more than one, matches.
    """
    path = Path(word).expanduser()
    if path.suffix.lower() == ".gguf" or path.is_file():
        return _entry_of_path(path)
    if path.is_dir():
        entries = tuple(_scan_files(str(path), path))
        if len(entries) == 1:
            return _complete(entries[0])
        if entries:
            raise _ambiguous(word, entries)
    entries = scan(config_dirs, environ)
    wanted = word.lower()
    for matches in (
        [entry for entry in entries if wanted in _exact_names(entry)],
        [entry for entry in entries if any(n.startswith(wanted) for n in _names(entry))],
        [entry for entry in entries if any(wanted in n for n in _names(entry))],
    ):
        names = {entry.name.lower() for entry in matches}
        if len(names) == 1:
            # Of two places with this name, one that is complete comes first.
            return _complete(min(matches, key=lambda entry: bool(entry.missing)))
        if matches:
            raise _ambiguous(word, matches)
    raise ModelNotFoundError(
        f"there is no model '{word}' here",
        hint="`llama-ai models` lists what is here; `llama-ai pull demo` fetches a small one",
    )


def _names(entry: Entry) -> set[str]:
    return {name.lower() for name in (entry.name, *entry.other_names)}


def _exact_names(entry: Entry) -> set[str]:
    names = {name for full in _names(entry) for name in (full, full.removesuffix(":latest"))}
    if entry.repo:
        names.add(entry.repo.lower())
        if entry.quant:
            names.add(f"{entry.repo}:{entry.quant}".lower())
            names.add(f"{entry.repo}:{entry.quant}".lower().replace(":ud-", ":"))
    return names


def _ambiguous(word: str, entries: Iterable[Entry]) -> ModelNotFoundError:
    names = sorted({entry.name for entry in entries})
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return ModelNotFoundError(f"'{word}' names several models", hint=f"one of: {shown}")


def _complete(entry: Entry) -> Entry:
    if entry.missing:
        raise ModelNotFoundError(
            f"{entry.name} is not complete: {', '.join(entry.missing)} is missing or empty",
            hint="download the model again",
        )
    return entry


def _entry_of_path(path: Path) -> Entry:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot read {path}: {error.strerror}", hint="`llama-ai models` lists what is here"
        ) from error
    if path.is_dir() or size_bytes == 0:
        what = "a directory" if path.is_dir() else "an empty file"
        raise ModelNotFoundError(f"{path} is {what}, not a model", hint="name a GGUF file")
    path = path.absolute()
    found = shard_of(path.stem)
    if found is None:
        model = _File(path.parent, path.stem, {1: path}, 1)
    else:
        numbered = {
            number: path.with_name(f"{found.stem}-{number:05d}-of-{found.total:05d}.gguf")
            for number in range(1, found.total + 1)
        }
        there = {number: sibling for number, sibling in numbered.items() if sibling.exists()}
        model = _File(path.parent, found.stem, there, found.total)
    siblings = [
        one for one in _group(_listed(path.parent)) if one.files.get(1) != model.files.get(1)
    ]
    companions = [one for one in siblings if kind_of(one.stem) != "model"]
    models = [one for one in siblings if kind_of(one.stem) == "model"]
    repository = repository_of(path)
    attached = _attach([model, *models], companions, repository is not None)
    return _complete(_entry(str(path.parent), model, attached[0], repository))


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(p for p in directory.iterdir() if p.suffix.lower() == ".gguf")
    except OSError:
        return []


def _scan_place(place: Place) -> Iterator[Entry]:
    if place.layout == "ollama":
        for found in ollama_models(place.path):
            files = [path for kind, path in found.files if kind == "model"]
            sizes = [_size(path) for path in files]
            yield Entry(
                name=found.name,
                path=files[0],
                files=tuple(files),
                size_bytes=sum(sizes),
                quant=quant_of(found.name.rpartition(":")[2]),
                source=place.source,
                missing=tuple(
                    f"blob {path.name[:19]}"
                    for path, size in zip(files, sizes, strict=True)
                    if not size
                ),
                companions=tuple(
                    Companion(kind=kind, path=path, size_bytes=_size(path))
                    for kind, path in found.files
                    if kind != "model"
                ),
            )
    else:
        yield from _scan_files(place.source, place.path, published=place.layout == "published")


def _scan_files(source: str, directory: Path, *, published: bool = False) -> Iterator[Entry]:
    """``published``: the files lie in ``owner/repo/`` below ``directory``."""
    found = _group(gguf_files(directory))
    models: dict[Path, list[_File]] = {}
    for one in found:
        if kind_of(one.stem) == "model":
            models.setdefault(one.directory, []).append(one)
    companions: dict[Path, list[_File]] = {}
    for one in found:
        if kind_of(one.stem) != "model":
            # In a directory of its own (mmproj/, MTP/) a companion serves the models above it.
            home = one.directory if one.directory in models else one.directory.parent
            companions.setdefault(home, []).append(one)
    for folder, group in models.items():
        repository = repository_of(folder / "file")
        if published and len(parts := folder.relative_to(directory).parts) >= 2:
            repository = "/".join(parts[:2])
        attached = _attach(group, companions.get(folder, []), repository is not None)
        for one, mine in zip(group, attached, strict=True):
            yield _entry(source, one, mine, repository)


def _group(paths: Iterable[Path]) -> list[_File]:
    """Whole files, and shards joined by directory, name and number of parts."""
    groups: dict[tuple[Path, str, int], dict[int, Path]] = {}
    for path in paths:
        found = shard_of(path.stem)
        stem, number, total = (
            (found.stem, found.number, found.total) if found else (path.stem, 1, 1)
        )
        groups.setdefault((path.parent, stem, total), {})[number] = path
    return [
        _File(directory, stem, files, total) for (directory, stem, total), files in groups.items()
    ]


def _attach(
    models: Sequence[_File], companions: Sequence[_File], repository: bool
) -> list[tuple[Companion, ...]]:
    """For each model of a directory its companions.

    A companion that names no model ("mmproj-F16") serves all models of a repository; elsewhere it
    serves them only when they are one model in several quantisations.
    """
    one_model = repository or len({base_of(model.stem) for model in models}) == 1
    attached: list[tuple[Companion, ...]] = []
    for model in models:
        mine: list[Companion] = []
        for one in companions:
            named = belongs(one.stem, model.stem)
            if named or (one_model and (named is None or repository)):
                kind = kind_of(one.stem)
                mine.append(
                    Companion(
                        kind=kind,
                        path=one.files[min(one.files)],
                        size_bytes=sum(_size(path) for path in one.files.values()),
                        draft_kind=draft_kind_of(one.stem) if kind == "draft" else None,
                    )
                )
        attached.append(tuple(companion for companion in mine if companion.size_bytes))
    return attached


def _entry(
    source: str, found: _File, companions: tuple[Companion, ...], repository: str | None
) -> Entry:
    sizes = {number: _size(path) for number, path in found.files.items()}
    present = [found.files[number] for number in sorted(found.files)]
    return Entry(
        name=found.stem,
        path=present[0],
        files=tuple(present),
        size_bytes=sum(sizes.values()),
        quant=quant_of(found.stem),
        source=source,
        repo=repository,
        missing=tuple(
            f"part {number} of {found.total}"
            for number in range(1, found.total + 1)
            if not sizes.get(number)
        ),
        companions=companions,
    )


def _joined(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Each model once: the first place keeps the name, the others are listed with it."""
    listed: list[Entry] = []
    by_file: dict[Path, int] = {}
    by_size: dict[tuple[int, int], list[int]] = {}
    prints: dict[int, str | None] = {}

    def fingerprint(index: int, entry: Entry) -> str | None:
        if index not in prints:
            prints[index] = _fingerprint(entry.files)
        return prints[index]

    for entry in entries:
        # The cache's snapshots are links into a blob store: the link's target is the identity.
        real = _real(entry.path)
        same = by_file.get(real)
        key = (entry.size_bytes, len(entry.files))
        if same is None and not entry.missing:
            mine: str | None = None
            for index in by_size.get(key, []):
                mine = mine or _fingerprint(entry.files)
                if mine is not None and fingerprint(index, listed[index]) == mine:
                    same = index
                    break
        if same is None:
            by_file[real] = len(listed)
            if not entry.missing:
                by_size.setdefault(key, []).append(len(listed))
            listed.append(entry)
            continue
        first = listed[same]
        by_file[real] = same
        if entry.path != first.path and entry.path not in first.also:
            listed[same] = replace(
                first,
                also=(*first.also, entry.path),
                other_names=tuple(
                    sorted({*first.other_names, entry.name, *entry.other_names} - {first.name})
                ),
                repo=first.repo or entry.repo,
                companions=first.companions or entry.companions,
            )
    return tuple(listed)


def _fingerprint(files: Sequence[Path]) -> str | None:
    """Of a model's files: sizes, the start (its header) and two samples; ``None`` if unreadable.

    Fine-tunes of one model have equal sizes and nearly equal headers, hence the samples.
    """
    digest = hashlib.sha256()
    try:
        for path in files:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                digest.update(size.to_bytes(8, "little"))
                digest.update(os.pread(descriptor, _HEADER_SAMPLE_BYTES, 0))
                for offset in (size // 2, max(0, size - _SAMPLE_BYTES)):
                    digest.update(os.pread(descriptor, _SAMPLE_BYTES, offset))
            finally:
                os.close(descriptor)
    except OSError:
        return None
    return digest.hexdigest()


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of links
        return path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, RuntimeError):
        return 0


def repository_of(path: Path) -> str | None:
    """``owner/repo`` of a file in the Hugging Face cache."""
    for parent in path.parents:
        if parent.name.startswith("models--") and parent.name.count("--") >= 2:
            return parent.name.removeprefix("models--").replace("--", "/", 1)
    return None
