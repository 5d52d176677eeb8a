"""Reading below a root: the machine, a recording of one, or either as it would be without us.

Paths are written as the machine knows them (``/etc/default/grub``). Symbolic links are followed
inside the root only, as in a chroot.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError

if TYPE_CHECKING:
    from collections.abc import Mapping

READ_LIMIT_BYTES = 1 << 20
MAX_LINKS = 40


class NeedsRootError(LlamaAiError):
    """A file must be read or written and only root may."""


def decode(data: bytes) -> str:
    """Text that gives back the same bytes through :func:`encode`, whatever they are."""
    return data.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """The reverse of :func:`decode`."""
    return text.encode("utf-8", "surrogateescape")


def text_lines(text: str) -> list[str]:
    """The lines with their ends, split at line feeds only (``str.splitlines`` knows many more)."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


class Tree:
    """The files below one directory. Methods raise :class:`NeedsRootError` where that is needed."""

    def __init__(self, directory: str | os.PathLike[str] = "/") -> None:
        self.directory = os.path.realpath(directory)
        self.is_live = self.directory == "/"
        """Whether this is the running machine, so that commands may run."""

    def host_path(self, path: str) -> str:
        """Where ``path`` of the tree lies on this host, links not followed."""
        return os.path.join(self.directory, path.lstrip("/"))  # noqa: PTH118 - "/" must stay "/"

    def resolve(self, path: str) -> str:
        """``path`` with its links followed inside the root; it need not exist."""
        pending = path.split("/")[::-1]
        current: list[str] = []
        links = 0
        while pending:
            part = pending.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del current[-1:]
                continue
            try:
                target = os.readlink(self.host_path("/".join([*current, part])))  # noqa: PTH115
            except PermissionError:
                raise _denied("/" + "/".join([*current, part])) from None
            except (OSError, ValueError):
                current.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                raise LlamaAiError(f"{path}: too many symbolic links")
            if target.startswith("/"):
                current.clear()
            pending.extend(target.split("/")[::-1])
        return "/" + "/".join(current)

    def read(self, path: str) -> bytes | None:
        """The content of a regular file; ``None`` when there is none.

        Raises :class:`~llama_ai.errors.LlamaAiError` for a device, a directory or a huge file.
        """
        try:
            handle = os.open(
                self.host_path(self.resolve(path)), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError:
            raise _denied(path) from None
        except OSError as error:
            raise LlamaAiError(f"cannot read {path}: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise LlamaAiError(f"{path} is not a regular file")
            with os.fdopen(handle, "rb", closefd=False) as stream:
                data = stream.read(READ_LIMIT_BYTES + 1)
        except OSError as error:
            raise LlamaAiError(f"cannot read {path}: {error.strerror}") from error
        finally:
            os.close(handle)
        if len(data) > READ_LIMIT_BYTES:
            raise LlamaAiError(f"{path} is larger than any configuration file")
        return data

    def text(self, path: str) -> str | None:
        """:meth:`read` as text that keeps every byte."""
        data = self.read(path)
        return None if data is None else decode(data)

    def fact(self, path: str) -> str | None:
        """A line of ``/sys`` or ``/proc``, stripped; every failure means "not known"."""
        try:
            data = self.read(path)
        except LlamaAiError:
            return None
        return None if data is None else data.decode("utf-8", "replace").strip("\0 \t\r\n")

    def names(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty when there is none."""
        try:
            return sorted(os.listdir(self.host_path(self.resolve(path))))  # noqa: PTH208
        except (FileNotFoundError, NotADirectoryError):
            return []
        except PermissionError:
            raise _denied(path) from None
        except OSError as error:
            raise LlamaAiError(f"cannot read {path}: {error.strerror}") from error

    def is_dir(self, path: str) -> bool:
        """Whether a directory is there."""
        return os.path.isdir(self.host_path(self.resolve(path)))  # noqa: PTH112

    def exists(self, path: str) -> bool:
        """Whether anything is there."""
        return os.path.exists(self.host_path(self.resolve(path)))  # noqa: PTH110

    def identity(self, path: str) -> tuple[int, int] | None:
        """Device and inode: the same for one file that is reached by two mount points."""
        try:
            status = os.stat(self.host_path(self.resolve(path)))  # noqa: PTH116
        except OSError:
            return None
        return status.st_dev, status.st_ino


class Overlay(Tree):
    """A tree in which some files have another content, or (``None``) are absent."""

    def __init__(self, below: Tree, contents: Mapping[str, bytes | None]) -> None:
        super().__init__(below.directory)
        self._contents = dict(contents)

    def read(self, path: str) -> bytes | None:
        """As in the tree below, unless the overlay says otherwise."""
        real = self.resolve(path)
        return self._contents[real] if real in self._contents else super().read(path)

    def names(self, path: str) -> list[str]:
        """The names below, with the overlay's files there and its absent ones gone."""
        found = set(super().names(path))
        real = self.resolve(path)
        for name, content in self._contents.items():
            directory, _, last = name.rpartition("/")
            if (directory or "/") == real:
                (found.discard if content is None else found.add)(last)
        return sorted(found)

    def exists(self, path: str) -> bool:
        """As in the tree below, unless the overlay says otherwise."""
        real = self.resolve(path)
        if real in self._contents:
            return self._contents[real] is not None
        return super().exists(path)


def _denied(path: str) -> NeedsRootError:
    return NeedsRootError(f"only root may read {path}", hint="run this with sudo")
