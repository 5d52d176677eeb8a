"""SteamOS and its forks: a read-only root with two images, sometimes a second ESP.

Entries on an ESP can be edited, all of them; what lies on the read-only root gets instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.kernel_params.facts import distro_ids
from llama_ai.kernel_params.parameters import PAGES_PER_GIB
from llama_ai.kernel_params.routes.base import Route, RoutePlan
from llama_ai.kernel_params.routes.entries import (
    entry_values,
    read_entries,
    readable_entries,
    set_in_entry,
)
from llama_ai.kernel_params.routes.grub import GRUB
from llama_ai.kernel_params.tree import encode

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

STEAM_IDS = frozenset({"steamos", "steamfork", "holo", "holoiso"})


def _steamos_present(tree: Tree) -> bool:
    return bool(STEAM_IDS & set(distro_ids(tree)))


def _steamos_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    entries = list(read_entries(tree))
    if entries:
        return RoutePlan(
            files={entry.path: encode(set_in_entry(entry.text, wanted)) for entry in entries},
            notes=("an update of the system may write new entries: run `apply` again then",),
        )
    if root_is_writable(tree):
        return GRUB.plan(tree, wanted)
    gib = wanted.pages // PAGES_PER_GIB
    return RoutePlan(
        instructions=(
            "The system's root is read-only and is replaced by every update. To set the limit:",
            "  sudo steamos-readonly disable",
            f"  sudo scripts/kernel-params apply --gib {gib} --route grub",
            "  sudo steamos-readonly enable",
            "Then reboot, and repeat it after an update of the system. What is added to",
            "GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub:",
            "  " + " ".join(f"{name}={value}" for name, value in wanted.parameters),
        )
    )


def root_is_writable(tree: Tree) -> bool:
    """Whether the mount table says so; not knowing counts as read-only."""
    options: list[str] = []
    for line in (tree.fact("/proc/mounts") or tree.fact("/proc/self/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) >= 4 and fields[1] == "/":
            options = fields[3].split(",")
    return "rw" in options


def _steamos_values(tree: Tree) -> tuple[str, ...]:
    return entry_values(readable_entries(tree)) or GRUB.values(tree)


STEAMOS = Route(
    name="steamos", present=_steamos_present, plan=_steamos_plan, values=_steamos_values
)
