"""The processor: model, instruction sets, cores (``/proc/cpuinfo``, ``/sys/devices/system``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.hardware.facts import CpuFacts

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"

_CPUINFO_LIMIT_BYTES = 8 << 20
"""A server with hundreds of threads and a long flag list stays below this."""

_NODE = re.compile(r"node[0-9]+", re.ASCII)
_CPU = re.compile(r"cpu[0-9]+", re.ASCII)

# Levels of the x86-64 psABI in the kernel's words (pni is SSE3, abm stands for LZCNT).
_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("x86-64-v1", frozenset({"lm", "cmov", "cx8", "fxsr", "mmx", "sse", "sse2"})),
    ("x86-64-v2", frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})),
    (
        "x86-64-v3",
        frozenset({"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}),
    ),
    ("x86-64-v4", frozenset({"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"})),
)


def read_cpu(root: Root) -> CpuFacts:
    """Read the facts; each is ``None`` where the kernel does not state it."""
    text = root.read_text("proc/cpuinfo", limit=_CPUINFO_LIMIT_BYTES) or ""
    cpus = [cpu for block in text.split("\n\n") if "processor" in (cpu := _fields(block))]
    first: dict[str, str] = cpus[0] if cpus else {}
    flags = frozenset(first["flags"].split()) if "flags" in first else None
    # Some firmware pads the name: "AMD Ryzen 7 7840U w/ Radeon  780M Graphics".
    model = " ".join(first.get("model name", "").split())
    return CpuFacts(
        model=model if model and model.isprintable() else None,
        vendor=first.get("vendor_id") or None,
        flags=flags,
        isa=isa_level(flags),
        cores_physical=_physical(cpus) or _physical(_topology(root)),
        cores_logical=len(cpus) or _count(root.read_word(CPU, "online")),
        numa_nodes=sum(1 for name in root.listdir(NODE) if _NODE.fullmatch(name)) or None,
    )


def isa_level(flags: frozenset[str] | None) -> str | None:
    """The highest x86-64 level of which every flag is there; ``None`` if even v1 is not."""
    level = None
    for name, needed in _LEVELS:
        if flags is None or not needed <= flags:
            break
        level = name
    return level


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _physical(cpus: list[dict[str, str]]) -> int | None:
    """Distinct (package, core) pairs. Core ids have gaps, so they are counted, not maximised."""
    if not cpus or not all("core id" in cpu for cpu in cpus):
        return None
    return len({(cpu.get("physical id"), cpu["core id"]) for cpu in cpus})


def _topology(root: Root) -> list[dict[str, str]]:
    cpus: list[dict[str, str]] = []
    for name in root.listdir(CPU):
        core = root.read_word(CPU, name, "topology/core_id") if _CPU.fullmatch(name) else None
        if core is not None:
            package = root.read_word(CPU, name, "topology/physical_package_id") or ""
            cpus.append({"core id": core, "physical id": package})
    return cpus


def _count(ranges: str | None) -> int | None:
    """How many CPUs a list such as ``0-7,9`` names; ``None`` when it is not such a list."""
    total = 0
    for part in (ranges or "").split(","):
        match = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part, re.ASCII)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            return None
        total += int(match[2] or match[1]) - int(match[1]) + 1
    return total
