"""A root below which ``/sys``, ``/proc`` and ``/etc`` are read: the machine, or a recording of one.

Kernel files fail in ways that ordinary files do not: hwmon answers EINVAL or ENODATA, a suspended
discrete GPU EBUSY, a card can vanish between two reads. All of that means "not known" and gives
``None``; it never raises. A file that holds ``0`` gives ``0``: absent and zero stay apart.
"""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

READ_LIMIT_BYTES = 1 << 20
"""No file that detection needs is longer; a recording's author may think otherwise."""

MAX_PLAUSIBLE = 1 << 60
"""An integer above this (1 EiB in bytes) is garbage, not a fact."""

MAX_LINKS = 40
"""Symbolic links followed for one path, as in the kernel."""

TAR_LIMIT_BYTES = 64 << 20
TAR_LIMIT_MEMBERS = 20_000

_INTEGER = re.compile(r"(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20})", re.ASCII)


class Root:
    """A directory that stands for ``/``. Paths are given without a leading slash.

    Below any other directory than ``/`` no symbolic link leads out: an absolute target starts at
    the root again and ``..`` stops there, as it would for a process in a chroot.
    """

    def __init__(self, directory: str | os.PathLike[str] = "/") -> None:
        self.directory = Path(directory).resolve()
        self.is_live = self.directory == Path("/")
        """Whether this is the machine that we run on, so that commands and access checks apply."""

    def __repr__(self) -> str:
        return f"Root({str(self.directory)!r})"

    def path(self, *parts: str) -> Path:
        """The real place of ``parts``, links resolved inside the root. It need not exist."""
        if self.is_live:
            return self.directory.joinpath(*(part.lstrip("/") for part in parts))
        return self._resolve("/".join(parts))

    def read_bytes(self, *parts: str, limit: int = READ_LIMIT_BYTES) -> bytes | None:
        """At most ``limit`` bytes of a regular file; ``None`` for whatever cannot be read."""
        try:
            # A recording may hold a FIFO; a blocking open would wait for ever.
            handle = os.open(self.path(*parts), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            chunks: list[bytes] = []
            left = limit
            while left > 0 and (chunk := os.read(handle, min(left, 1 << 16))):
                chunks.append(chunk)
                left -= len(chunk)
        except OSError:
            return None
        finally:
            os.close(handle)
        return b"".join(chunks)

    def read_text(self, *parts: str, limit: int = READ_LIMIT_BYTES) -> str | None:
        """The file as text without surrounding white space; an empty file gives ``""``."""
        data = self.read_bytes(*parts, limit=limit)
        if data is None:
            return None
        return data.decode("utf-8", errors="replace").strip("\0 \t\r\n")

    def read_word(self, *parts: str) -> str | None:
        """A one-line value such as a name; ``None`` when it is absent, empty or not printable."""
        text = self.read_text(*parts, limit=4096)
        if not text or "\n" in text or not text.isprintable():
            return None
        return text

    def read_int(self, *parts: str) -> int | None:
        """A decimal or ``0x`` number from 0 to :data:`MAX_PLAUSIBLE`; garbage gives ``None``."""
        return parse_int(self.read_text(*parts, limit=4096))

    def listdir(self, *parts: str) -> list[str]:
        """Names in a directory, sorted; empty when there is none or it cannot be read."""
        try:
            return sorted(entry.name for entry in self.path(*parts).iterdir())
        except (OSError, ValueError):
            return []

    def is_dir(self, *parts: str) -> bool:
        """Whether a directory is there."""
        try:
            return self.path(*parts).is_dir()
        except (OSError, ValueError):
            return False

    def exists(self, *parts: str) -> bool:
        """Whether anything is there."""
        try:
            return self.path(*parts).exists()
        except (OSError, ValueError):
            return False

    def link_name(self, *parts: str) -> str | None:
        """The last component of a symbolic link's target (``driver`` gives ``amdgpu``)."""
        *parents, name = "/".join(parts).strip("/").split("/")
        try:
            return (self.path(*parents) / name).readlink().name or None
        except (OSError, ValueError):
            return None

    def _resolve(self, path: str) -> Path:
        """Follow ``path`` one component at a time, as the kernel does with RESOLVE_IN_ROOT."""
        pending = deque(path.split("/"))
        current: list[str] = []
        links = 0
        while pending:
            part = pending.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                del current[-1:]
                continue
            here = self.directory.joinpath(*current, part)
            try:
                target = str(here.readlink())
            except (OSError, ValueError):
                current.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                # A loop: name a path that cannot exist, so that every reader says "absent".
                return self.directory / "\0"
            if target.startswith("/"):
                current.clear()
            pending.extendleft(reversed(target.split("/")))
        return self.directory.joinpath(*current)


def parse_int(text: str | None) -> int | None:
    """A decimal or ``0x`` number from 0 to :data:`MAX_PLAUSIBLE`, or ``None``."""
    if text is None or not _INTEGER.fullmatch(text):
        return None
    value = int(text, 16 if text[:2] in ("0x", "0X") else 10)
    return value if value <= MAX_PLAUSIBLE else None


@contextmanager
def open_root(where: str | os.PathLike[str] | None = None) -> Iterator[Root]:
    """A root for ``where``: ``None`` is this machine, a directory is used, a tarball is unpacked.

    A tarball (of ``scripts/record-machine``) is unpacked into a temporary directory that is
    removed at the end. Raises :class:`~llama_ai.errors.UsageError` when ``where`` is neither, is
    damaged, or is far larger than a recording can be.
    """
    if where is None:
        yield Root("/")
        return
    path = Path(where)
    if path.is_dir():
        yield Root(path)
        return
    if not path.is_file():
        raise UsageError(
            f"--root {path}: no such directory or recording",
            hint="give a directory, or the tarball that scripts/record-machine wrote",
        )
    import tempfile

    with tempfile.TemporaryDirectory(prefix="llama-ai-root-") as directory:
        _unpack(path, Path(directory))
        yield Root(_top(Path(directory)))


def _unpack(path: Path, directory: Path) -> None:
    """Unpack a recording, refusing what is no recording: links out, devices, bombs."""
    import tarfile

    try:
        with tarfile.open(path) as archive:
            total = 0
            members: list[tarfile.TarInfo] = []
            for member in archive:
                total += max(member.size, 0)
                if total > TAR_LIMIT_BYTES or len(members) >= TAR_LIMIT_MEMBERS:
                    raise UsageError(
                        f"--root {path}: too large to be a recording of a machine",
                        hint="make one with scripts/record-machine",
                    )
                members.append(member)
            archive.extractall(directory, members=members, filter="data")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise UsageError(
            f"--root {path}: not a readable recording ({error})",
            hint="make one with scripts/record-machine",
        ) from error


def _top(directory: Path) -> Path:
    """The recording's root: the directory itself, or its only sub-directory if that holds it."""
    entries = list(directory.iterdir())
    alone = entries[0] if len(entries) == 1 else directory
    return alone if alone.is_dir() and alone.name not in ("sys", "proc", "etc") else directory
