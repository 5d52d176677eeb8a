"""What we did to this system, kept so that it can be undone word by word.

One JSON file below ``/var/lib`` names every file that we changed, what it held without us and
what we wrote. It is written *before* the files: at any moment of a crash each file is either as
it was or as we meant it, and both are known.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.merge import Merged, undo
from llama_ai.kernel_params.routes.base import External

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.kernel_params.tree import Tree

STATE_DIRECTORY = "/var/lib/llama-ai/kernel-params"
STATE_FILE = f"{STATE_DIRECTORY}/state.json"
STATE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The last request that was applied, for ``show`` and ``verify``."""

    gib: int
    pages: int
    module: str
    route: str
    at: str
    boot_id: str | None = None
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Touched:
    """A file of ours: what it holds without us, and every content that may be our doing."""

    base: bytes | None
    ours: tuple[bytes | None, ...]
    edited: bool = False
    """Others have edited it between our own writes; their edits are in ``base``."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that is remembered; empty before the first ``apply``."""

    asked: Asked | None = None
    files: Mapping[str, Touched]
    directories: tuple[str, ...] = ()
    """Directories that we made, outermost first."""
    external: External | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    """What makes a change of these files effective, for the way back too."""
    pending: bool = False
    """Files or commands of the last step may be missing: it did not come to its end."""


EMPTY = State(files={})


def undone(state: State, tree: Tree) -> dict[str, Merged]:
    """For each file of ours, its content without us, with the edits of others kept."""
    result: dict[str, Merged] = {}
    for path, touched in state.files.items():
        current = tree.read(path)
        merged = Merged(content=touched.base)
        if current != touched.base and current not in touched.ours:
            attempts = [
                undo(base=touched.base, written=written, current=current)
                for written in touched.ours
            ]
            clean = [attempt for attempt in attempts if not attempt.overlapped]
            merged = (clean or attempts)[-1]
        result[path] = merged
    return result


def read_state(tree: Tree) -> State:
    """The state of this system; raises :class:`~llama_ai.errors.LlamaAiError` if it is damaged."""
    data = tree.read(STATE_FILE)
    if data is None:
        return EMPTY
    try:
        return _state(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise LlamaAiError(
            f"{STATE_FILE} is damaged ({error})",
            hint=f"the files as they were lie below {STATE_DIRECTORY}/backups; "
            "look there, then move state.json away",
        ) from error


def _state(raw: dict[str, Any]) -> State:
    if raw["version"] != STATE_VERSION:
        raise ValueError(f"version {raw['version']!r}")
    asked, external = raw["asked"], raw["external"]
    return State(
        asked=Asked(**asked) if asked else None,
        files={
            str(path): Touched(
                base=_unpack(one["base"]),
                ours=tuple(_unpack(text) for text in one["ours"]),
                edited=bool(one["edited"]),
            )
            for path, one in raw["files"].items()
        },
        directories=tuple(map(str, raw["directories"])),
        external=External(
            route=external["route"],
            previous=tuple(external["previous"]),
            added=tuple(external["added"]),
        )
        if external
        else None,
        commands=tuple(tuple(map(str, argv)) for argv in raw["commands"]),
        pending=bool(raw["pending"]),
    )


def state_bytes(state: State) -> bytes:
    """The state as it is written."""
    external = state.external
    raw = {
        "version": STATE_VERSION,
        "asked": vars(state.asked) if state.asked else None,
        "files": {
            path: {
                "base": _pack(one.base),
                "ours": [_pack(data) for data in one.ours],
                "edited": one.edited,
            }
            for path, one in sorted(state.files.items())
        },
        "directories": list(state.directories),
        "external": vars(external) if external else None,
        "commands": [list(argv) for argv in state.commands],
        "pending": state.pending,
    }
    return (json.dumps(raw, indent=1) + "\n").encode()


def _pack(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _unpack(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)
