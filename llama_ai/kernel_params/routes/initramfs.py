"""Rebuild the initramfs when it may hold ``ttm``: there the old options would be obeyed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.kernel_params.facts import distro_ids
from llama_ai.kernel_params.routes.base import Command

if TYPE_CHECKING:
    from llama_ai.kernel_params.tree import Tree

_INITRAMFS_WHY = "the initramfs may hold ttm with the old options"
_ARRAY = r"^\s*{}\s*\+?=\s*[(\"']([^)\"']*)"


def initramfs_commands(tree: Tree, *, why: str = _INITRAMFS_WHY) -> tuple[Command, ...]:
    """The rebuild for this system's tool; empty when its images do not hold the module.

    Only mkinitcpio's configuration says for certain that an image lacks it. A rebuild that was not
    needed costs half a minute, one that is missing costs the whole setting.
    """
    tool = initramfs_tool(tree)
    if tool == "initramfs-tools":
        return (Command(argv=("update-initramfs", "-u", "-k", "all"), why=why),)
    if tool == "mkinitcpio":
        if not _mkinitcpio_holds_ttm(tree):
            return ()
        if tree.exists("/etc/default/limine") or tree.exists("/usr/bin/limine-mkinitcpio"):
            return (Command(argv=("limine-mkinitcpio",), why=why),)
        return (Command(argv=("mkinitcpio", "-P"), why=why),)
    if tool == "dracut":
        return (Command(argv=("dracut", "--force", "--regenerate-all"), why=why),)
    return ()


def initramfs_tool(tree: Tree) -> str | None:
    """``initramfs-tools``, ``mkinitcpio`` or ``dracut``: by its files, else by the distribution."""
    for name, traces in (
        ("initramfs-tools", ("/usr/sbin/update-initramfs", "/etc/initramfs-tools")),
        ("mkinitcpio", ("/usr/bin/mkinitcpio", "/etc/mkinitcpio.conf", "/etc/mkinitcpio.d")),
        ("dracut", ("/usr/bin/dracut", "/usr/sbin/dracut", "/etc/dracut.conf")),
    ):
        if any(tree.exists(trace) for trace in traces):
            return name
    if tree.names("/etc/dracut.conf.d"):
        return "dracut"
    for name, tool in (
        ("debian", "initramfs-tools"),
        ("ubuntu", "initramfs-tools"),
        ("arch", "mkinitcpio"),
        ("fedora", "dracut"),
        ("rhel", "dracut"),
        ("suse", "dracut"),
        ("opensuse", "dracut"),
    ):
        if name in distro_ids(tree):
            return tool
    return None


def _mkinitcpio_holds_ttm(tree: Tree) -> bool:
    """True unless the configuration names neither amdgpu nor the ``kms`` hook.

    Without ``autodetect`` the ``block`` and ``filesystems`` hooks still bring no graphics driver.
    """
    text = tree.text("/etc/mkinitcpio.conf")
    if text is None:
        return True
    for name in tree.names("/etc/mkinitcpio.conf.d"):
        text += "\n" + (tree.text(f"/etc/mkinitcpio.conf.d/{name}") or "")
    modules = " ".join(re.findall(_ARRAY.format("MODULES"), text, re.MULTILINE)).split()
    hooks = " ".join(re.findall(_ARRAY.format("HOOKS"), text, re.MULTILINE)).split()
    if not hooks:
        return True
    return bool({"amdgpu", "ttm", "amdttm"} & set(modules)) or "kms" in hooks


def kernel_install_commands(tree: Tree) -> tuple[Command, ...]:
    """``kernel-install add`` for every installed kernel that can be found."""
    why = "build the boot entries again with the new command line"
    kernels: list[tuple[str, str]] = []
    for directory in ("/usr/lib/modules", "/lib/modules"):
        for version in tree.names(directory):
            image = f"{directory}/{version}/vmlinuz"
            if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+~-]{0,80}", version) and tree.exists(image):
                kernels.append((version, image))
        if kernels:
            break
    if not kernels:
        return (Command(argv=("kernel-install", "add-all"), why=why),)
    return tuple(
        Command(argv=("kernel-install", "add", version, image), why=why)
        for version, image in kernels
    )
