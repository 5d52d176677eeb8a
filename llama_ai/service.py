"""The systemd user service: the unit's text, and putting it in place and away again.

The unit starts ``llama-ai serve`` of this very installation with absolute paths. Whatever of the
caller's environment decides where models and caches are goes into the unit, so that the service and
the command line look in the same places.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.run import Completed, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MARKER = "Written by `llama-ai service install`; `llama-ai service uninstall` removes it."

SLOW_DISK_BYTES_PER_S = 100_000_000
"""A model is read at no less than this: an old hard disk."""
START_MARGIN_S = 120

KEPT_VARIABLES = (
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "LLAMA_CACHE",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
)


@dataclass(frozen=True, kw_only=True)
class Service:
    """What the unit is made from.

    ``serve_words`` follow ``serve``; ``model_bytes`` sizes the start time-out (unknown: ``None``);
    ``memory_max`` is a value for ``MemoryMax=`` (``24G``).
    """

    name: str
    model_path: Path
    model_bytes: int | None
    serve_words: tuple[str, ...] = ()
    memory_max: str | None = None

    @property
    def unit(self) -> str:
        """``llama-ai.service``, or ``llama-ai-NAME.service``."""
        return unit_name(self.name)


def unit_name(name: str) -> str:
    """The unit of the service ``name``; the plain name is ``llama-ai``."""
    if not name or not set(name) <= _NAME or name[0] in "-.":
        raise UsageError(
            f"{name!r} is not a name for a service", hint="use letters, digits, - and _"
        )
    return "llama-ai.service" if name == "llama-ai" else f"llama-ai-{name}.service"


_NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def unit_text(service: Service, *, template: str, python: str, environ: Mapping[str, str]) -> str:
    """The unit file (pure). ``python`` is the interpreter of this installation.

    Raises :class:`~llama_ai.errors.UsageError` for words that cannot stand in a unit file.
    """
    words = (python, "-P", "-m", "llama_ai", "serve", str(service.model_path), *service.serve_words)
    lines = [
        f"Environment={quote(f'{name}={environ[name]}')}\n"
        for name in KEPT_VARIABLES
        if environ.get(name)
    ]
    if service.memory_max is not None and not re.fullmatch(r"\d+[KMGT%]?", service.memory_max):
        raise UsageError(f"{service.memory_max!r} is not a size", hint="for example 24G or 80%")
    size_s = (service.model_bytes or 0) // SLOW_DISK_BYTES_PER_S
    memory = f"MemoryMax={service.memory_max}\n" if service.memory_max else ""
    values = {
        "@MARKER@": MARKER,
        "@DESCRIPTION@": quote_text(service.model_path.name),
        "@ENVIRONMENT@": "".join(lines),
        # The program itself takes no $ expansion, the words after it do.
        "@EXEC_START@": " ".join(quote(word, dollar=index > 0) for index, word in enumerate(words)),
        "@TIMEOUT_START_S@": str(START_MARGIN_S + size_s),
        "@MEMORY_MAX@": memory,
    }
    for word, value in values.items():
        template = template.replace(word, value)
    return template


def quote(word: str, *, dollar: bool = False) -> str:
    """One word for a unit file (systemd.syntax(7)): specifiers, quotes, and ``$`` made harmless."""
    if any(ord(char) < 32 or ord(char) == 127 for char in word):
        raise UsageError(f"{word!r} holds a control character and cannot go into a unit file")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if dollar:
        text = text.replace("$", "$$")
    plain = set(text) <= _NAME | set("/=,:@+%$")
    return text if plain and text else f'"{text}"'


def quote_text(text: str) -> str:
    """Text for a value that is not split into words."""
    return "".join(char for char in text if char.isprintable()).replace("%", "%%")


def serve_words(values: Mapping[str, object], assignments: Sequence[str]) -> tuple[str, ...]:
    """The flags of ``serve`` that say the same as these values (``None``: not given).

    Raises :class:`~llama_ai.errors.UsageError` for a secret: a unit file is no place for one.
    """
    from llama_ai.settings import SETTINGS

    words: list[str] = []
    secrets = {setting.name for setting in SETTINGS if setting.secret}
    for setting in SETTINGS:
        value = values.get(setting.name)
        if value is None:
            continue
        if isinstance(value, bool):
            off = setting.negative_flag or f"--no-{setting.flag.removeprefix('--')}"
            words.append(setting.flag if value else off)
        elif setting.name not in secrets:
            text = str(Path(str(value)).expanduser().resolve()) if setting.kind == "path" else value
            words += [setting.flag, str(text)]
        else:
            raise _no_secret(setting.flag)
    for assignment in assignments:
        if assignment.partition("=")[0].strip().replace("-", "_") in secrets:
            raise _no_secret("--set " + assignment.partition("=")[0])
        words += ["--set", assignment]
    return tuple(words)


def _no_secret(flag: str) -> UsageError:
    return UsageError(
        f"{flag} would put the key into a unit file and a process list",
        hint="use --api-key-file FILE",
    )


def unit_dir(environ: Mapping[str, str]) -> Path:
    """Where the user's units are."""
    config = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "systemd/user"


def template() -> str:
    """The shipped template."""
    return (paths.asset("systemd") / "llama-ai.service").read_text(encoding="utf-8")


def install(service: Service, environ: Mapping[str, str]) -> tuple[Path, tuple[str, ...]]:
    """Write the unit and have systemd read it; returns its path and what to do next.

    A unit of the same name that we did not write is left alone. Raises
    :class:`~llama_ai.errors.LlamaAiError` when there is no systemd or the installation cannot be
    started from elsewhere.
    """
    require_systemd()
    _check_python()
    text = unit_text(service, template=template(), python=sys.executable, environ=environ)
    path = unit_dir(environ) / service.unit
    if path.exists() and not is_ours(path):
        raise LlamaAiError(
            f"{path} exists and was not written by llama-ai", hint="choose another --name"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        paths.write_atomic(path, text.encode(), mode=0o644)
    except OSError as error:
        raise LlamaAiError(f"cannot write {path}: {error.strerror}") from error
    reload = _systemctl("daemon-reload")
    steps = [
        f"systemctl --user enable --now {service.unit}   # start now and at each login",
        "loginctl enable-linger   # start at boot and keep running without a login",
    ]
    if reload.returncode:
        steps.insert(0, "systemctl --user daemon-reload   # from within your login session")
    return path, tuple(steps)


def uninstall(name: str, environ: Mapping[str, str]) -> Path:
    """Stop and disable the service and remove the file that :func:`install` wrote, only that."""
    path = unit_dir(environ) / unit_name(name)
    if not path.exists():
        raise LlamaAiError(
            f"no service '{name}' is installed ({path})",
            hint="`llama-ai service install MODEL` makes one",
        )
    if not is_ours(path):
        raise LlamaAiError(f"{path} was not written by llama-ai", hint="remove it yourself")
    if shutil.which("systemctl"):
        _systemctl("disable", "--now", path.name)
    # Where no manager answers, the link that `enable` made is removed by hand.
    link = path.parent / "default.target.wants" / path.name
    if link.is_symlink():
        link.unlink()
    path.unlink()
    if shutil.which("systemctl"):
        _systemctl("daemon-reload")
    return path


def state(name: str, environ: Mapping[str, str]) -> dict[str, str | None]:
    """``unit``, ``path`` (``None``: not installed); ``active``, ``enabled`` as systemd says it."""
    require_systemd()
    unit = unit_name(name)
    path = unit_dir(environ) / unit
    return {
        "name": name,
        "unit": unit,
        "path": str(path) if path.exists() else None,
        "active": _systemctl("is-active", unit).output.strip() or None,
        "enabled": _systemctl("is-enabled", unit).output.strip() or None,
    }


def is_ours(path: Path) -> bool:
    """Whether :func:`install` wrote the file."""
    try:
        with path.open(encoding="utf-8") as stream:
            return stream.readline().strip() == f"# {MARKER}"
    except (OSError, UnicodeDecodeError):
        return False


def require_systemd() -> None:
    """Raise when this machine has no systemd."""
    if shutil.which("systemctl") is None:
        raise LlamaAiError(
            "this machine has no systemd (no systemctl)",
            hint="run `llama-ai serve MODEL` from your own service manager: it stays in the "
            "foreground, logs to stderr and ends on SIGTERM",
        )


def _systemctl(*words: str) -> Completed:
    return run(("systemctl", "--user", *words), timeout_s=60, check=False)


def _check_python() -> None:
    """The unit starts from another directory: the package must be installed, not just near."""
    done = run((sys.executable, "-P", "-m", "llama_ai", "--version"), cwd=Path("/"), check=False)
    if done.returncode:
        raise LlamaAiError(
            f"{sys.executable} cannot run llama_ai from another directory",
            hint="install llama-ai into it, or use scripts/llama-ai",
        )
