"""Would a higher limit have made it fit? For ``serve`` and ``doctor``. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from llama_ai.kernel_params.parameters import GIB
from llama_ai.kernel_params.wanted import ceiling_gib, reserve_bytes


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A limit that is safe here and would be enough, and the command that sets it."""

    gib: int
    command: str

    @classmethod
    def of(cls, gib: int) -> Suggestion:
        """The suggestion of this limit, with its command."""
        return cls(gib=gib, command=f"llama-ai kernel-params apply --gib {gib}")

    @property
    def text(self) -> str:
        """One line for the user."""
        return f"with a GTT limit of {self.gib} GiB it would fit: `{self.command}`, then reboot"


def suggest_limit(
    *,
    ram_bytes: int | None,
    gtt_bytes: int | None,
    over_by_bytes: int,
    host_bytes: int = 0,
    gtt_share: Fraction = Fraction(1),
) -> Suggestion | None:
    """The smallest safe limit (in whole GiB) with which a rejected plan would have fitted.

    ``ram_bytes`` is MemTotal; ``gtt_bytes`` the limit in force; ``over_by_bytes`` by how much the
    plan exceeded the GPU's budget; ``host_bytes`` what it needs of system memory beside that, which
    is the same memory; ``gtt_share`` the part of each further GTT byte that the budget gains (2/3
    for RADV without the unified heap). ``None`` when something is not known, when the plan did not
    exceed the budget, or when even the ceiling would not do.
    """
    if ram_bytes is None or gtt_bytes is None or over_by_bytes <= 0 or not 0 < gtt_share <= 1:
        return None
    more = -(-over_by_bytes * gtt_share.denominator // gtt_share.numerator)
    gib = -(-(gtt_bytes + more) // GIB)
    most = ceiling_gib(ram_bytes)
    if gib > most or gtt_bytes + more + host_bytes > ram_bytes - reserve_bytes(ram_bytes):
        return None
    return Suggestion.of(gib)
