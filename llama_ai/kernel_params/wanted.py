"""What is asked for, how far it may go, and the change that it needs, as a diff. Pure."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.kernel_params.parameters import GIB, PAGES_PER_GIB, Wanted
from llama_ai.kernel_params.tree import decode, text_lines

if TYPE_CHECKING:
    from llama_ai.kernel_params.facts import ParameterFacts

MAX_GIB = 4096
REASON_LIMIT = 200
CEILING_PERCENT = 85


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the user asked for. ``gib`` is ``None`` for ``--auto``, ``route`` for "choose one"."""

    gib: int | None
    route: str | None = None
    page_pool: bool = False
    gttsize: bool = False
    force: bool = False
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.gib is not None and not 1 <= self.gib <= MAX_GIB:
            raise UsageError(f"--gib {self.gib}: give whole GiB from 1 to {MAX_GIB}")
        if self.force and not (self.reason or "").strip():
            raise UsageError("--force needs --reason: say why this machine may go above the limit")
        if self.reason is not None and not self.force:
            raise UsageError("--reason belongs to --force")
        if self.reason is not None and (
            len(self.reason) > REASON_LIMIT or not self.reason.isprintable()
        ):
            raise UsageError(f"--reason: one printable line of at most {REASON_LIMIT} characters")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One file: what it holds and what it shall hold; ``None`` where there is no file."""

    path: str
    before: bytes | None
    after: bytes | None


def reserve_bytes(ram_bytes: int) -> int:
    """What the system keeps at least: 8 GiB, or 6 GiB on machines under 32 GiB."""
    return (8 if ram_bytes >= 32 * GIB else 6) * GIB


def ceiling_gib(ram_bytes: int) -> int:
    """The largest limit in whole GiB that is written without ``--force``; 0 when there is none.

    At most 85 % of RAM, and never less left than :func:`reserve_bytes`. On a 128 GB Strix Halo
    (125 GiB seen by the system) that is 106; 104 is known to work and 110 to crash.
    """
    most = min(ram_bytes * CEILING_PERCENT // 100, ram_bytes - reserve_bytes(ram_bytes))
    return max(0, most // GIB)


def resolve_gib(request: Request, facts: ParameterFacts) -> int:
    """The limit to write in GiB: as asked, or for ``--auto`` the ceiling.

    Raises :class:`~llama_ai.errors.UsageError` above the ceiling without ``--force``, above all of
    RAM in any case, and :class:`~llama_ai.errors.LlamaAiError` when ``--auto`` has nothing to give.
    """
    ram = facts.ram_bytes
    if request.gib is None:
        if ram is None:
            raise LlamaAiError("the size of RAM is not known here", hint="give --gib N")
        most = ceiling_gib(ram)
        if most * GIB <= ram // 2:
            raise LlamaAiError(
                f"the kernel's own limit, half of {ram / GIB:.1f} GiB, is as much as this machine "
                "can spare",
                hint="nothing to do; --gib N sets a limit all the same",
            )
        return most
    if ram is None:
        return request.gib
    most = ceiling_gib(ram)
    if request.gib * GIB >= ram:
        raise UsageError(
            f"--gib {request.gib}: the system has {ram / GIB:.1f} GiB in all",
            hint=f"at most {most} GiB is advisable here",
        )
    if request.gib > most and not request.force:
        raise UsageError(
            f"--gib {request.gib} is above {most} GiB, the most that is safe with "
            f"{ram / GIB:.1f} GiB of RAM",
            hint="the system needs the rest; `--force --reason TEXT` overrides this",
        )
    return request.gib


def wanted_for(request: Request, facts: ParameterFacts) -> Wanted:
    """The parameters for a request on a machine; raises as :func:`resolve_gib`."""
    return Wanted(
        module=facts.module or "ttm",
        pages=resolve_gib(request, facts) * PAGES_PER_GIB,
        page_pool=request.page_pool,
        gttsize=request.gttsize or needs_gttsize(facts),
    )


def needs_gttsize(facts: ParameterFacts) -> bool:
    """Whether this kernel's TTM has no limit to set, so that only the older parameter works."""
    return facts.module is not None and facts.pages_limit is None


def diff_text(edit: Edit) -> str:
    """The edit as a unified diff; bytes that are no UTF-8 are shown as ``?``."""

    def lines(data: bytes | None) -> list[str]:
        text = "" if data is None else decode(data).encode("utf-8", "replace").decode()
        # A boot file is no place for escape sequences, and a terminal is no place to try them.
        return text_lines("".join(c if c.isprintable() or c in "\n\t" else "?" for c in text))

    old = edit.path if edit.before is not None else "/dev/null"
    new = edit.path if edit.after is not None else "/dev/null"
    return "".join(
        line if line.endswith("\n") else line + "\n\\ No newline at end of file\n"
        for line in difflib.unified_diff(lines(edit.before), lines(edit.after), old, new)
    )


def digest(data: bytes | None) -> str | None:
    """The SHA-256 of a content; ``None`` for no file."""
    return None if data is None else hashlib.sha256(data).hexdigest()
