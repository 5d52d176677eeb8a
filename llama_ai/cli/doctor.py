"""``llama-ai doctor``: what this machine is, what it can do, and what stands in the way."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption, RootOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llama_ai.config import Settings
    from llama_ai.hardware.access import RenderAccess
    from llama_ai.hardware.budgets import Budgets
    from llama_ai.hardware.checks import Check
    from llama_ai.hardware.childenv import ChildEnv
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.hardware.root import Root

_COLOURS = {"PASS": "32", "WARN": "33", "FAIL": "31", "UNKNOWN": "36"}

_TITLES = {
    "vulkan_unified": "Vulkan, one heap",
    "vulkan": "Vulkan, RADV's default",
    "rocm": "ROCm",
    "cpu": "CPU (host memory)",
}


def doctor(json: JsonOption = False, root: RootOption = None) -> None:
    """Look at hardware, memory, drivers, kernel parameters, engine and paths.

    Exit code 0 when nothing failed (warnings may be there), 5 when something did.
    """
    from llama_ai.cli.pipeline import read_settings
    from llama_ai.hardware.root import open_root

    settings = read_settings({}, [])
    with open_root(root) as place:
        facts, budgets, checks = examine(place, settings)
    if json:
        output.print_json(
            "doctor",
            {
                "machine": {**facts.to_json(), "budgets": budgets.to_json()},
                "checks": [check.to_json() for check in checks],
            },
        )
    else:
        _show(facts, budgets, checks)
    if any(check.status == "FAIL" for check in checks):
        raise typer.Exit(5)


def examine(root: Root, settings: Settings) -> tuple[HardwareFacts, Budgets, list[Check]]:
    """Gather facts and run the checks; those of engine, paths and port only on the live machine."""
    from llama_ai.cli.pipeline import overrides_from
    from llama_ai.hardware.access import render_access
    from llama_ai.hardware.budgets import budgets
    from llama_ai.hardware.checks.disk import model_disk
    from llama_ai.hardware.childenv import child_env
    from llama_ai.hardware.detect import detect
    from llama_ai.hardware.doctor import machine_checks
    from llama_ai.hardware.software import read_software

    facts = detect(
        root,
        overrides_from(settings),
    )
    known = budgets(facts)
    # Another machine's user had another environment, which a recording does not hold.
    env = child_env(facts, backend="vulkan", user_env=os.environ if root.is_live else {})
    access = None
    if root.is_live and facts.gpu is not None and facts.gpu.render_node is not None:
        access = render_access(facts.gpu.render_node)
    checks = machine_checks(
        facts,
        budgets=known,
        env=env,
        software=read_software(root),
        access=access,
        live=root.is_live,
    )
    if root.is_live:
        checks += _engine_checks(facts, known, env, settings, access)
        checks += _system_checks(root, settings)
        checks.append(_model_disk(root, settings))
    else:
        checks.append(model_disk(None, why_not="a recording has no disk to measure"))
    return facts, known, checks


def _engine_checks(
    facts: HardwareFacts,
    budgets: Budgets,
    env: ChildEnv,
    settings: Settings,
    access: RenderAccess | None,
) -> list[Check]:
    from llama_ai.cli import doctor_checks, pipeline
    from llama_ai.engine.capabilities import list_devices
    from llama_ai.errors import EngineNotReadyError
    from llama_ai.hardware.checks import Check
    from llama_ai.hardware.crosscheck import EngineReport, ReportedDevice, cross_check

    expected = "an engine that starts"
    try:
        info = pipeline.built_engine(settings)
    except EngineNotReadyError as error:
        return [
            Check(
                id="engine",
                status="FAIL",
                expected=expected,
                observed=error.message,
                hint=error.hint,
            )
        ]
    checks = [doctor_checks.engine(info, facts)]
    if info is None or facts.gpu is None or checks[0].status == "FAIL":
        return checks
    try:
        listed = list_devices(info, {**os.environ, **env.set})
    except EngineNotReadyError as error:
        failed = Check(
            id="engine-device",
            status="FAIL",
            expected=expected,
            observed=error.message,
            hint=error.hint,
        )
        return [*checks, failed]
    report = EngineReport(
        devices=tuple(
            ReportedDevice(
                name=device.name,
                description=device.description,
                total_bytes=device.total_bytes,
                free_bytes=device.free_bytes,
            )
            for device in listed
        )
    )
    return [
        *checks,
        *cross_check(
            facts,
            budgets,
            backend="vulkan",
            device=settings.text("device"),
            report=report,
            access=access,
        ),
    ]


def _system_checks(root: Root, settings: Settings) -> list[Check]:
    from llama_ai import paths
    from llama_ai.cli import doctor_checks
    from llama_ai.errors import AlreadyRunningError, UsageError
    from llama_ai.hardware.access import disk_facts
    from llama_ai.kv_cache.choice import directory_of
    from llama_ai.supervisor.ports import check_port_free
    from llama_ai.supervisor.state import instances

    used: Mapping[str, Path] = {
        "config": paths.config_dir(),
        "data": paths.data_dir(),
        "state": paths.state_dir(),
        "cache": paths.cache_dir(),
        "runtime": paths.runtime_dir(),
    }
    checks = doctor_checks.places(
        [
            doctor_checks.Place(use=use, path=str(path), writable=_writable(path))
            for use, path in used.items()
        ]
    )
    checks.append(doctor_checks.disk(disk_facts(root, directory_of(settings))))
    number = settings.number("port") or 9090
    holder, hint = None, None
    try:
        check_port_free(settings.text("host") or "127.0.0.1", number)
    except (AlreadyRunningError, UsageError) as error:
        holder, hint = error.message, error.hint
    ours = any(record.port == number and record.supervised for record in instances())
    checks.append(doctor_checks.port(number, holder=holder, ours=ours, hint=hint))
    return checks


def _model_disk(root: Root, settings: Settings) -> Check:
    """Measure the disk of the largest model (once a week, a few hundred MB)."""
    from llama_ai.hardware.checks.disk import model_disk
    from llama_ai.hardware.disk_speed import look_at
    from llama_ai.models.catalog import scan

    sizes: dict[Path, int] = {}
    for entry in scan(settings.config.model_dirs, os.environ):
        for path in entry.files:
            with contextlib.suppress(OSError):
                sizes[path] = path.stat().st_size
    if not sizes:
        return model_disk(None)
    return model_disk(look_at(root, max(sizes, key=lambda path: sizes[path])))


def _writable(path: Path) -> bool:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _show(facts: HardwareFacts, budgets: Budgets, checks: Sequence[Check]) -> None:
    for label, text in _summary(facts):
        output.line(f"{label:<10}{text}")
    output.line()
    output.line("MEMORY BUDGETS")
    for name, title in _TITLES.items():
        budget = budgets.backends[name]
        if name != "cpu" and facts.gpu is None:
            continue
        output.line(f"  {title:<24}{_amount(budget.bytes)}")
        for step in budget.steps if name in ("vulkan_unified", "cpu") else budget.steps[-1:]:
            output.line(f"      {step}")
    if budgets.pool_bytes is not None:
        output.line(
            f"  {'one pool for both':<24}{_amount(budgets.pool_bytes)}: "
            "device and host together stay below it"
        )
    output.line()
    output.line("CHECKS")
    coloured = output.colour(sys.stdout)
    width = max(len(check.id) for check in checks)
    indent = " " * (11 + width)
    for check in checks:
        status = f"{check.status:<7}"
        if coloured:
            status = f"\x1b[{_COLOURS[check.status]}m{status}\x1b[0m"
        output.line(f"  {status}  {check.id:<{width}}  {check.observed}")
        if check.status in ("WARN", "FAIL"):
            output.line(f"{indent}  expected: {check.expected}")
        if check.hint is not None and check.status != "PASS":
            output.line(f"{indent}  do: {check.hint}")
    output.line()
    output.line(_verdict(checks))


def _summary(facts: HardwareFacts) -> list[tuple[str, str]]:
    from llama_ai.hardware.budgets import size

    memory, kernel = facts.memory, facts.kernel
    gpu = facts.igpu or facts.gpu
    rows = [
        ("machine", _box(facts.power.vendor, facts.power.product)),
        ("cpu", facts.cpu.model or ""),
        ("gpu", "none that can be used" if gpu is None else _gpu_line(gpu.label, facts)),
        ("tier", f"{facts.tier}: {facts.tier_reason}"),
        ("memory", f"{size(memory.ram_bytes)} of RAM" if memory.ram_bytes else ""),
        ("system", ", ".join(word for word in (kernel.distro, kernel.release) if word)),
    ]
    if facts.igpu is not None and (kernel.boot_loader or kernel.boot_route):
        route = f"kernel parameters by {kernel.boot_route}" if kernel.boot_route else ""
        rows.append(("boot", ", ".join(word for word in (kernel.boot_loader, route) if word)))
    return [(label, text or "not known") for label, text in rows]


def _amount(count: int | None) -> str:
    from llama_ai.hardware.budgets import size

    return "not known" if count is None else size(count)


def _box(vendor: str | None, product: str | None) -> str:
    if vendor and product and product.lower().startswith(vendor.lower()):
        return product
    return " ".join(word for word in (vendor, product) if word)


def _gpu_line(label: str, facts: HardwareFacts) -> str:
    gpu = facts.igpu or facts.gpu
    assert gpu is not None  # noqa: S101 - for the type checker; the caller has looked
    words = [label]
    if gpu.name and gpu.codename:
        words.append(gpu.codename)
    if gpu.gfx:
        words.append(gpu.gfx)
    words.append(f"carve-out {_amount(gpu.vram_bytes)}")
    words.append(f"GTT {_amount(gpu.gtt_bytes)}")
    return ", ".join(words)


def _verdict(checks: Sequence[Check]) -> str:
    count = {
        status: sum(1 for check in checks if check.status == status)
        for status in ("FAIL", "WARN", "UNKNOWN")
    }
    warnings = f"{count['WARN']} warning{'' if count['WARN'] == 1 else 's'}"
    if count["FAIL"]:
        return f"{count['FAIL']} failed, {warnings}, {count['UNKNOWN']} unknown"
    if count["WARN"]:
        return f"nothing failed; {warnings}, {count['UNKNOWN']} unknown"
    return f"nothing failed; {count['UNKNOWN']} unknown"
