"""What was learned the hard way: settings at which an engine failed here, kept for the next start.

One TOML file, ``state/learned.toml``, a table per machine + model + engine. A damaged file is set
aside and said; it never stops a start.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from typing import TYPE_CHECKING

from llama_ai import paths

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Limits = dict[str, int | str]
"""Setting -> the value to begin with: ``{"ubatch_size": 256}``."""


def learned_path() -> Path:
    """Where it is kept."""
    return paths.state_dir() / "learned.toml"


def key(*parts: object) -> str:
    """A short name for machine, model and engine together."""
    text = "\0".join(str(part) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recall(name: str) -> Limits:
    """What was learned for ``name``; empty when nothing was."""
    return _read().get(name, {})


def remember(name: str, label: str, limits: Mapping[str, int | str]) -> None:
    """Keep ``limits`` for ``name``; ``label`` says to people what it is. Errors are OSError."""
    known = _read()
    known[name] = {"label": label, **limits}
    _write(known)


def forget(name: str | None = None) -> bool:
    """Drop what was learned for ``name``, or everything. Returns whether there was something."""
    known = _read()
    had = bool(known) if name is None else name in known
    if had:
        _write({} if name is None else {one: known[one] for one in known if one != name})
    return had


def _read() -> dict[str, Limits]:
    path = learned_path()
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        path.replace(path.with_suffix(".toml.damaged"))
        return {}
    return {
        name: {
            word: value
            for word, value in table.items()
            if isinstance(value, int | str) and not isinstance(value, bool)
        }
        for name, table in tables.items()
        if isinstance(table, dict)
    }


def _write(known: Mapping[str, Mapping[str, int | str]]) -> None:
    # A basic TOML string has JSON's escapes, so the standard library is enough for this.
    text = "".join(
        f"[{json.dumps(name)}]\n"
        + "".join(
            f"{word} = {json.dumps(value, ensure_ascii=False)}\n" for word, value in table.items()
        )
        + "\n"
        for name, table in known.items()
    )
    paths.private(learned_path().parent)
    paths.write_atomic(learned_path(), text.encode())
