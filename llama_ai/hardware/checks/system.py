"""Checks of the rest of the machine: processor and power."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.hardware.checks import Check

if TYPE_CHECKING:
    from llama_ai.hardware.facts import HardwareFacts


def cpu(facts: HardwareFacts) -> Check:
    """The instruction sets that fast CPU kernels need."""
    expected = "a CPU with AVX2 (x86-64-v3)"
    processor = facts.cpu
    name = processor.model or "model not known"
    for count, word in ((processor.cores_physical, "core"), (processor.cores_logical, "thread")):
        if count is not None:
            name += f", {count} {word}{'' if count == 1 else 's'}"
    if processor.flags is None:
        return Check(id="cpu", status="UNKNOWN", expected=expected, observed=f"{name}; no flags")
    extras = [
        word
        for word, there in (
            ("AVX-512", processor.avx512),
            ("BF16", processor.avx512_bf16),
            ("VNNI", processor.avx512_vnni or processor.avx_vnni),
        )
        if there
    ]
    observed = f"{name}, {processor.isa or 'below x86-64-v1'}"
    observed += f" with {', '.join(extras)}" if extras else ""
    if processor.avx2:
        return Check(id="cpu", status="PASS", expected=expected, observed=observed)
    return Check(
        id="cpu",
        status="WARN",
        expected=expected,
        observed=observed,
        hint="work on the CPU will be slow; in a virtual machine, pass the host's CPU through",
    )


def power(facts: HardwareFacts) -> Check:
    """External power: on battery the chip is throttled and disk traffic costs charge."""
    expected = "external power"
    charge = facts.power.battery_percent
    battery = f", battery {charge} %" if charge is not None else ""
    if facts.power.on_ac is None:
        return Check(
            id="power", status="UNKNOWN", expected=expected, observed=f"not stated{battery}"
        )
    if facts.power.on_ac:
        return Check(
            id="power", status="PASS", expected=expected, observed=f"on external power{battery}"
        )
    return Check(
        id="power",
        status="WARN",
        expected=expected,
        observed=f"on battery{battery}",
        hint="plug in for full speed; expert residency is not chosen on battery",
    )
