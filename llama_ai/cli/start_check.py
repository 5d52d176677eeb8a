"""When the engine is up: does what it says of its devices agree with what the plan was made for?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.cli import output

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_ai.hardware.checks import Check
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.planning import Profile


def start_check(profile: Profile, facts: HardwareFacts, log: Iterable[str]) -> tuple[Check, ...]:
    """Compare the plan with the engine's log, and with what it listed before it was started."""
    from llama_ai.hardware.access import render_access
    from llama_ai.hardware.budgets import budgets
    from llama_ai.hardware.crosscheck import (
        EngineReport,
        ReportedDevice,
        cross_check,
        parse_log,
    )

    target, memory = profile.target, profile.plan.memory
    report = parse_log(log)
    device = target.device
    if device is not None and not report.devices:
        listed = ReportedDevice(
            name=device.name,
            description=device.description,
            total_bytes=device.total_bytes,
            free_bytes=device.free_bytes,
        )
        report = EngineReport(devices=(listed,), model_buffers=report.model_buffers)
    node = facts.gpu.render_node if facts.gpu else None
    return cross_check(
        facts,
        budgets(facts),
        backend=target.backend,
        device=device.name if device else None,
        report=report,
        planned_weights_bytes=memory.gpu.weights_bytes,
        access=render_access(node) if node else None,
        unified_heap=target.child_env.unified_heap,
    )


def say(checks: Sequence[Check]) -> None:
    """Warnings and failures on stderr, failures loudly."""
    for check in checks:
        if check.status not in ("WARN", "FAIL"):
            continue
        word = "WARNING" if check.status == "WARN" else "THE PLAN IS NOT WHAT RUNS"
        output.note(f"{word}: expected that {check.expected}, but {check.observed}")
        if check.hint:
            output.note(f"  {check.hint}")
