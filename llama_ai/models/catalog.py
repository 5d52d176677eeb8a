"""Which models are here: one resolver for every command.

Read are, in this order: ``models/`` of the checkout, our data directory, the directories of
``config.toml``, and the Hugging Face cache. Split files are joined; projectors, drafts and adapters
serve another model and are not listed as models. Nothing is opened: names and sizes decide.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.errors import ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})$")
COMPANION = re.compile(
    r"(^|[-_.])(mmproj|draft|dspark|dflash|lora|adapter|imatrix)([-_.]|$)", re.IGNORECASE
)
QUANT = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q\d+_[0-9A-Z]+(?:_[A-Z]+)*|MXFP4(?:_MOE)?|BF16|F16|F32))$",
    re.IGNORECASE,
)
MAX_DEPTH = 6
MAX_FILES = 20_000


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
    """Names of shards that are not there or empty."""


@dataclass
class _Group:
    files: dict[int, Path] = field(default_factory=dict)
    total: int = 1


def directories(config_dirs: Sequence[Path], environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    """Where models are looked for, with the word that names each place."""
    places: list[tuple[str, Path]] = []
    checkout = Path(paths.__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").exists():
        places.append(("models/", checkout / "models"))
    places.append(("llama-ai", paths.data_dir() / "models"))
    places += [("config", path) for path in config_dirs]
    places.append(("huggingface", huggingface_cache(environ)))
    return places


def huggingface_cache(environ: Mapping[str, str]) -> Path:
    """The Hugging Face cache, by the first variable that is set (``facts/field.md``'s order)."""
    for variable in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return Path(environ[variable]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def scan(config_dirs: Sequence[Path], environ: Mapping[str, str]) -> tuple[Entry, ...]:
    """Every model, in the order of the places; a file reached twice is listed once."""
    entries: list[Entry] = []
    seen: set[Path] = set()
    for source, directory in directories(config_dirs, environ):
        for entry in _scan_directory(source, directory):
            # The cache's snapshots are links into a blob store: the link's target is the identity.
            identity = entry.path.resolve()
            if identity not in seen:
                seen.add(identity)
                entries.append(entry)
    return tuple(entries)


def resolve(word: str, config_dirs: Sequence[Path], environ: Mapping[str, str]) -> Entry:
    """The model that ``word`` names: a path, a name, ``owner/repo[:QUANT]``, or a unique part.

    Raises :class:`~llama_ai.errors.ModelNotFoundError` when nothing, or more than one, matches.
    """
    path = Path(word).expanduser()
    if path.suffix.lower() == ".gguf" or path.is_file():
        return _entry_of_path(path)
    if path.is_dir():
        entries = tuple(_scan_directory(str(path), path))
        if len(entries) == 1:
            return _complete(entries[0])
        if entries:
            raise _ambiguous(word, entries)
    entries = scan(config_dirs, environ)
    wanted = word.lower()
    for matches in (
        [entry for entry in entries if wanted in _exact_names(entry)],
        [entry for entry in entries if entry.name.lower().startswith(wanted)],
        [entry for entry in entries if wanted in entry.name.lower()],
    ):
        names = {entry.name.lower() for entry in matches}
        if len(names) == 1:
            return _complete(matches[0])
        if matches:
            raise _ambiguous(word, matches)
    raise ModelNotFoundError(
        f"there is no model '{word}' here",
        hint="`llama-ai models` lists what is here; `llama-ai pull demo` fetches a small one",
    )


def _exact_names(entry: Entry) -> set[str]:
    names = {entry.name.lower()}
    if entry.repo:
        names.add(entry.repo.lower())
        if entry.quant:
            names.add(f"{entry.repo}:{entry.quant}".lower())
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
    found = SHARD.match(path.stem)
    if found is None:
        return _entry(str(path.parent), {1: path}, 1, path.stem)
    siblings = (
        [
            path.with_name(f"{found['stem']}-{number:05d}-of-{found['total']}.gguf")
            for number in range(1, int(found["total"]) + 1)
        ]
        if int(found["total"]) <= 1024
        else [path]
    )
    there = {
        number: sibling for number, sibling in enumerate(siblings, start=1) if sibling.exists()
    }
    return _complete(_entry(str(path.parent), there, len(siblings), found["stem"]))


def _scan_directory(source: str, directory: Path) -> Iterator[Entry]:
    groups: dict[tuple[Path, str], _Group] = {}
    for path in _gguf_files(directory):
        found = SHARD.match(path.stem)
        stem = found["stem"] if found else path.stem
        if COMPANION.search(stem):
            continue
        group = groups.setdefault((path.parent, stem), _Group())
        group.files[int(found["number"]) if found else 1] = path
        if found:
            group.total = max(group.total, min(int(found["total"]), 1024))
    for (_, stem), group in groups.items():
        yield _entry(source, group.files, group.total, stem)


def _entry(source: str, files: Mapping[int, Path], total: int, stem: str) -> Entry:
    sizes = {number: _size(path) for number, path in files.items()}
    missing = tuple(
        f"part {number} of {total}" for number in range(1, total + 1) if not sizes.get(number)
    )
    present = [files[number] for number in sorted(files)]
    quant = QUANT.search(stem)
    return Entry(
        name=stem,
        path=present[0],
        files=tuple(present),
        size_bytes=sum(sizes.values()),
        quant=quant[1] if quant else None,
        source=source,
        repo=_repo(present[0]),
        missing=missing,
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _repo(path: Path) -> str | None:
    for parent in path.parents:
        if parent.name.startswith("models--") and parent.name.count("--") >= 2:
            return parent.name.removeprefix("models--").replace("--", "/", 1)
    return None


def _gguf_files(directory: Path) -> Iterator[Path]:
    """GGUF files below ``directory``, bounded in depth and number, in name order."""
    count = 0
    base_depth = len(directory.parts)
    for folder, names, files in os.walk(directory):
        here = Path(folder)
        # A snapshot of the cache is models--o--r/snapshots/<commit>/[sub/]file.
        if len(here.parts) - base_depth >= MAX_DEPTH:
            names.clear()
        names[:] = sorted(name for name in names if name not in {"blobs", ".git", ".locks"})
        for name in sorted(files):
            if name.lower().endswith(".gguf"):
                yield here / name
                count += 1
                if count >= MAX_FILES:
                    return
