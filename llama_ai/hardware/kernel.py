"""Kernel release, command line, distribution, and the route for kernel parameters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from llama_ai.hardware.facts import KernelFacts, ModuleOption

if TYPE_CHECKING:
    from llama_ai.hardware.root import Root

_VERSION = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?", re.ASCII)
_LOADER_INFO = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-442b29bb8c4f"
_MODULES = frozenset({"ttm", "amdttm", "amdgpu"})


def read_kernel(root: Root) -> KernelFacts:
    """Read the facts; each is ``None`` where nothing states it."""
    release = root.read_word("proc/sys/kernel/osrelease")
    if release is None:
        words = (root.read_text("proc/version") or "").split()
        release = words[2] if words[:2] == ["Linux", "version"] and len(words) > 2 else None
    cmdline_text = root.read_text("proc/cmdline")
    cmdline = None if cmdline_text is None else split_cmdline(cmdline_text)
    system = _os_release(root)
    identity = (system.get("ID"), *system.get("ID_LIKE", "").split())
    loader = _boot_loader(root, identity, cmdline or ())
    return KernelFacts(
        release=release,
        version=parse_version(release),
        cmdline=cmdline,
        distro=_distro(system),
        distro_id=system.get("ID"),
        distro_like=tuple(word for word in identity[1:] if word),
        boot_loader=loader,
        boot_route=_boot_route(root, identity, cmdline or (), loader),
        module_options=_module_options(root),
    )


def parse_version(release: str | None) -> tuple[int, int, int] | None:
    """``6.16.0-rc7+`` gives ``(6, 16, 0)``."""
    match = _VERSION.match(release or "")
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def split_cmdline(text: str) -> tuple[str, ...]:
    """Split a kernel command line at white space outside double quotes, as the kernel does."""
    return tuple(word.replace('"', "") for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', text))


def _os_release(root: Root) -> dict[str, str]:
    text = root.read_text("etc/os-release") or root.read_text("usr/lib/os-release") or ""
    result: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        value = value.strip().strip("\"'")
        if equals and value and value.isprintable():
            result[key] = value
    return result


def _distro(system: dict[str, str]) -> str | None:
    if "PRETTY_NAME" in system:
        return system["PRETTY_NAME"]
    words = [system[key] for key in ("NAME", "VERSION_ID") if key in system]
    return " ".join(words) or None


def _boot_loader(
    root: Root, identity: tuple[str | None, ...], cmdline: tuple[str, ...]
) -> str | None:
    if "steamos" in identity or "steamfork" in identity:
        return "steamos"
    # EFI variable: four bytes of attributes, then UTF-16 text such as "systemd-boot 255".
    info = (root.read_bytes(_LOADER_INFO, limit=4096) or b"")[4:].decode("utf-16-le", "replace")
    if root.exists("etc/default/limine") or info.startswith("Limine"):
        return "limine"
    if info.startswith("systemd-stub") or root.exists("etc/kernel/uki.conf"):
        return "uki"
    if info.startswith("systemd-boot") or any(
        root.exists(directory, "loader/loader.conf") for directory in ("boot", "efi", "boot/efi")
    ):
        return "systemd-boot"
    if (
        any(word.startswith("BOOT_IMAGE=") for word in cmdline)
        or root.exists("etc/default/grub")
        or root.is_dir("etc/default/grub.d")
    ):
        return "grub"
    return None


def _boot_route(
    root: Root,
    identity: tuple[str | None, ...],
    cmdline: tuple[str, ...],
    loader: str | None,
) -> str | None:
    """The route that lasts: image-based systems have their own, others take ``modprobe.d``."""
    if loader == "steamos":
        return "steamos"
    if root.exists("run/ostree-booted") or any(word.startswith("ostree=") for word in cmdline):
        return "rpm-ostree"
    if identity[0] is None or "nixos" in identity:
        return None  # NixOS writes its own boot entries and modprobe.d from its configuration
    return "modprobe.d"


def _module_options(root: Root) -> tuple[ModuleOption, ...]:
    """``options`` lines for the GPU's modules below ``/etc/modprobe.d``."""
    options: list[ModuleOption] = []
    for name in root.listdir("etc/modprobe.d"):
        if not name.endswith(".conf"):
            continue
        for line in (root.read_text("etc/modprobe.d", name) or "").splitlines():
            words = line.split("#", 1)[0].split()
            if len(words) < 3 or words[0] != "options" or words[1] not in _MODULES:
                continue
            for word in words[2:]:
                key, _, value = word.partition("=")
                options.append(
                    ModuleOption(
                        module=words[1], key=key, value=value, file=f"/etc/modprobe.d/{name}"
                    )
                )
    return tuple(options)
