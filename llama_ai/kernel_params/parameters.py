"""The parameters that matter here: which are ours, what each word means, what is wrong with it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches

PAGE_BYTES = 4096
GIB = 1 << 30
PAGES_PER_GIB = GIB // PAGE_BYTES

TTM_MODULES = ("ttm", "amdttm")
LIMITS = tuple(f"{module}.pages_limit" for module in TTM_MODULES)
POOLS = tuple(f"{module}.page_pool_size" for module in TTM_MODULES)
GTTSIZE = "amdgpu.gttsize"
SIZING = (*LIMITS, *POOLS, GTTSIZE)
"""Every parameter that sizes GTT or TTM's pool; this program writes no other."""

_TTM_OTHERS = frozenset({"dma32_pages_limit"})
_PLAIN_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What shall be in force after the next boot."""

    module: str
    """The module that amdgpu uses here: ``ttm``, or ``amdttm`` with AMD's DKMS driver."""
    pages: int
    page_pool: bool = False
    """Also keep up to that many freed pages in TTM's pool."""
    gttsize: bool = False
    """Also write the deprecated ``amdgpu.gttsize``, for kernels that size GTT without TTM."""

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        """Names and values as they stand on a command line."""
        words = [(f"{self.module}.pages_limit", str(self.pages))]
        if self.page_pool:
            words.append((f"{self.module}.page_pool_size", str(self.pages)))
        if self.gttsize:
            words.append((GTTSIZE, str(self.pages * PAGE_BYTES >> 20)))
        return tuple(words)

    @property
    def drop(self) -> frozenset[str]:
        """Names that would disagree with the wanted ones: they leave whatever file is edited.

        A pool size that somebody chose stays: it bounds a cache and contradicts nothing.
        """
        pools = set(POOLS) if self.page_pool else set()
        return frozenset({*LIMITS, GTTSIZE, *pools} - {name for name, _ in self.parameters})


def number(text: str | None) -> int | None:
    """A value as the kernel reads it: decimal, ``0x…``, or octal with a leading 0."""
    if text is None or not _PLAIN_NUMBER.fullmatch(text):
        return None
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if len(text) > 1 and text[0] == "0":
        return int(text, 8) if not set(text) & {"8", "9"} else None
    return int(text)


def meant(name: str) -> str | None:
    """The parameter that a misspelt ``name`` most likely stands for; ``None`` if it is no typo.

    Takes the name as :class:`cmdline.Word` gives it, ``-`` already read as ``_``.
    """
    if name in SIZING:
        return None
    module, dot, parameter = name.partition(".")
    if not dot:
        squeezed = re.sub("[^a-z]", "", name.lower())
        for known in SIZING:
            short = known.partition(".")[2]
            if squeezed in (re.sub("[^a-z]", "", known), re.sub("[^a-z]", "", short)):
                return known
        return None
    if module == "amdgpu":
        # amdgpu has a hundred parameters, some of them close (gartsize): only gtt… is ours.
        if parameter.lower().startswith("gtt"):
            return GTTSIZE
        return f"ttm.{parameter}" if f"ttm.{parameter}" in SIZING else None
    parameters = ["pages_limit", "page_pool_size"]
    if module in TTM_MODULES:
        close = [] if parameter in _TTM_OTHERS else get_close_matches(parameter, parameters, 1, 0.7)
        return f"{module}.{close[0]}" if close else None
    if parameter in parameters:
        return f"ttm.{parameter}"
    return None
