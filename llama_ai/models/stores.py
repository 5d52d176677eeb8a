"""The places where models lie: our own, the user's, and other programs' stores (read only)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_ai import paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from llama_ai.models.names import Kind

MAX_DEPTH: Final = 6
MAX_FILES: Final = 20_000
_MAX_MANIFEST_BYTES: Final = 1 << 20
_SKIPPED: Final = frozenset({"blobs", ".git", ".locks", ".no_exist", ".cache"})
_OLLAMA_LAYERS: Final[dict[str, Kind]] = {
    "application/vnd.ollama.image.model": "model",
    "application/vnd.ollama.image.projector": "projector",
    "application/vnd.ollama.image.adapter": "adapter",
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory that is searched. ``layout`` says how its files are named."""

    source: str
    """For people: ``models/``, ``huggingface``, ``lmstudio``, ``ollama`` …"""
    path: Path
    layout: str = "files"
    """``files``: named GGUF files; ``published``: the same, in ``owner/repo/``; ``ollama``:
    manifests that point to blobs."""


@dataclass(frozen=True, kw_only=True)
class OllamaModel:
    """A manifest: the name that ollama knows the model by, and its files by kind."""

    name: str
    files: tuple[tuple[Kind, Path], ...]


def places(config_dirs: Sequence[Path], environ: Mapping[str, str]) -> list[Place]:
    """Where models are looked for, in the order in which a name is resolved."""
    found: list[Place] = []
    checkout = checkout_dir()
    if checkout is not None:
        found.append(Place(source="models/", path=checkout / "models"))
    found.append(Place(source="llama-ai", path=paths.data_dir() / "models"))
    found += [Place(source="config", path=path) for path in config_dirs]
    found.append(Place(source="huggingface", path=huggingface_cache(environ)))
    found += [
        Place(source="lmstudio", path=path, layout="published") for path in lmstudio_dirs(environ)
    ]
    found += [Place(source="ollama", path=path, layout="ollama") for path in ollama_dirs(environ)]
    return found


def checkout_dir() -> Path | None:
    """The checkout that this code runs from; ``None`` for an installed one."""
    directory = Path(paths.__file__).resolve().parent.parent
    return directory if (directory / "pyproject.toml").exists() else None


def huggingface_cache(environ: Mapping[str, str]) -> Path:
    """The Hugging Face cache, by the first variable that is set (``facts/field.md``'s order)."""
    for variable in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return Path(environ[variable]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "hub"
    base = environ.get("XDG_CACHE_HOME") or _home(environ) / ".cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def lmstudio_dirs(environ: Mapping[str, str]) -> list[Path]:
    """LM Studio's stores: the one of its settings, else the present and the former default."""
    home = _home(environ)
    root = home / ".lmstudio"
    try:
        # LM Studio writes the home directory that it uses into this file.
        pointed = (home / ".lmstudio-home-pointer").read_text(encoding="utf-8").strip()
        root = Path(pointed) if pointed else root
    except (OSError, UnicodeDecodeError):
        pass
    chosen = _json_object(root / "settings.json").get("downloadsFolder")
    first = Path(chosen) if isinstance(chosen, str) and chosen else root / "models"
    return [first, home / ".cache" / "lm-studio" / "models"]


def ollama_dirs(environ: Mapping[str, str]) -> list[Path]:
    """ollama's stores: the user's (``OLLAMA_MODELS``), and the one of its system service."""
    if environ.get("OLLAMA_MODELS"):
        return [Path(environ["OLLAMA_MODELS"]).expanduser()]
    return [_home(environ) / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def gguf_files(directory: Path) -> Iterator[Path]:
    """GGUF files below ``directory``, bounded in depth and number, in name order."""
    count = 0
    base_depth = len(directory.parts)
    seen: set[tuple[int, int]] = set()
    # Linked directories count too (models on another disk), each directory once: links can loop.
    for folder, names, files in os.walk(directory, followlinks=True):
        here = Path(folder)
        try:
            status = here.stat()
        except OSError:
            continue
        # A snapshot of the cache is models--o--r/snapshots/<commit>/[sub/]file.
        if (status.st_dev, status.st_ino) in seen or len(here.parts) - base_depth > MAX_DEPTH:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in sorted(files):
            if name.lower().endswith(".gguf"):
                yield here / name
                count += 1
                if count >= MAX_FILES:
                    return


def ollama_models(directory: Path) -> Iterator[OllamaModel]:
    """The models of an ollama store; a manifest that cannot be read is passed over."""
    manifests = directory / "manifests"
    count = 0
    for folder, names, files in os.walk(manifests):
        names.sort()
        for file in sorted(files):
            path = Path(folder) / file
            layers = _json_object(path).get("layers")
            found: list[tuple[Kind, Path]] = []
            for layer in layers if isinstance(layers, list) else []:
                kind = _OLLAMA_LAYERS.get(str(_get(layer, "mediaType")))
                digest = _get(layer, "digest")
                if kind is not None and isinstance(digest, str) and _is_digest(digest):
                    found.append((kind, directory / "blobs" / digest.replace(":", "-", 1)))
            if any(kind == "model" for kind, _ in found):
                yield OllamaModel(name=_ollama_name(path, manifests), files=tuple(found))
            count += 1
            if count >= MAX_FILES:
                return


def _ollama_name(path: Path, manifests: Path) -> str:
    """``qwen3:8b`` for ``registry.ollama.ai/library/qwen3/8b``; others keep host and owner."""
    parts = path.relative_to(manifests).parts
    if parts[:1] == ("registry.ollama.ai",):
        parts = parts[1:]
    if parts[:1] == ("library",):
        parts = parts[1:]
    return "/".join(parts[:-1]) + ":" + parts[-1] if len(parts) > 1 else parts[-1]


def _is_digest(text: str) -> bool:
    """A digest becomes a file name: nothing but the algorithm and hexadecimal digits."""
    algorithm, _, digits = text.partition(":")
    return algorithm == "sha256" and len(digits) == 64 and set(digits) <= set("0123456789abcdef")


def _json_object(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_MANIFEST_BYTES:
            return {}
        data = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _get(layer: object, key: str) -> object:
    return layer.get(key) if isinstance(layer, dict) else None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()
