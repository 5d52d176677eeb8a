"""The pin (``native/upstream.toml``) and the identity of our own native sources."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path

from llama_ai import paths
from llama_ai.errors import LlamaAiError

_SUFFIXES = {".cpp", ".c", ".h", ".hpp", ".cmake", ".txt", ".in"}


@dataclass(frozen=True, kw_only=True)
class Pin:
    """The upstream source that we build: where it comes from and how it is recognised."""

    commit: str
    """Upstream's commit, 40 hex digits."""
    package: str
    version: str
    filename: str
    """Name of the source distribution's file."""
    sha256: str
    tree: str
    """Upstream's directory inside the source distribution."""


def native_dir() -> Path:
    """Our native sources: ``native/`` of the checkout, or the wheel's copy."""
    return paths.asset("native")


def read_pin(native: Path) -> Pin:
    """Parse ``upstream.toml``; :class:`~llama_ai.errors.LlamaAiError` if it is not usable."""
    path = native / "upstream.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        sdist = table["sdist"]
        pin = Pin(
            commit=str(table["upstream"]["commit"]),
            package=str(sdist["package"]),
            version=str(sdist["version"]),
            filename=str(sdist["filename"]),
            sha256=str(sdist["sha256"]).lower(),
            tree=str(sdist["tree"]),
        )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise LlamaAiError(f"cannot read the pin {path}: {error!r}") from error
    if len(pin.sha256) != 64 or Path(pin.filename).name != pin.filename:
        raise LlamaAiError(f"{path}: sha256 or filename of [sdist] is malformed")
    return pin


def native_digest(native: Path) -> str:
    """SHA-256 over what the engine is compiled from in ``native/``, apart from patches and pin.

    Tests and texts are left out: changing one must not rebuild anybody's engine.
    """
    files = [native / "CMakeLists.txt"]
    for part in ("cmake", "src"):
        files += sorted(path for path in (native / part).rglob("*") if path.suffix in _SUFFIXES)
    digest = hashlib.sha256()
    for path in files:
        data = path.read_bytes()
        digest.update(f"{path.relative_to(native).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()
