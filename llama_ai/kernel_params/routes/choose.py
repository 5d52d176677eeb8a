"""All routes, and which one this system takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.kernel_params.cmdline import split_words
from llama_ai.kernel_params.facts import CMDLINE, distro_ids
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.grub import GRUB
from llama_ai.kernel_params.routes.grubby import GRUBBY
from llama_ai.kernel_params.routes.limine import LIMINE
from llama_ai.kernel_params.routes.modprobe_d import MODPROBE_D, ttm_is_built_in
from llama_ai.kernel_params.routes.rpm_ostree import RPM_OSTREE
from llama_ai.kernel_params.routes.steamos import STEAMOS
from llama_ai.kernel_params.routes.systemd_boot import SYSTEMD_BOOT
from llama_ai.kernel_params.routes.uki import UKI

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.routes.base import Route
    from llama_ai.kernel_params.tree import Tree

ROUTES = {
    route.name: route
    for route in (MODPROBE_D, GRUB, GRUBBY, RPM_OSTREE, SYSTEMD_BOOT, UKI, LIMINE, STEAMOS)
}
_LOADER_INFO = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-442b29bb8c4f"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The route to take and why; ``others`` could be chosen instead."""

    route: Route
    why: str
    others: tuple[str, ...]


def refuse_declarative(tree: Tree, wanted: Wanted | None) -> None:
    """NixOS and Guix write these files from their configuration: what we wrote would be lost.

    Raises :class:`~llama_ai.errors.LlamaAiError` whose details are the lines to add.
    """
    ids = distro_ids(tree)
    nixos = "nixos" in ids or tree.exists("/etc/NIXOS")
    if not nixos and "guix" not in ids:
        return
    words = [f"{n}={v}" for n, v in wanted.parameters] if wanted else ["ttm.pages_limit=PAGES"]
    if nixos:
        quoted = " ".join(f'"{word}"' for word in words)
        raise LlamaAiError(
            "NixOS writes its boot entries from its configuration: nothing was changed",
            hint="add this to configuration.nix and run `sudo nixos-rebuild boot`:",
            details=(f"boot.kernelParams = [ {quoted} ];",),
        )
    quoted = " ".join(f'"{word}"' for word in words)
    raise LlamaAiError(
        "Guix writes its boot entries from its configuration: nothing was changed",
        hint="add this to your system's declaration and run `sudo guix system reconfigure`:",
        details=(f"(kernel-arguments (append (list {quoted}) %default-kernel-arguments))",),
    )


def choose_route(tree: Tree, named: str | None = None) -> Choice:
    """The named route, or the one that suits the system; raises on an unknown name."""
    loader = boot_loader(tree)
    present = tuple(route.name for route in ROUTES.values() if route.present(tree))
    if named is not None:
        if named not in ROUTES:
            raise UsageError(f"--route {named}: one of {', '.join(ROUTES)}")
        return _choice(named, "as asked", present)
    if STEAMOS.present(tree):
        return _choice("steamos", "the system is SteamOS or a fork of it", present)
    if RPM_OSTREE.present(tree):
        return _choice("rpm-ostree", "the system is an ostree image", present)
    if loader is not None:
        if ROUTES[loader].values(tree):
            return _choice(
                loader,
                "its files set these parameters already, which wins over modprobe.d",
                present,
            )
        words = split_words(tree.fact(CMDLINE) or "")
        if any(word.name in SIZING for word in words):
            return _choice(
                loader, "the command line sets these parameters already, which wins", present
            )
        if ttm_is_built_in(tree):
            return _choice(loader, "ttm is built into this kernel", present)
    return _choice("modprobe.d", "it works under every boot loader", present)


def boot_files(tree: Tree) -> tuple[str, tuple[str, ...]] | None:
    """The boot loader's route and the sizing words that its files hold for the next boot."""
    loader = "rpm-ostree" if RPM_OSTREE.present(tree) else boot_loader(tree)
    return None if loader is None else (loader, ROUTES[loader].values(tree))


def _choice(name: str, why: str, present: tuple[str, ...]) -> Choice:
    return Choice(
        route=ROUTES[name], why=why, others=tuple(other for other in present if other != name)
    )


def boot_loader(tree: Tree) -> str | None:
    """The route of the boot loader in use: what it says of itself, else the files that it left."""
    try:
        info = (tree.read(_LOADER_INFO) or b"")[4:].decode("utf-16-le", "replace")
    except LlamaAiError:
        info = ""
    if info.startswith("Limine"):
        return "limine"
    if LIMINE.present(tree):
        return "limine"
    if GRUBBY.present(tree) and not info.startswith("systemd"):
        return "grubby"
    grub_files = tree.exists("/etc/default/grub") or tree.is_dir("/boot/grub")
    if UKI.present(tree) and not (grub_files and not info.startswith("systemd")):
        return "uki"
    if SYSTEMD_BOOT.present(tree) and not (grub_files and not info.startswith("systemd")):
        return "systemd-boot"
    if GRUB.present(tree):
        return "grub"
    return None
