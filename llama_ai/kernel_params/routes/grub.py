"""GRUB: a drop-in where ``grub-mkconfig`` reads them, else ``/etc/default/grub`` itself."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.kernel_params.facts import distro_ids
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.base import Command, Route, RoutePlan
from llama_ai.kernel_params.routes.shell_words import (
    assigned_words,
    assignments,
    drop_from_assignments,
    set_in_assignments,
)
from llama_ai.kernel_params.tree import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

GRUB_DEFAULTS = "/etc/default/grub"
GRUB_DROP_INS = "/etc/default/grub.d"
GRUB_DROP_IN = f"{GRUB_DROP_INS}/zz-llama-ai.cfg"
GRUB_VARIABLE = "GRUB_CMDLINE_LINUX_DEFAULT"
GRUB_VARIABLES = r"GRUB_CMDLINE_LINUX(?:_[A-Z0-9_]+)?"
_GRUB_MARK = "# Written by llama-ai kernel-params: the memory that the GPU may use.\n"


def _grub_present(tree: Tree) -> bool:
    return (
        tree.exists(GRUB_DEFAULTS)
        or bool(tree.names(GRUB_DROP_INS))
        or any(tree.is_dir(f"/boot/{name}") for name in ("grub", "grub2"))
    )


def _reads_drop_ins(tree: Tree) -> bool:
    """Upstream's grub-mkconfig knows no drop-ins; Debian and those who follow it patched it."""
    for program in ("/usr/sbin/grub-mkconfig", "/usr/bin/grub-mkconfig"):
        text = tree.text(program)
        if text:
            return "default/grub.d" in text
    ids = distro_ids(tree)
    return "debian" in ids or "ubuntu" in ids or tree.is_dir(GRUB_DROP_INS)


def _grub_files(tree: Tree) -> Iterator[tuple[str, str]]:
    """The files that are sourced, in order."""
    names = [GRUB_DEFAULTS]
    if _reads_drop_ins(tree):
        names += [f"{GRUB_DROP_INS}/{n}" for n in tree.names(GRUB_DROP_INS) if n.endswith(".cfg")]
    for name in names:
        text = tree.text(name)
        if text is not None:
            yield name, text


def _grub_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    files: dict[str, bytes] = {}
    notes: list[str] = []
    if _reads_drop_ins(tree):
        names = {*wanted.drop, *(name for name, _ in wanted.parameters)}
        for path, text in _grub_files(tree):
            changed = drop_from_assignments(text, GRUB_VARIABLES, names)
            if path != GRUB_DROP_IN and changed != text:
                files[tree.resolve(path)] = encode(changed)
            if path > GRUB_DROP_IN and any(
                a.name == GRUB_VARIABLE for a in assignments(text, GRUB_VARIABLES)
            ):
                notes.append(
                    f"{path} is read later and sets {GRUB_VARIABLE} too: `verify` will tell"
                )
        words = " ".join(f"{name}={value}" for name, value in wanted.parameters)
        line = f'{GRUB_VARIABLE}="${{{GRUB_VARIABLE}:+${GRUB_VARIABLE} }}{words}"\n'
        own = tree.text(GRUB_DROP_IN)
        kept = _GRUB_MARK if own is None else drop_from_assignments(own, GRUB_VARIABLES, names)
        files[tree.resolve(GRUB_DROP_IN)] = encode(kept + line)
    else:
        text = tree.text(GRUB_DEFAULTS) or ""
        if re.search(r"^\s*GRUB_ENABLE_BLSCFG=[\"']?true", text, re.MULTILINE):
            notes.append("the entries here are BLS files, which this may not reach: see grubby")
        drop = {*wanted.drop, *(name for name, _ in wanted.parameters)}
        variable = GRUB_VARIABLE
        if not assignments(text, GRUB_VARIABLE) and assignments(text, "GRUB_CMDLINE_LINUX"):
            variable = "GRUB_CMDLINE_LINUX"
        # What stands in another variable (GRUB joins them) would be a second one.
        others = rf"(?!{variable}\b){GRUB_VARIABLES}"
        text = drop_from_assignments(text, others, drop)
        changed_text = set_in_assignments(text, variable, wanted.parameters, wanted.drop)
        if changed_text is None:
            words = " ".join(f"{name}={value}" for name, value in wanted.parameters)
            gap = "" if text.endswith("\n") or not text else "\n"
            changed_text = f'{text}{gap}{GRUB_VARIABLE}="{words}"\n'
        files[tree.resolve(GRUB_DEFAULTS)] = encode(changed_text)
    return RoutePlan(files=files, commands=grub_commands(tree), notes=tuple(notes))


def grub_commands(tree: Tree) -> tuple[Command, ...]:
    """Make ``grub.cfg`` again, by the name that the distribution gives to it."""
    why = "write grub.cfg again"
    ids = distro_ids(tree)
    if (
        tree.exists("/usr/sbin/update-grub")
        or tree.exists("/usr/bin/update-grub")
        or ("debian" in ids or "ubuntu" in ids or "steamos" in ids)
    ):
        return (Command(argv=("update-grub",), why=why),)
    if tree.is_dir("/boot/grub2") or tree.exists("/usr/sbin/grub2-mkconfig"):
        return (Command(argv=("grub2-mkconfig", "-o", "/boot/grub2/grub.cfg"), why=why),)
    return (Command(argv=("grub-mkconfig", "-o", "/boot/grub/grub.cfg"), why=why),)


def _grub_values(tree: Tree) -> tuple[str, ...]:
    return tuple(
        word.text
        for _, text in _grub_files(tree)
        for word in assigned_words(text, GRUB_VARIABLES)
        if word.name in SIZING
    )


GRUB = Route(name="grub", present=_grub_present, plan=_grub_plan, values=_grub_values)
