"""After the reboot: is in force what was asked for, and if not, why not? Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.kernel_params.facts import CMDLINE
from llama_ai.kernel_params.parameters import (
    GIB,
    GTTSIZE,
    LIMITS,
    PAGE_BYTES,
    PAGES_PER_GIB,
    number,
)
from llama_ai.kernel_params.wanted import ceiling_gib, reserve_bytes

if TYPE_CHECKING:
    from llama_ai.kernel_params.facts import Found, ParameterFacts
    from llama_ai.kernel_params.state import Asked


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``ok`` is ``None`` when nothing was asked for or the driver's figures are not known."""

    ok: bool | None
    expected_bytes: int | None
    usable_bytes: int | None
    """The bound that holds: the smaller of the driver's GTT and the loaded module's limit, and
    never more than RAM without the system's reserve."""
    causes: tuple[str, ...]
    """Why there is a gap, the most likely first; remarks when there is none."""


def expected_pages(facts: ParameterFacts, asked: Asked | None, gib: int | None) -> int | None:
    """What to compare with: ``--gib``, else the last ``apply``, else what the files say."""
    if gib is not None:
        return gib * PAGES_PER_GIB
    if asked is not None:
        return asked.pages
    stated = [
        number(found.value)
        for found in facts.found
        if found.name in LIMITS and found.verdict == "in use"
    ]
    return stated[-1] if stated else None


def verify(
    facts: ParameterFacts,
    *,
    asked: Asked | None,
    gib: int | None = None,
    rebuild: str | None = None,
) -> Verdict:
    """Compare and explain. ``rebuild`` is the command that makes the initramfs again."""
    pages = expected_pages(facts, asked, gib)
    usable = facts.usable_bytes
    if usable is not None and facts.ram_bytes is not None:
        usable = min(usable, max(0, facts.ram_bytes - reserve_bytes(facts.ram_bytes)))
    if pages is None:
        return Verdict(
            ok=None,
            expected_bytes=None,
            usable_bytes=usable,
            causes=("nothing was asked for: `apply --gib N` sets a limit", *_remarks(facts)),
        )
    expected = pages * PAGE_BYTES
    if facts.module is None and facts.gtt_bytes is None:
        return Verdict(
            ok=None,
            expected_bytes=expected,
            usable_bytes=None,
            causes=("the amdgpu driver is not loaded, so there is nothing to compare",),
        )
    gtt = facts.gtt_bytes
    limit_ok = facts.pages_limit == pages
    gtt_ok = gtt is None or gtt >= expected
    if limit_ok and gtt_ok and (gtt is None or gtt == expected or facts.gttsize_mib is None):
        return Verdict(
            ok=True, expected_bytes=expected, usable_bytes=usable, causes=_remarks(facts)
        )
    causes = _causes(facts, asked, pages, rebuild)
    return Verdict(ok=False, expected_bytes=expected, usable_bytes=usable, causes=tuple(causes))


def _causes(
    facts: ParameterFacts, asked: Asked | None, pages: int, rebuild: str | None
) -> list[str]:
    causes: list[str] = []
    if asked and asked.boot_id and asked.boot_id == facts.boot_id:
        causes.append("the machine has not been rebooted since `apply`")
    if facts.module is None:
        causes.append("the ttm module is not loaded")
    elif facts.pages_limit is None:
        causes.append(
            f"this kernel is too old: its {facts.module} module has no pages_limit; "
            "`apply --gttsize` writes the older amdgpu.gttsize as well"
        )
    elif facts.pages_limit != pages:
        causes += _limit_causes(facts, asked, pages, rebuild)
    causes += _gtt_causes(facts, pages)
    causes += _word_causes(facts)
    return causes or ["no cause was found: look at the kernel's log for lines of amdgpu and ttm"]


def _limit_causes(
    facts: ParameterFacts, asked: Asked | None, pages: int, rebuild: str | None
) -> list[str]:
    name = f"{facts.module}.pages_limit"
    mine = [found for found in facts.found if found.name == name]
    right = [found for found in mine if number(found.value) == pages]
    obeyed = [found for found in mine if found.verdict == "in use"]
    on_line = [found for found in mine if found.where == CMDLINE]
    if obeyed and number(obeyed[-1].value) != pages:
        last = obeyed[-1]
        if right:
            return [f"{name}={pages} is overridden later: {_place(last)} says {name}={last.value}"]
        return [f"{_place(last)} says {name}={last.value}, not {pages}"]
    if not mine:
        if asked is None or asked.route == "modprobe.d":
            return [f"no file below /etc/modprobe.d and no word on the command line sets {name}"]
        return [
            (
                f"{name} is not on the kernel's command line: this boot used another entry, or the "
                f"boot files were not written again (route {asked.route})"
            )
        ]
    if not on_line:
        again = f": run `{rebuild}` and reboot" if rebuild else ""
        return [
            (
                f"the files say {name}={pages}, but the module was loaded with {facts.pages_limit}"
                f": an old initramfs holds the old options{again}"
            )
        ]
    return [f"the command line says {name}={pages}, but it is {facts.pages_limit}: changed since"]


def _gtt_causes(facts: ParameterFacts, pages: int) -> list[str]:
    gtt, expected = facts.gtt_bytes, pages * PAGE_BYTES
    if gtt is None or gtt == expected:
        return []
    if facts.gttsize_mib is not None and facts.gttsize_mib << 20 != expected:
        return [
            (
                f"{GTTSIZE}={facts.gttsize_mib} sets GTT to {facts.gttsize_mib / 1024:.1f} GiB by "
                "itself: remove it"
            )
        ]
    if facts.pages_limit == pages and gtt < expected:
        said = any(found.name in LIMITS and number(found.value) == pages for found in facts.found)
        if not said:
            return [
                (
                    "the limit was changed while the driver ran, and amdgpu reads it only when it "
                    "starts: reboot"
                )
            ]
        return [
            (
                f"this kernel ({facts.release or 'unknown'}) does not size GTT by the page limit: "
                "a newer kernel does; `apply --gttsize` writes the older amdgpu.gttsize as well"
            )
        ]
    return []


def _word_causes(facts: ParameterFacts) -> list[str]:
    causes = []
    for found in facts.found:
        if found.verdict in ("typo", "no number", "other module"):
            value = "" if found.value is None else f"={found.value}"
            causes.append(f"{_place(found)}: {found.name}{value}: {found.note}")
    return causes


def _remarks(facts: ParameterFacts) -> tuple[str, ...]:
    remarks = _word_causes(facts)
    limit, ram = facts.limit_bytes, facts.ram_bytes
    if limit and ram and limit > max(ceiling_gib(ram) * GIB, ram // 2):
        remarks.append(
            f"a limit of {gib_text(limit)} is above {ceiling_gib(ram)} GiB, the most that is safe"
        )
    remarks += [
        f"{_place(found)}: {found.name} {found.note}"
        for found in facts.found
        if found.verdict in ("deprecated", "testing only")
    ]
    return tuple(remarks)


def _place(found: Found) -> str:
    return "the command line" if found.where == CMDLINE else found.where


def gib_text(size_bytes: int | None) -> str:
    """``62.5 GiB``; ``unknown`` for ``None``."""
    return "unknown" if size_bytes is None else f"{size_bytes / GIB:.1f} GiB"
