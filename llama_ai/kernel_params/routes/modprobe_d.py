"""``/etc/modprobe.d``: works under every boot loader, and is the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.kernel_params.cmdline import split_words
from llama_ai.kernel_params.facts import CMDLINE
from llama_ai.kernel_params.modprobe import drop_options, modprobe_files, options_lines
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.routes.base import Route, RoutePlan
from llama_ai.kernel_params.routes.initramfs import initramfs_commands
from llama_ai.kernel_params.tree import encode

if TYPE_CHECKING:
    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

MODPROBE_ETC = "/etc/modprobe.d"
MODPROBE_FILE = f"{MODPROBE_ETC}/llama-ai.conf"
MODPROBE_MARK = (
    "# Written by llama-ai kernel-params: the memory that the GPU may use. Undo with `revert`.\n"
)


def _modprobe_present(tree: Tree) -> bool:
    return any(
        tree.is_dir(d) for d in (MODPROBE_ETC, "/usr/lib/modprobe.d", "/lib/modprobe.d", "/etc")
    )


def _modprobe_plan(tree: Tree, wanted: Wanted) -> RoutePlan:
    # In our own file every sizing option is ours to set, in others only what contradicts.
    names = frozenset({*wanted.drop, *(name for name, _ in wanted.parameters)})
    files: dict[str, bytes] = {}
    notes: list[str] = []
    own = tree.text(MODPROBE_FILE)
    for path, text in modprobe_files(tree):
        changed = drop_options(text, names)
        if path == MODPROBE_FILE or changed == text:
            continue
        if path.startswith(MODPROBE_ETC + "/"):
            files[tree.resolve(path)] = encode(changed)
        else:
            notes.append(
                f"{path} sets one of these parameters too and belongs to a package: hide it by an "
                f"empty {MODPROBE_ETC}/{path.rpartition('/')[2]} if `verify` finds it in the way"
            )
    kept = MODPROBE_MARK if own is None else drop_options(own, names)
    if kept and not kept.endswith("\n"):
        kept += "\n"
    options: dict[str, list[str]] = {}
    for name, value in wanted.parameters:
        module, _, parameter = name.partition(".")
        options.setdefault(module, []).append(f"{parameter}={value}")
    lines = [f"options {module} {' '.join(words)}\n" for module, words in options.items()]
    files[tree.resolve(MODPROBE_FILE)] = encode(kept + "".join(lines))
    in_the_way = [word.text for word in split_words(tree.fact(CMDLINE) or "") if word.name in names]
    if in_the_way:
        notes.append(
            f"the kernel's command line says {' '.join(in_the_way)}, which wins over modprobe.d: "
            "use the boot loader's route, or remove it there"
        )
    if _built_in(tree):
        notes.append("ttm is built into this kernel, which modprobe.d does not reach")
    return RoutePlan(files=files, commands=initramfs_commands(tree), notes=tuple(notes))


def _built_in(tree: Tree) -> bool:
    release = tree.fact("/proc/sys/kernel/osrelease")
    if not release or "/" in release:
        return False
    listed = tree.fact(f"/lib/modules/{release}/modules.builtin") or ""
    return any(line.endswith("/ttm.ko") for line in listed.splitlines())


def ttm_is_built_in(tree: Tree) -> bool:
    """Whether ``modprobe.d`` cannot reach ttm, because the running kernel has it built in."""
    return _built_in(tree)


def _modprobe_values(tree: Tree) -> tuple[str, ...]:
    return tuple(
        word.text
        for path, text in modprobe_files(tree)
        if path.startswith(MODPROBE_ETC + "/")
        for line in options_lines(text)
        for word in line.options
        if word.name in SIZING
    )


MODPROBE_D = Route(
    name="modprobe.d", present=_modprobe_present, plan=_modprobe_plan, values=_modprobe_values
)
