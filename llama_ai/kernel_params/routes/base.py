"""What a route is and what it answers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program to run after the files are written, as an argument list, and why."""

    argv: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return shlex.join(self.argv)


@dataclass(frozen=True, kw_only=True)
class External:
    """Parameters that another program keeps: what it held before us, and what we add."""

    route: str
    previous: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RoutePlan:
    """What a route would do.

    ``files`` are the contents that the files shall have; a file that is not named shall be as it
    was before us. ``commands`` make the change effective (``always`` ones also when no file
    changes). With ``instructions`` nothing is done: they are for the user to follow.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    commands: tuple[Command, ...] = ()
    always: tuple[Command, ...] = ()
    external: External | None = None
    notes: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Route:
    """A way to set kernel parameters."""

    name: str
    present: Callable[[Tree], bool]
    """Whether the system has what this route edits."""
    plan: Callable[[Tree, Wanted], RoutePlan]
    """What would be done; raises :class:`~llama_ai.errors.LlamaAiError` where it cannot be."""
    values: Callable[[Tree], tuple[str, ...]]
    """The sizing words that this route's files hold now, as ``name=value``."""
