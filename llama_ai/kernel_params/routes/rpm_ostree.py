"""Image-based Fedora (Silverblue, Bazzite): the deployment's kernel arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.kernel_params.cmdline import split_words
from llama_ai.kernel_params.facts import CMDLINE, os_release
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.base import Command, External, Route, RoutePlan
from llama_ai.kernel_params.routes.entries import option_words, readable_entries

if TYPE_CHECKING:
    from llama_ai.kernel_params.cmdline import Word
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

_IMAGES = frozenset(
    {"silverblue", "kinoite", "sericea", "onyx", "coreos", "bazzite", "bluefin", "aurora", "iot"}
)


def _ostree_present(tree: Tree) -> bool:
    if (
        tree.exists("/run/ostree-booted")
        or tree.is_dir("/ostree")
        or tree.is_dir("/sysroot/ostree")
    ):
        return True
    if any(word.name == "ostree" for word in split_words(tree.fact(CMDLINE) or "")):
        return True
    system = os_release(tree)
    named = f"{system.get('ID', '')} {system.get('VARIANT_ID', '')}".lower().replace("-", " ")
    return bool(_IMAGES & set(named.split()))


def _ostree_now(tree: Tree) -> list[Word]:
    """The arguments of the deployment that boots next: its entry, else the running line."""
    entries = [e for e in readable_entries(tree) if e.path.rpartition("/")[2].startswith("ostree")]
    if entries:
        return option_words(max(entries, key=lambda entry: entry.path).text)
    return split_words(tree.fact(CMDLINE) or "")


def _ostree_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    new = tuple(f"{name}={value}" for name, value in wanted.parameters)
    names = {*wanted.drop, *(name for name, _ in wanted.parameters)}
    held = tuple(word.text for word in _ostree_now(tree) if word.name in names)
    external = External(route="rpm-ostree", previous=held, added=new)
    if held == new:
        return RoutePlan(external=external)
    gone = tuple(dict.fromkeys(text for text in held if text not in new))
    return RoutePlan(always=rpm_ostree_commands(remove=gone, add=new), external=external)


def rpm_ostree_commands(*, remove: tuple[str, ...], add: tuple[str, ...]) -> tuple[Command, ...]:
    """One call, so that it makes one new deployment."""
    words = [f"--delete-if-present={word}" for word in remove]
    words += [f"--append-if-missing={word}" for word in add]
    if not words:
        return ()
    why = "change the kernel arguments of the next deployment"
    return (Command(argv=("rpm-ostree", "kargs", *words), why=why),)


def _ostree_values(tree: Tree) -> tuple[str, ...]:
    return tuple(word.text for word in _ostree_now(tree) if word.name in SIZING)


RPM_OSTREE = Route(
    name="rpm-ostree", present=_ostree_present, plan=_ostree_plan, values=_ostree_values
)
