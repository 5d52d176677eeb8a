"""What the commands print: facts, plans and verdicts, as text and as JSON. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llama_ai.kernel_params.parameters import GIB, PAGE_BYTES
from llama_ai.kernel_params.verify import gib_text
from llama_ai.kernel_params.wanted import ceiling_gib, diff_text

if TYPE_CHECKING:
    from llama_ai.kernel_params.facts import ParameterFacts
    from llama_ai.kernel_params.planning import Plan
    from llama_ai.kernel_params.routes.choose import Choice
    from llama_ai.kernel_params.state import State
    from llama_ai.kernel_params.verify import Verdict


def show_text(
    facts: ParameterFacts,
    state: State | None,
    choice: Choice | None,
    boot: tuple[str, tuple[str, ...]] | None,
) -> str:
    """The lines of ``show``. ``state`` is ``None`` where only root may read it."""
    rows: list[tuple[str, str]] = [("RAM", gib_text(facts.ram_bytes))]
    if facts.ram_bytes is not None:
        rows.append(("highest safe limit", f"{ceiling_gib(facts.ram_bytes)} GiB"))
    system = " on ".join(text for text in (facts.release, facts.distro) if text)
    rows.append(("kernel", system or "unknown"))
    rows.append(("in force", _in_force(facts)))
    if facts.gttsize_mib is not None:
        rows.append(("", f"amdgpu.gttsize {facts.gttsize_mib} (MiB)"))
    for card in facts.cards:
        rows.append((f"GTT of {card.name}", gib_text(card.gtt_bytes)))
        rows.append((f"carve-out of {card.name}", gib_text(card.vram_bytes)))
        if card.carveout:
            rows.append(("firmware offers", " / ".join(card.carveout.split("\n"))))
    if facts.limit_bytes is not None and facts.gtt_bytes is not None:
        rows.append(("usable as GTT", gib_text(facts.usable_bytes)))
    for index, found in enumerate(facts.found):
        value = "" if found.value is None else f"={found.value}"
        note = f" ({found.note})" if found.note else ""
        label = "asked for by" if index == 0 else ""
        rows.append((label, f"{found.where}: {found.name}{value}: {found.verdict}{note}"))
    if boot is not None and boot[1]:
        rows.append(("boot files say", f"{boot[0]}: {' '.join(boot[1])}"))
    rows += _asked_rows(state)
    if choice is not None:
        rows.append(("route", f"{choice.route.name}: {choice.why}"))
        if choice.others:
            rows.append(("other routes here", ", ".join(choice.others)))
    return "".join(f"{label:20}{text}\n" for label, text in rows)


def _in_force(facts: ParameterFacts) -> str:
    if facts.module is None:
        return "unknown: neither ttm nor amdttm is loaded"
    limit = facts.pages_limit
    text = f"{facts.module}.pages_limit "
    text += "is not known to it" if limit is None else f"{limit} ({gib_text(limit * PAGE_BYTES)})"
    if facts.page_pool_size is not None:
        text += f", page_pool_size {facts.page_pool_size}"
    return text


def _asked_rows(state: State | None) -> list[tuple[str, str]]:
    if state is None:
        return [("last apply", "only root may read what was applied")]
    if state.asked is None:
        return [("last apply", "none")]
    asked = state.asked
    rows = [("last apply", f"{asked.gib} GiB by route {asked.route}, {asked.at}")]
    if asked.reason:
        rows.append(("", f"above the safe limit because: {asked.reason}"))
    if state.pending:
        rows.append(("", "it did not come to its end: run `apply` again, or `revert`"))
    return rows


def show_json(
    facts: ParameterFacts,
    state: State | None,
    choice: Choice | None,
    boot: tuple[str, tuple[str, ...]] | None,
) -> dict[str, Any]:
    """The body of ``show --json``; unknown is null."""
    asked = state.asked if state else None
    ram = facts.ram_bytes
    return {
        "ram_bytes": ram,
        "ceiling_bytes": None if ram is None else ceiling_gib(ram) * GIB,
        "kernel": facts.release,
        "distro": facts.distro,
        "module": facts.module,
        "pages_limit": facts.pages_limit,
        "page_pool_size": facts.page_pool_size,
        "gttsize_mib": facts.gttsize_mib,
        "limit_bytes": facts.limit_bytes,
        "gtt_bytes": facts.gtt_bytes,
        "usable_bytes": facts.usable_bytes,
        "cards": [vars(card) for card in facts.cards],
        "found": [vars(found) for found in facts.found],
        "boot_loader": boot[0] if boot else None,
        "boot_files": list(boot[1]) if boot else [],
        "asked": vars(asked) if asked else None,
        "pending": state.pending if state else None,
        "route": choice.route.name if choice else None,
        "route_why": choice.why if choice else None,
        "other_routes": list(choice.others) if choice else [],
    }


def plan_text(plan: Plan) -> str:
    """The change: route, diff, commands, notes."""
    lines: list[str] = []
    if plan.gib is not None:
        lines.append(f"limit: {plan.gib} GiB, {plan.pages} pages")
    if plan.choice is not None:
        lines.append(f"route: {plan.choice.route.name} ({plan.choice.why})")
    text = "".join(f"{line}\n" for line in lines)
    text += "".join(f"note: {note}\n" for note in plan.notes)
    text += "".join(f"{line}\n" for line in plan.instructions)
    text += "".join(diff_text(edit) for edit in plan.edits)
    text += "".join(f"then: {command}   # {command.why}\n" for command in plan.commands)
    return text


def after_text(plan: Plan) -> str:
    """What to do when ``apply`` or ``revert`` is done."""
    if plan.action == "revert":
        return "What this program had set is undone. It takes effect at the next reboot.\n"
    return (
        "Reboot for it to take effect. Then `verify` checks that the loaded module's pages_limit\n"
        f"is {plan.pages} and that the driver's GTT is {plan.gib} GiB, and says why if not.\n"
    )


def verdict_text(verdict: Verdict) -> str:
    """The lines of ``verify``."""
    word = {True: "PASS", False: "FAIL", None: "UNKNOWN"}[verdict.ok]
    text = (
        f"{word}: expected {gib_text(verdict.expected_bytes)}, "
        f"usable {gib_text(verdict.usable_bytes)}\n"
    )
    return text + "".join(f"  - {cause}\n" for cause in verdict.causes)
