"""Checks of kernel parameters: what was asked for, what is in force, and words nobody reads."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from llama_ai.hardware.checks import Check
from llama_ai.hardware.root import parse_int

if TYPE_CHECKING:
    from llama_ai.hardware.facts import HardwareFacts

_OURS = {
    "ttm": ("pages_limit", "page_pool_size"),
    "amdttm": ("pages_limit", "page_pool_size"),
    "amdgpu": ("gttsize", "vramlimit", "vis_vramlimit", "gartsize"),
}
"""Parameters that size memory, by module."""


def kernel_parameters(facts: HardwareFacts) -> Check | None:
    """Parameters on the command line and in modprobe.d against what the modules really use."""
    if facts.gpu is None or facts.gpu.vendor != "1002":
        return None
    expected = "memory parameters are spelled right and in force"
    asked = requested(facts)
    if asked is None and facts.ttm.gttsize_mib:
        asked = []
    if asked is None:
        return Check(
            id="kernel-params",
            status="UNKNOWN",
            expected=expected,
            observed="the kernel's command line is not known",
        )
    problems = [*_typos(asked), *_wrong_module(facts, asked), *_not_in_force(facts, asked)]
    names = {name for name, _, _ in asked}
    if facts.ttm.gttsize_mib and ({"ttm.pages_limit", "amdttm.pages_limit"} & names):
        problems.append("amdgpu.gttsize and a page limit are both set, which gives odd results")
    elif facts.ttm.gttsize_mib:
        problems.append(
            "amdgpu.gttsize is set: it is deprecated, and what the driver then states as GTT "
            "need not be usable"
        )
    if "amdgpu.vis_vramlimit" in names:
        problems.append("amdgpu.vis_vramlimit is a testing parameter")
    if ("amd_iommu", "off") in {(name, value) for name, value, _ in asked}:
        problems.append("amd_iommu=off turns off DMA protection and the NPU for a gain of 2 %")
    shown = ", ".join(f"{name}={value}" for name, value, _ in asked if "." in name) or "none set"
    if problems:
        return Check(
            id="kernel-params",
            status="WARN",
            expected=expected,
            observed="; ".join(problems),
            hint="`llama-ai kernel-params show` prints what should be there",
        )
    return Check(id="kernel-params", status="PASS", expected=expected, observed=shown)


def requested(facts: HardwareFacts) -> list[tuple[str, str, str]] | None:
    """Name, value and place of each parameter that concerns GPU memory.

    Dashes are read as underscores, as the kernel reads them. ``None`` when neither the command
    line nor any option file is known.
    """
    kernel = facts.kernel
    if kernel.cmdline is None and not kernel.module_options:
        return None
    asked: list[tuple[str, str, str]] = []
    for word in kernel.cmdline or ():
        name, _, value = word.partition("=")
        name = name.replace("-", "_")
        if name.partition(".")[0] in _OURS or name == "amd_iommu":
            asked.append((name, value, "the kernel command line"))
    asked.extend(
        (f"{option.module}.{option.key.replace('-', '_')}", option.value, option.file)
        for option in kernel.module_options
    )
    return asked


def _typos(asked: list[tuple[str, str, str]]) -> list[str]:
    problems: list[str] = []
    for name, _, place in asked:
        module, _, key = name.partition(".")
        known = _OURS.get(module)
        if known is None or key in known:
            continue
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
        if close:
            problems.append(f"{name} in {place} is ignored: {module}.{close[0]} is meant")
    return problems


def _wrong_module(facts: HardwareFacts, asked: list[tuple[str, str, str]]) -> list[str]:
    module = facts.ttm.module
    if module is None:
        return []
    other = "ttm" if module == "amdttm" else "amdttm"
    names = {name for name, _, _ in asked}
    return [
        f"{other}.{key} has no effect: amdgpu uses {module} here"
        for key in _OURS["ttm"]
        if f"{other}.{key}" in names and f"{module}.{key}" not in names
    ]


def _not_in_force(facts: HardwareFacts, asked: list[tuple[str, str, str]]) -> list[str]:
    ttm = facts.ttm
    actual = {
        f"{ttm.module}.pages_limit": ttm.pages_limit,
        f"{ttm.module}.page_pool_size": ttm.page_pool_size,
        "amdgpu.gttsize": ttm.gttsize_mib,
    }
    problems: list[str] = []
    # The command line wins over modprobe.d, and the last of several words wins.
    last = {name: (value, place) for name, value, place in reversed(asked) if name in actual}
    for word, value, place in asked:
        if place == "the kernel command line" and word in actual:
            last[word] = (value, place)
    for name, (value, place) in last.items():
        wanted, in_force = parse_int(value), actual[name]
        if wanted is None:
            problems.append(f"{name}={value} in {place} is no number")
        elif in_force is not None and in_force != wanted:
            problems.append(
                f"{name}={wanted} stands in {place}, but {in_force} is in force (reboot?)"
            )
    return problems
