"""Fedora and its kin: ``grubby`` edits the entries, the defaults and ``/etc/kernel/cmdline``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.kernel_params.cmdline import Word, split_words
from llama_ai.kernel_params.facts import CMDLINE, distro_ids
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.base import Command, External, Route, RoutePlan
from llama_ai.kernel_params.routes.entries import (
    entry_values,
    option_words,
    read_entries,
    readable_entries,
)

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

_GRUBBY_WHY = "change the command line of every installed kernel"


def _grubby_present(tree: Tree) -> bool:
    if any(tree.exists(f"/usr/{directory}/grubby") for directory in ("sbin", "bin")):
        return True
    kin = {"fedora", "rhel", "centos"} & set(distro_ids(tree))
    return bool(kin) and (tree.is_dir("/boot/grub2") or tree.exists("/etc/default/grub"))


def _grubby_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    lines = [option_words(entry.text) for entry in read_entries(tree)]
    if not lines:
        lines = [split_words(tree.fact(CMDLINE) or "")]
    new = tuple(f"{name}={value}" for name, value in wanted.parameters)
    names = {*wanted.drop, *(name for name, _ in wanted.parameters)}
    sizing = [[word for word in words if word.name in names] for words in lines]
    previous = sizing_texts(sizing)
    if all(tuple(word.text for word in words) == new for words in sizing):
        return RoutePlan(external=External(route="grubby", previous=previous, added=new))
    return RoutePlan(
        always=grubby_commands(remove=previous, add=new),
        external=External(route="grubby", previous=previous, added=new),
        notes=(
            ("the installed kernels disagree on these parameters: they will be alike afterwards",)
            if len({tuple(word.text for word in words) for words in sizing}) > 1
            else ()
        ),
    )


def sizing_texts(lines: list[list[Word]]) -> tuple[str, ...]:
    """What the lines held, each word once, in order."""
    return tuple(dict.fromkeys(word.text for words in lines for word in words))


def grubby_commands(*, remove: tuple[str, ...], add: tuple[str, ...]) -> tuple[Command, ...]:
    """Two calls where something must go first, so that their order is certain."""
    commands: list[Command] = []
    every = ("grubby", "--update-kernel=ALL")
    names = tuple(dict.fromkeys(word.partition("=")[0].strip('"') for word in remove))
    if names:
        commands.append(Command(argv=(*every, f"--remove-args={' '.join(names)}"), why=_GRUBBY_WHY))
    if add:
        commands.append(Command(argv=(*every, f"--args={' '.join(add)}"), why=_GRUBBY_WHY))
    return tuple(commands)


def _grubby_values(tree: Tree) -> tuple[str, ...]:
    values = entry_values(readable_entries(tree))
    words = split_words(tree.fact(CMDLINE) or "")
    return values or tuple(word.text for word in words if word.name in SIZING)


GRUBBY = Route(name="grubby", present=_grubby_present, plan=_grubby_plan, values=_grubby_values)
