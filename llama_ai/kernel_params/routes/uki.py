"""Unified kernel images: the command line is built in, so they are built again."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.cmdline import rewrite
from llama_ai.kernel_params.routes.base import Command, Route, RoutePlan
from llama_ai.kernel_params.routes.initramfs import initramfs_tool, kernel_install_commands
from llama_ai.kernel_params.routes.systemd_boot import (
    KERNEL_CMDLINE,
    cmdline_file_values,
    rewrite_cmdline_file,
)
from llama_ai.kernel_params.tree import NeedsRootError, encode, text_lines

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

UKI_PARTS = "/etc/cmdline.d"
UKI_FILE = f"{UKI_PARTS}/llama-ai.conf"


def _uki_present(tree: Tree) -> bool:
    if tree.exists("/etc/kernel/uki.conf") or _uki_parts(tree):
        return True
    install = tree.text("/etc/kernel/install.conf") or ""
    if re.search(r"^\s*layout\s*=\s*uki\s*$", install, re.MULTILINE):
        return True
    if _preset_builds_uki(tree):
        return True
    for place in ("/efi", "/boot", "/boot/efi"):
        try:
            if any(n.lower().endswith(".efi") for n in tree.names(f"{place}/EFI/Linux")):
                return True
        except NeedsRootError:
            continue
    return False


def _uki_parts(tree: Tree) -> list[str]:
    return [f"{UKI_PARTS}/{name}" for name in tree.names(UKI_PARTS) if name.endswith(".conf")]


def _preset_builds_uki(tree: Tree) -> bool:
    return any(
        re.search(r"^\s*[a-z]+_uki\s*=", tree.text(f"/etc/mkinitcpio.d/{name}") or "", re.MULTILINE)
        for name in tree.names("/etc/mkinitcpio.d")
        if name.endswith(".preset")
    )


def _uki_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    names = frozenset({*wanted.drop, *(name for name, _ in wanted.parameters)})
    parts = _uki_parts(tree)
    files: dict[str, bytes] = {}
    text = tree.text(KERNEL_CMDLINE)
    if parts:
        for path in [*parts, KERNEL_CMDLINE]:
            part = tree.text(path)
            if part is None or path == UKI_FILE:
                continue
            changed = "".join(
                line if line.startswith("#") else rewrite(line, (), names)
                for line in text_lines(part)
            )
            if changed != part:
                files[tree.resolve(path)] = encode(changed)
        files[tree.resolve(UKI_FILE)] = encode(
            rewrite_cmdline_file(tree.text(UKI_FILE) or "", wanted)
        )
    elif text is not None:
        files[tree.resolve(KERNEL_CMDLINE)] = encode(rewrite_cmdline_file(text, wanted))
    else:
        raise LlamaAiError(
            f"the unified kernel images here take their command line neither from {KERNEL_CMDLINE} "
            f"nor from {UKI_PARTS}",
            hint=f"write the present command line to {KERNEL_CMDLINE}, or use --route modprobe.d",
        )
    return RoutePlan(files=files, commands=_uki_rebuild(tree))


def _uki_rebuild(tree: Tree) -> tuple[Command, ...]:
    why = "build the unified kernel images again"
    if _preset_builds_uki(tree) or (
        initramfs_tool(tree) == "mkinitcpio" and not tree.exists("/etc/kernel/install.conf")
    ):
        return (Command(argv=("mkinitcpio", "-P"), why=why),)
    return kernel_install_commands(tree)


def _uki_values(tree: Tree) -> tuple[str, ...]:
    return tuple(
        word
        for path in [*_uki_parts(tree), KERNEL_CMDLINE]
        for word in cmdline_file_values(tree, path)
    )


UKI = Route(name="uki", present=_uki_present, plan=_uki_plan, values=_uki_values)
