"""A request and a system, turned into the exact change: files, commands, and what to remember."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.facts import ParameterFacts, read_facts
from llama_ai.kernel_params.parameters import PAGES_PER_GIB
from llama_ai.kernel_params.routes.base import Command, External, RoutePlan
from llama_ai.kernel_params.routes.choose import Choice, choose_route, refuse_declarative
from llama_ai.kernel_params.routes.grubby import grubby_commands
from llama_ai.kernel_params.routes.rpm_ostree import rpm_ostree_commands
from llama_ai.kernel_params.state import (
    EMPTY,
    Asked,
    State,
    Touched,
    read_state,
    undone,
)
from llama_ai.kernel_params.tree import Overlay
from llama_ai.kernel_params.wanted import Edit, Request, digest, wanted_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.kernel_params.merge import Merged
    from llama_ai.kernel_params.tree import Tree

PLAN_SCHEMA = "llama-ai.kernel-params-plan/1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A change that can be shown, confirmed and carried out."""

    action: str
    """``apply`` or ``revert``."""
    request: Request | None
    gib: int | None
    pages: int | None
    choice: Choice | None
    edits: tuple[Edit, ...]
    commands: tuple[Command, ...]
    notes: tuple[str, ...]
    instructions: tuple[str, ...]
    state: State
    """What to remember once it is done; :data:`state.EMPTY` means: nothing any more."""
    keep_backups: bool = False

    @property
    def changes(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.edits or self.commands)


def plan_apply(tree: Tree, request: Request, *, now: str) -> Plan:
    """What ``apply`` would do. ``now`` is the time to remember, in any form.

    Raises the errors of :func:`wanted.resolve_gib` and of the route.
    """
    facts = read_facts(tree)
    wanted = wanted_for(request, facts)
    refuse_declarative(tree, wanted)
    state = read_state(tree)
    before = undone(state, tree)
    base = Overlay(tree, {path: merged.content for path, merged in before.items()})
    choice = choose_route(base, request.route)
    if request.route is None and state.asked is not None:
        choice = replace(choose_route(base, state.asked.route), why="it was taken before")
    plan = choice.route.plan(base, wanted)
    notes = [*_ram_note(facts), *plan.notes, *_foreign_notes(before, state)]
    if plan.instructions:
        return Plan(
            action="apply",
            request=request,
            gib=wanted.pages // PAGES_PER_GIB,
            pages=wanted.pages,
            choice=choice,
            edits=(),
            commands=(),
            notes=tuple(notes),
            instructions=plan.instructions,
            state=state,
        )
    edits = _edits(tree, {**{path: one.content for path, one in before.items()}, **plan.files})
    commands = _commands(state, plan, edits, live=tree.is_live)
    asked = Asked(
        gib=wanted.pages // PAGES_PER_GIB,
        pages=wanted.pages,
        module=wanted.module,
        route=choice.route.name,
        at=now,
        boot_id=facts.boot_id,
        reason=request.reason,
    )
    if not edits and not commands and state.asked is not None:
        # Nothing changes, so the moment from which a reboot is due does not either.
        asked = replace(asked, at=state.asked.at, boot_id=state.asked.boot_id)
    return Plan(
        action="apply",
        request=request,
        gib=asked.gib,
        pages=asked.pages,
        choice=choice,
        edits=edits,
        commands=commands,
        notes=tuple(notes),
        instructions=(),
        state=State(
            asked=asked,
            files=_touched(tree, state, before, plan.files),
            directories=state.directories,
            external=_external(state.external, plan.external),
            commands=tuple(command.argv for command in plan.commands),
        ),
    )


def plan_revert(tree: Tree) -> Plan:
    """What ``revert`` would do; raises when nothing was applied."""
    state = read_state(tree)
    if state == EMPTY:
        raise LlamaAiError(
            "nothing to revert: no `apply` of this program is on record here",
            hint="`show` lists what other tools have set",
        )
    before = undone(state, tree)
    edits = _edits(tree, {path: merged.content for path, merged in before.items()})
    old = state.external
    commands = list(_set_external(old.route, remove=old.added, add=old.previous) if old else ())
    if edits or state.pending:
        commands += _commands_of(state)
    return Plan(
        action="revert",
        request=None,
        gib=None,
        pages=None,
        choice=None,
        edits=edits,
        commands=tuple(dict.fromkeys(commands)),
        notes=_foreign_notes(before, state),
        instructions=(),
        state=EMPTY,
        keep_backups=any(
            merged.content != state.files[path].base or state.files[path].edited
            for path, merged in before.items()
        ),
    )


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: what the unprivileged side shows and the helper checks.

    File contents are given by their SHA-256 before and after, so the helper can tell whether it
    would do exactly what was confirmed.
    """
    request = plan.request
    return {
        "schema": PLAN_SCHEMA,
        "action": plan.action,
        "request": vars(request) if request else None,
        "route": plan.choice.route.name if plan.choice else None,
        "gib": plan.gib,
        "edits": [
            {
                "path": edit.path,
                "before_sha256": digest(edit.before),
                "after_sha256": digest(edit.after),
            }
            for edit in plan.edits
        ],
        "commands": [list(command.argv) for command in plan.commands],
    }


def _ram_note(facts: ParameterFacts) -> tuple[str, ...]:
    if facts.ram_bytes is not None:
        return ()
    return ("the size of RAM is not known here, so the limit could not be checked against it",)


def _edits(tree: Tree, contents: Mapping[str, bytes | None]) -> tuple[Edit, ...]:
    edits = [
        Edit(path=path, before=tree.read(path), after=content)
        for path, content in sorted(contents.items())
    ]
    return tuple(edit for edit in edits if edit.before != edit.after)


def _touched(
    tree: Tree, state: State, before: Mapping[str, Merged], files: Mapping[str, bytes]
) -> dict[str, Touched]:
    touched: dict[str, Touched] = {}
    for path, after in files.items():
        current, old = tree.read(path), state.files.get(path)
        without = before[path].content if path in before else current
        if without == after:
            continue  # it says already what we want, by another's hand: not ours to take out
        ours: list[bytes | None] = [after]
        if current not in (without, after):
            ours.insert(0, current)  # until it is written, this is what holds our earlier edit
        edited = old is not None and (old.edited or old.base != without)
        touched[path] = Touched(base=without, ours=tuple(ours), edited=edited)
    return touched


def _commands(
    state: State, plan: RoutePlan, edits: tuple[Edit, ...], *, live: bool
) -> tuple[Command, ...]:
    commands: list[Command] = []
    old, new = state.external, plan.external
    if old and (new is None or new.route != old.route):
        commands += _set_external(old.route, remove=old.added, add=old.previous)
    if old and new and old.route == new.route and not live:
        # No command has run below another root: go on from what our own ones would have made.
        if old.added != new.added:
            commands += _set_external(new.route, remove=old.added, add=new.added)
    else:
        commands += plan.always
    if edits or state.pending:
        commands += plan.commands
    if {edit.path for edit in edits} - set(plan.files):
        # Another route's files go back to what they were: its boot files must follow.
        commands += _commands_of(state)
    return tuple({command.argv: command for command in commands[::-1]}.values())[::-1]


def _commands_of(state: State) -> tuple[Command, ...]:
    return tuple(Command(argv=argv, why="make the change effective") for argv in state.commands)


def _set_external(
    route: str, *, remove: tuple[str, ...], add: tuple[str, ...]
) -> tuple[Command, ...]:
    if route == "grubby":
        return grubby_commands(remove=remove, add=add)
    return rpm_ostree_commands(remove=tuple(w for w in remove if w not in add), add=add)


def _external(old: External | None, new: External | None) -> External | None:
    """What another program held before the first ``apply``, kept over later ones."""
    if new is None or old is None or old.route != new.route:
        return new
    if new.previous == old.added:
        return replace(new, previous=old.previous)
    return replace(new, previous=tuple(word for word in new.previous if word not in old.added))


def _foreign_notes(before: Mapping[str, Merged], state: State) -> tuple[str, ...]:
    notes = []
    for path, merged in before.items():
        if merged.overlapped:
            notes.append(
                f"{path}: somebody changed the very words that were ours; left as they are"
            )
        elif merged.content != state.files[path].base or state.files[path].edited:
            notes.append(f"{path} was edited by somebody else since; those edits are kept")
    return tuple(notes)
