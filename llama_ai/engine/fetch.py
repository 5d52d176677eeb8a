"""Fetch the pinned source distribution by package name, through pip, and verify it.

pip brings the user's index, mirrors, proxies and certificates. It also wants a package's metadata
before it hands the file over, and for a source distribution that means running the package's
build backend, with more packages fetched for that. All of this can fail although the file has
arrived, and none of it is needed: a backend of three functions that only states name and version
stands in for it, so that pip runs nothing of the package.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.engine.events import Step
from llama_ai.errors import EngineNotReadyError
from llama_ai.pip import PipError, download

if TYPE_CHECKING:
    from llama_ai.engine.events import OnProgress
    from llama_ai.engine.pin import Pin

# The backend that the pinned package names in its pyproject.toml.
_BACKEND_PACKAGE = "scikit_build_core"
_BACKEND = """\
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = pathlib.Path(metadata_directory, "{name}-{version}.dist-info")
    folder.mkdir()
    text = "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n"
    (folder / "METADATA").write_text(text)
    return folder.name

def build_wheel(*_, **__):
    raise SystemExit("only the source is wanted")
"""


def fetch(pin: Pin, directory: Path, on_progress: OnProgress) -> Path:
    """The verified source distribution, from ``directory`` or else through pip into it.

    Raises :class:`~llama_ai.errors.EngineNotReadyError`: not reachable, or another hash than the
    pin's (the message holds both).
    """
    archive = directory / pin.filename
    if archive.is_file():
        if sha256(archive) == pin.sha256:
            return archive
        archive.unlink()  # cut short or damaged on disk; what pip brings is checked again
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as name:
        arrived = _download(pin, Path(name), on_progress)
        _check(pin, sha256(arrived))
        arrived.replace(archive)
    return archive


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as stream_:
        return hashlib.file_digest(stream_, "sha256").hexdigest()


def _download(pin: Pin, work: Path, on_progress: OnProgress) -> Path:
    backend = work / "backend" / _BACKEND_PACKAGE
    backend.mkdir(parents=True)
    module = pin.package.replace("-", "_")
    (backend / "__init__.py").touch()
    (backend / "build.py").write_text(_BACKEND.format(name=module, version=pin.version))
    path = [str(backend.parent), os.environ.get("PYTHONPATH", "")]
    try:
        return download(
            pin.package,
            pin.version,
            work / "files",
            sha256=pin.sha256,
            options=("--no-build-isolation", "--no-binary", ":all:"),
            environ={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            on_progress=lambda done, total, text: on_progress(
                Step(stage="fetch", done=done, total=total, text=text)
            ),
        )
    except PipError as error:
        if error.got_sha256 is not None:
            _check(pin, error.got_sha256)
        raise EngineNotReadyError(
            f"cannot fetch the engine's source: {error.message}",
            hint=f"{error.hint or 'try again'}, or build a tree that you have: "
            "llama-ai build --source DIR",
            details=error.details,
        ) from error


def _check(pin: Pin, found: str) -> None:
    if found != pin.sha256:
        raise EngineNotReadyError(
            f"the source {pin.filename} has the wrong hash: expected sha256 {pin.sha256}, "
            f"got {found}",
            hint="the package index or a mirror serves another file; nothing of it was used",
        )
