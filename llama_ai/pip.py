"""Fetch one file of a package by its name, through pip.

pip brings the user's index, mirrors, proxies and certificates, so nothing of that is ours.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.run import CommandFailedError, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_GOT = re.compile(r"^\s*Got\s+([0-9a-f]{64})\s*$")


class PipError(LlamaAiError):
    """pip is missing, could not fetch the file, or refused it for its hash.

    ``got_sha256`` is the hash of what arrived, when that was pip's complaint.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: tuple[str, ...] = (),
        got_sha256: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint, details=details)
        self.got_sha256 = got_sha256


def download(
    package: str,
    version: str,
    directory: Path,
    *,
    on_progress: Callable[[int, int | None, str], None],
    sha256: str | None = None,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Path:
    """The file of ``package==version`` in ``directory``, which must be empty or absent.

    ``on_progress(done_bytes, total_bytes, text)`` is called along the way; ``options`` go to
    ``pip download``; with ``sha256`` pip itself refuses another file. Raises :class:`PipError`.
    """
    pip_version = _pip_version()
    directory.mkdir(parents=True, exist_ok=True)
    requirement = directory.with_name(f"{directory.name}.txt")
    pinned = f" --hash=sha256:{sha256}" if sha256 else ""
    requirement.write_text(f"{package}=={version}{pinned}\n", encoding="utf-8")
    got: list[str] = []

    def on_line(text: str) -> None:
        if match := _PROGRESS.fullmatch(text.strip()):
            done, total = int(match[1]), int(match[2])
            on_progress(done, total, f"{done >> 20} of {total >> 20} MiB")
        elif match := _GOT.match(text):
            got.append(match[1])

    on_progress(0, None, f"{package} {version}")
    try:
        stream(
            [
                *(sys.executable, "-m", "pip", "download", "--no-deps", *options),
                *(("--require-hashes",) if sha256 else ()),
                *("--requirement", requirement, "--dest", directory),
                *("--no-cache-dir", "--retries", "2", "--no-input"),
                # The machine-readable bar came with pip 24.1.
                *("--progress-bar", "raw" if pip_version >= (24, 1) else "off"),
            ],
            on_line,
            env=environ,
        )
    except CommandFailedError as error:
        # pip's list of every version that exists says nothing here.
        lines = [line[:160] for line in error.details if "from versions:" not in line]
        raise PipError(
            f"pip could not get {package} {version}",
            hint="check the network and pip's settings",
            details=tuple(lines[-4:]),
            got_sha256=got[0] if got else None,
        ) from error
    files = list(directory.iterdir())
    if len(files) != 1:
        raise PipError(f"pip brought {len(files)} files for {package}, not one")
    return files[0]


def _pip_version() -> tuple[int, ...]:
    from importlib import metadata  # slow, and only a fetch needs it

    try:
        words = metadata.version("pip").split(".")[:2]
    except metadata.PackageNotFoundError:
        raise PipError(
            f"{sys.executable} has no pip, which fetches packages",
            hint=f"run `{sys.executable} -m ensurepip`, or start llama-ai by scripts/llama-ai",
        ) from None
    return tuple(int(word) for word in words if word.isdigit())
