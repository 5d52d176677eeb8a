"""systemd-boot: every entry on every ESP, and ``/etc/kernel/cmdline`` for kernels to come."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.cmdline import rewrite, split_words
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.base import Route, RoutePlan
from llama_ai.kernel_params.routes.entries import (
    entry_values,
    read_entries,
    readable_entries,
    set_in_entry,
)
from llama_ai.kernel_params.routes.initramfs import kernel_install_commands
from llama_ai.kernel_params.tree import encode, text_lines

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

KERNEL_CMDLINE = "/etc/kernel/cmdline"


def _sdboot_present(tree: Tree) -> bool:
    return bool(readable_entries(tree)) or tree.exists(KERNEL_CMDLINE)


def _sdboot_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    files: dict[str, bytes] = {}
    entries = list(read_entries(tree))
    for entry in entries:
        files[entry.path] = encode(set_in_entry(entry.text, wanted))
    notes: list[str] = []
    text = tree.text(KERNEL_CMDLINE)
    if text is not None:
        files[tree.resolve(KERNEL_CMDLINE)] = encode(rewrite_cmdline_file(text, wanted))
        if entries:
            notes.append(
                f"the entries are edited themselves; {KERNEL_CMDLINE} is for the ones that "
                "kernel-install writes for later kernels"
            )
    elif entries:
        notes.append("entries written by a later kernel update may lack it: run `apply` again then")
    else:
        raise LlamaAiError(
            "no boot loader entry and no /etc/kernel/cmdline was found",
            hint="mount the ESP, or use --route modprobe.d",
        )
    return RoutePlan(
        files=files,
        commands=() if entries else kernel_install_commands(tree),
        notes=tuple(notes),
    )


def rewrite_cmdline_file(text: str, wanted: Wanted) -> str:
    """``/etc/kernel/cmdline`` and its like: one command line, with comment lines left alone."""
    lines = text_lines(text)
    real = [i for i, line in enumerate(lines) if not line.startswith("#") and line.strip()]
    if not real:
        gap = "" if not text or text.endswith("\n") else "\n"
        return text + gap + rewrite("", wanted.parameters, wanted.drop) + "\n"
    names = {*wanted.drop, *(name for name, _ in wanted.parameters)}
    for index in real[:-1]:
        lines[index] = rewrite(lines[index], (), names)
    lines[real[-1]] = rewrite(lines[real[-1]], wanted.parameters, wanted.drop)
    return "".join(lines)


def cmdline_file_values(tree: Tree, path: str) -> tuple[str, ...]:
    """The sizing words of such a file."""
    lines = (tree.text(path) or "").splitlines()
    words = split_words(" ".join(line for line in lines if not line.startswith("#")))
    return tuple(word.text for word in words if word.name in SIZING)


def _sdboot_values(tree: Tree) -> tuple[str, ...]:
    return entry_values(readable_entries(tree)) + cmdline_file_values(tree, KERNEL_CMDLINE)


SYSTEMD_BOOT = Route(
    name="systemd-boot", present=_sdboot_present, plan=_sdboot_plan, values=_sdboot_values
)
