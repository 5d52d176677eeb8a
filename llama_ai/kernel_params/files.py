"""Writing: only what the allow-list names, through no link, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.tree import NeedsRootError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_ai.kernel_params.tree import Tree

_NAME = r"[^/.\x00-\x1f\x7f][^/\x00-\x1f\x7f]*"
_PLACE = r"(?!(?:dev|etc|home|proc|root|sys|tmp|usr|var|nix)/)(?:[^/\x00]+/){1,4}"
_ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        rf"/etc/modprobe\.d/{_NAME}\.conf",
        r"/etc/default/(?:grub|limine)",
        rf"/etc/default/grub\.d/{_NAME}\.cfg",
        r"/etc/kernel/cmdline",
        rf"/etc/cmdline\.d/{_NAME}\.conf",
        rf"/{_PLACE}loader/entries/{_NAME}\.conf",
        r"/(?:boot|efi|esp|boot/efi)/(?:(?:EFI/)?[A-Za-z-]+/)?limine\.conf",
    )
)
_STATE = re.compile(r"/var/lib/llama-ai/kernel-params/(?:state\.json|backups/[0-9TZ.-]+/.+)")
TEMPORARY = ".{}.llama-ai-new"
"""Hidden, and with an ending that no boot loader and no modprobe reads."""


def allowed(path: str) -> bool:
    """Whether a resolved path is one that this program may write."""
    return ".." not in path.split("/") and any(p.fullmatch(path) for p in (*_ALLOWED, _STATE))


class Writer:
    """Writes below the root of a tree. All methods raise :class:`~llama_ai.errors.LlamaAiError`.

    Directories are opened one by one without following links, so a link that appears between
    planning and writing is an error, never a way out of the allow-list.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        owners = {0, os.geteuid()}
        if not tree.is_live:
            owners.add(os.stat(tree.directory).st_uid)  # noqa: PTH116
        self._owners = owners

    def check(self, path: str) -> None:
        """Refuse a file that must not be written; nothing is changed."""
        with self._directory(path, make=False) as handle:
            if handle is not None:
                self._check_file(handle, path)

    def write(
        self, path: str, data: bytes, *, mode: int = 0o644, keep_mode: bool = True
    ) -> list[str]:
        """Replace or create a file at once; an existing one keeps owner, SELinux label and mode.

        ``mode`` is for a new file, or for every file without ``keep_mode``. Returns
        the directories that had to be made. When it fails, the old file is untouched.
        """
        made: list[str] = []
        with self._directory(path, make=True, made=made) as handle:
            assert handle is not None  # noqa: S101 - for the type checker: make=True gives one
            name = path.rpartition("/")[2]
            old = self._check_file(handle, path)
            temporary = TEMPORARY.format(name)
            with _explained(path), contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=handle)  # left by a run that was killed
            try:
                with _explained(path):
                    self._fill(
                        handle,
                        temporary,
                        data,
                        mode if not keep_mode or old is None else None,
                        old,
                        name,
                    )
                    os.rename(temporary, name, src_dir_fd=handle, dst_dir_fd=handle)
                    os.fsync(handle)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=handle)
                raise
        return made

    def remove(self, path: str) -> None:
        """Remove a file; it is no error when there is none."""
        with self._directory(path, make=False) as handle:
            if handle is None:
                return
            self._check_file(handle, path)
            with _explained(path), contextlib.suppress(FileNotFoundError):
                os.unlink(path.rpartition("/")[2], dir_fd=handle)
                os.fsync(handle)

    def sweep(self, path: str) -> None:
        """Remove what a run that was killed may have left beside a file."""
        with self._directory(path, make=False) as handle:
            if handle is not None:
                with _explained(path), contextlib.suppress(FileNotFoundError):
                    os.unlink(TEMPORARY.format(path.rpartition("/")[2]), dir_fd=handle)

    def remove_directory(self, path: str) -> None:
        """Remove a directory that we made, if it is empty."""
        with contextlib.suppress(OSError):
            os.rmdir(self._tree.host_path(self._tree.resolve(path)))  # noqa: PTH106

    def mode_of(self, path: str) -> int | None:
        """The permission bits of a file; ``None`` when there is none."""
        try:
            status = os.stat(self._tree.host_path(self._tree.resolve(path)))  # noqa: PTH116
        except OSError:
            return None
        return stat.S_IMODE(status.st_mode)

    def _check_file(self, handle: int, path: str) -> os.stat_result | None:
        try:
            with _explained(path):
                status = os.stat(path.rpartition("/")[2], dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(status.st_mode):
            raise LlamaAiError(f"{path} is not a regular file: not touched")
        self._check_owner(status, path)
        return status

    def _check_owner(self, status: os.stat_result, path: str) -> None:
        if status.st_uid not in self._owners:
            raise LlamaAiError(
                f"{path} belongs to user {status.st_uid}: not touched",
                hint="boot files should belong to root; check who made it",
            )
        if (
            self._tree.is_live
            and status.st_mode & stat.S_IWOTH
            and not status.st_mode & stat.S_ISVTX
        ):
            raise LlamaAiError(f"{path} is writable for everybody: not touched")

    @contextlib.contextmanager
    def _directory(
        self, path: str, *, make: bool, made: list[str] | None = None
    ) -> Iterator[int | None]:
        """The open directory of ``path``; ``None`` when it is absent and shall not be made."""
        if not allowed(path):
            raise LlamaAiError(f"{path} is not a file that this program may write")
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with _explained("/"):
            handle = os.open(self._tree.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            here = ""
            for part in path.split("/")[1:-1]:
                here += "/" + part
                try:
                    with _explained(here):
                        below = os.open(part, flags, dir_fd=handle)
                except FileNotFoundError:
                    if not make:
                        yield None
                        return
                    with _explained(here):
                        os.mkdir(part, 0o755, dir_fd=handle)
                        below = os.open(part, flags, dir_fd=handle)
                    if made is not None:
                        made.append(here)
                os.close(handle)
                handle = below
                self._check_owner(os.fstat(handle), here)
            yield handle
        finally:
            os.close(handle)

    def _fill(
        self,
        handle: int,
        temporary: str,
        data: bytes,
        mode: int | None,
        old: os.stat_result | None,
        name: str,
    ) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        new = os.open(temporary, flags, 0o600, dir_fd=handle)
        try:
            # FAT knows neither owner nor mode, and needs neither.
            with contextlib.suppress(PermissionError):
                if old is not None:
                    os.fchown(new, old.st_uid, old.st_gid)
            with contextlib.suppress(PermissionError):
                os.fchmod(new, stat.S_IMODE(old.st_mode) if mode is None and old else mode or 0o600)
            if old is not None:
                _copy_label(handle, name, new)
            left = memoryview(data)
            while left:
                left = left[os.write(new, left) :]
            os.fsync(new)
        finally:
            os.close(new)


def _copy_label(handle: int, name: str, new: int) -> None:
    """Give the new file the old one's SELinux label, where there is such a thing."""
    with contextlib.suppress(OSError):
        old = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        try:
            os.setxattr(new, "security.selinux", os.getxattr(old, "security.selinux"))
        finally:
            os.close(old)


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    """Say in our words why the system refused; "no such file" is left to the caller."""
    try:
        yield
    except FileNotFoundError:
        raise
    except PermissionError:
        raise NeedsRootError(f"only root may write {path}", hint="run this with sudo") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise LlamaAiError(f"{path} is a link or no directory: not touched") from None
        hints = {
            errno.EROFS: "the file system is mounted read-only",
            errno.ENOSPC: "free some space on that file system",
            errno.EDQUOT: "free some space on that file system",
        }
        raise LlamaAiError(
            f"cannot write {path}: {error.strerror}", hint=hints.get(error.errno or 0)
        ) from error
