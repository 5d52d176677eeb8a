"""Limine: ``/etc/default/limine`` where limine-entry-tool writes the menu, else ``limine.conf``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.cmdline import rewrite, split_words
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.base import Command, Route, RoutePlan
from llama_ai.kernel_params.routes.shell_words import (
    assigned_words,
    assignments,
    set_in_assignments,
)
from llama_ai.kernel_params.routes.systemd_boot import (
    KERNEL_CMDLINE,
    cmdline_file_values,
    rewrite_cmdline_file,
)
from llama_ai.kernel_params.tree import NeedsRootError, encode, text_lines

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

LIMINE_DEFAULTS = "/etc/default/limine"
LIMINE_VARIABLES = r"KERNEL_CMDLINE\[[^\]\n]*\]"
LIMINE_MENUS = tuple(
    f"{place}{directory}/limine.conf"
    for place in ("/boot", "/efi", "/boot/efi", "/esp")
    for directory in ("", "/limine", "/EFI/limine", "/EFI/BOOT", "/EFI/arch-limine")
)
_MENU_CMDLINE = re.compile(r"^[ \t]*(?:kernel_)?cmdline[ \t]*:[ \t]*", re.MULTILINE | re.IGNORECASE)


def _limine_menus(tree: Tree) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in LIMINE_MENUS:
        text = tree.text(path)
        if text is not None:
            found[tree.resolve(path)] = text
    return found


def _limine_present(tree: Tree) -> bool:
    try:
        return tree.exists(LIMINE_DEFAULTS) or bool(_limine_menus(tree))
    except NeedsRootError:
        return False


def _limine_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    text = tree.text(LIMINE_DEFAULTS)
    if text is not None:
        # Each [key] is a command line of its own; several lines of one key are joined.
        keys = list(dict.fromkeys(found.name for found in assignments(text, LIMINE_VARIABLES)))
        for key in keys:
            changed = set_in_assignments(text, re.escape(key), wanted.parameters, wanted.drop)
            text = text if changed is None else changed
        if keys:
            return RoutePlan(
                files={tree.resolve(LIMINE_DEFAULTS): encode(text)}, commands=_limine_update(tree)
            )
        line = tree.text(KERNEL_CMDLINE)
        if line is not None:
            new = rewrite_cmdline_file(line, wanted)
            return RoutePlan(
                files={tree.resolve(KERNEL_CMDLINE): encode(new)}, commands=_limine_update(tree)
            )
    files = {path: encode(_set_in_menu(menu, wanted)) for path, menu in _limine_menus(tree).items()}
    files = {path: data for path, data in files.items() if data}
    if not files or not any(_MENU_CMDLINE.search(menu) for menu in _limine_menus(tree).values()):
        raise LlamaAiError(
            f"neither {LIMINE_DEFAULTS} nor a limine.conf holds a kernel command line",
            hint=f"add KERNEL_CMDLINE[default] with the whole command line to {LIMINE_DEFAULTS}, "
            "or use --route modprobe.d",
        )
    notes = ("limine.conf is edited itself: a tool that writes it again must be told too",)
    return RoutePlan(files=files, notes=notes)


def _set_in_menu(text: str, wanted: Wanted) -> str:
    lines = text_lines(text)
    for index, line in enumerate(lines):
        match = _MENU_CMDLINE.match(line)
        # A Linux command line names its root; other protocols (multiboot) have a cmdline too.
        if match and re.search(
            r"(?:^|\s)(?:root|cryptdevice|rd\.\S+|initrd)=", line[match.end() :]
        ):
            lines[index] = rewrite(line, wanted.parameters, wanted.drop, start=match.end())
    return "".join(lines)


def _limine_update(tree: Tree) -> tuple[Command, ...]:
    why = "write the boot menu again"
    if tree.exists("/usr/bin/limine-update") and not tree.exists("/usr/bin/limine-mkinitcpio"):
        return (Command(argv=("limine-update",), why=why),)
    return (Command(argv=("limine-mkinitcpio",), why=why),)


def _limine_values(tree: Tree) -> tuple[str, ...]:
    found = [
        word.text for word in assigned_words(tree.text(LIMINE_DEFAULTS) or "", LIMINE_VARIABLES)
    ]
    try:
        menus = _limine_menus(tree)
    except NeedsRootError:
        menus = {}
    for menu in menus.values():
        for line in menu.splitlines():
            match = _MENU_CMDLINE.match(line)
            if match:
                found += [word.text for word in split_words(line, start=match.end())]
    sizing = [text for text in found if any(w.name in SIZING for w in split_words(text))]
    return (*sizing, *cmdline_file_values(tree, KERNEL_CMDLINE))


LIMINE = Route(name="limine", present=_limine_present, plan=_limine_plan, values=_limine_values)
