"""Where things live: the only user of platformdirs, and the finder of shipped assets.

Directories that we create are private (0700): caches hold transcripts, state holds URLs.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import platformdirs

from llama_ai.errors import LlamaAiError

APP = "llama-ai"


def config_dir() -> Path:
    """``$XDG_CONFIG_HOME/llama-ai``: ``config.toml``."""
    return platformdirs.user_config_path(APP)


def data_dir() -> Path:
    """``$XDG_DATA_HOME/llama-ai``: downloaded models that belong to no other store."""
    return platformdirs.user_data_path(APP)


def state_dir() -> Path:
    """``$XDG_STATE_HOME/llama-ai``: logs, and what was learned about this machine."""
    return platformdirs.user_state_path(APP)


def cache_dir() -> Path:
    """``$XDG_CACHE_HOME/llama-ai``: engine builds, sources, header caches; safe to delete."""
    return platformdirs.user_cache_path(APP)


def runtime_dir() -> Path:
    """Where running instances are recorded.

    ``$XDG_RUNTIME_DIR/llama-ai`` where a login session made that directory, otherwise a private
    directory below the system's temporary directory, which must be ours: a directory that another
    user prepared is refused with :class:`~llama_ai.errors.LlamaAiError` by :func:`private`.
    """
    base = os.environ.get("XDG_RUNTIME_DIR")
    if base and Path(base).is_dir():
        return Path(base) / APP
    return Path(tempfile.gettempdir()) / f"{APP}-{os.getuid()}"


def private(path: Path) -> Path:
    """Create ``path`` (and parents) with mode 0700 and return it.

    Raises :class:`~llama_ai.errors.LlamaAiError` when it cannot be made, is a symbolic link or
    belongs to another user.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise LlamaAiError(
            f"cannot create {path}: {error.strerror}",
            hint="check the permissions and the free space of its parent directory",
        ) from error
    if stat.S_ISLNK(status.st_mode) and path.is_dir():
        status = path.stat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise LlamaAiError(
            f"{path} is not a directory of this user", hint="move it away and try again"
        )
    return path


def asset(name: str) -> Path:
    """The shipped data directory or file ``name`` (``profiles``, ``native``, ``systemd`` …).

    In a checkout it stands at the top; in a wheel below the package. Raises
    :class:`~llama_ai.errors.LlamaAiError` when the installation lacks it.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_assets" / name, package.parent / name):
        if candidate.exists():
            return candidate
    raise LlamaAiError(f"this installation lacks its data '{name}'", hint="install llama-ai again")


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Write ``data`` to ``path`` so that a reader sees the old file or the new one, never a part.

    That holds over a power cut too if ``durable``; a cache, whose readers check what they find,
    saves the wait for the disk. The parent must exist. Errors are :class:`OSError`; the temporary
    file is removed.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
