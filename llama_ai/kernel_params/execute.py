"""Carry a plan out: remember first, then write, then run the commands."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.files import Writer
from llama_ai.kernel_params.images import images_hold_ttm
from llama_ai.kernel_params.state import (
    EMPTY,
    STATE_DIRECTORY,
    STATE_FILE,
    read_state,
    state_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_ai.kernel_params.planning import Plan
    from llama_ai.kernel_params.routes.base import Command
    from llama_ai.kernel_params.state import State
    from llama_ai.kernel_params.tree import Tree
    from llama_ai.kernel_params.wanted import Edit

BACKUPS = f"{STATE_DIRECTORY}/backups"
LOCK = "/run/llama-ai-kernel-params.lock"
COMMAND_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_TIMEOUT_S = 1800

_VERSION = r"[A-Za-z0-9][A-Za-z0-9._+~-]*"
_SIZING = r"(?:(?:amd)?ttm\.(?:pages[_-]limit|page[_-]pool[_-]size)|amdgpu\.gttsize)"
_SIZING_WORD = rf'"?{_SIZING}(?:="?[A-Za-z0-9_.+-]*"?)?'
_COMMANDS = tuple(
    re.compile(pattern)
    for pattern in (
        "update-grub",
        "grub-mkconfig -o /boot/grub/grub\\.cfg",
        "grub2-mkconfig -o /boot/grub2/grub\\.cfg",
        "update-initramfs -u -k all",
        "dracut --force --regenerate-all",
        "mkinitcpio -P",
        "limine-mkinitcpio",
        "limine-update",
        "kernel-install add-all",
        rf"kernel-install add ({_VERSION}) /(?:usr/)?lib/modules/\1/vmlinuz",
        rf"grubby --update-kernel=ALL --(?:remove-)?args={_SIZING_WORD}(?: {_SIZING_WORD})*",
        rf"rpm-ostree kargs(?: --(?:append-if-missing|delete-if-present)={_SIZING_WORD})+",
    )
)


def command_allowed(argv: tuple[str, ...]) -> bool:
    """Whether a command is one that this program may run: every word is checked."""
    return any(pattern.fullmatch(" ".join(argv)) for pattern in _COMMANDS) and all(
        "\n" not in word for word in argv
    )


@contextlib.contextmanager
def locked(tree: Tree) -> Iterator[None]:
    """Only one of us at a time.

    On the running machine the lock is a file that only root can open; in a recording it is the
    directory itself, so that nothing is left behind.
    """
    if tree.is_live:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        handle = os.open(LOCK, flags, 0o600)
    else:
        handle = os.open(tree.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LlamaAiError(
                "another run of kernel-params is at work", hint="wait for it and try again"
            ) from None
        yield
    finally:
        os.close(handle)


def execute(
    tree: Tree,
    plan: Plan,
    *,
    stamp: str,
    say: Callable[[str], None],
    run: Callable[[Command], None] | None = None,
) -> None:
    """Do what the plan says. ``stamp`` names the backup; ``run`` runs a command.

    Below another root than ``/`` no command runs: each is printed. When a write fails, the files
    that were written already get their old content back. Raises
    :class:`~llama_ai.errors.LlamaAiError`.
    """
    for command in plan.commands:
        if not command_allowed(command.argv):
            raise LlamaAiError(f"`{command}` is not a command that this program may run")
        if tree.is_live and run is None:
            _must_exist(command)
    writer = Writer(tree)
    for edit in plan.edits:
        writer.check(edit.path)
    old = read_state(tree)
    for path in (*old.files, STATE_FILE):
        writer.sweep(path)
    new = plan.state if plan.action == "apply" else replace(old, pending=True)
    if plan.action == "apply":
        new = replace(new, pending=bool(plan.edits or plan.commands))
    if plan.edits or new != old:
        kept = plan.action == "apply" or plan.keep_backups
        made = _backup(writer, plan.edits, stamp, say if kept else _say_nothing)
        new = _remember(writer, replace(new, directories=_merge(new.directories, made)))
    new = _write_all(tree, writer, plan.edits, old=old, new=new)
    _run_all(tree, plan, say, run)
    if plan.action == "revert":
        if plan.keep_backups:
            say(f"the backups stay below {BACKUPS}: others have edited these files")
        _forget(tree, writer, new, keep_backups=plan.keep_backups)
    elif new.pending:
        _remember(writer, replace(new, pending=False))


def _write_all(
    tree: Tree, writer: Writer, edits: tuple[Edit, ...], *, old: State, new: State
) -> State:
    """Write the files, or, when one fails, leave all of them as they were."""
    done: list[Edit] = []
    directories = new.directories
    try:
        for edit in edits:
            _must_be(tree, edit.path, edit.before)
            done.append(edit)
            directories = _merge(directories, _put(writer, edit.path, edit.after))
        if directories != new.directories:
            new = _remember(writer, replace(new, directories=directories))
    except BaseException:
        # If even this fails (the disk is full), what is remembered still allows `revert`.
        with contextlib.suppress(LlamaAiError):
            for edit in reversed(done):
                if tree.read(edit.path) == edit.after:
                    _put(writer, edit.path, edit.before)
            if old == EMPTY:
                _forget(tree, writer, replace(new, directories=directories), keep_backups=False)
            else:
                _remember(writer, replace(old, directories=directories))
        raise
    return new


def _must_be(tree: Tree, path: str, content: bytes | None) -> None:
    if tree.read(path) != content:
        raise LlamaAiError(f"{path} changed while this program was at work", hint="try again")


def _put(writer: Writer, path: str, content: bytes | None) -> list[str]:
    if content is None:
        writer.remove(path)
        return []
    return writer.write(path, content)


def _backup(
    writer: Writer, edits: tuple[Edit, ...], stamp: str, say: Callable[[str], None]
) -> list[str]:
    made: list[str] = []
    for edit in edits:
        if edit.before is not None:
            mode = writer.mode_of(edit.path)
            copy = f"{BACKUPS}/{stamp}{edit.path}"
            made += writer.write(copy, edit.before, mode=0o600 if mode is None else mode)
            say(f"backup: {copy}")
    return made


def _say_nothing(text: str) -> None:
    """Backups that a clean `revert` removes again need no mention."""


def _remember(writer: Writer, state: State) -> State:
    """Write the state, readable for everybody only if all that it holds is so already."""
    modes = [writer.mode_of(path) for path in state.files]
    public = all(mode is None or mode & stat.S_IROTH for mode in modes)
    mode = 0o644 if public else 0o600
    made = writer.write(STATE_FILE, state_bytes(state), mode=mode, keep_mode=False)
    if made:
        state = replace(state, directories=_merge(state.directories, made))
        writer.write(STATE_FILE, state_bytes(state), mode=mode, keep_mode=False)
    return state


def _merge(old: tuple[str, ...], new: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*old, *new]))


def _forget(tree: Tree, writer: Writer, state: State, *, keep_backups: bool) -> None:
    if not keep_backups:
        _remove_backups(tree, writer, BACKUPS)
    writer.remove(STATE_FILE)
    for directory in sorted(state.directories, key=len, reverse=True):
        writer.remove_directory(directory)


def _remove_backups(tree: Tree, writer: Writer, directory: str) -> None:
    for name in tree.names(directory):
        path = f"{directory}/{name}"
        if tree.is_dir(path) and tree.resolve(path) == path:
            _remove_backups(tree, writer, path)
        else:
            writer.remove(path)
    writer.remove_directory(directory)


def _must_exist(command: Command) -> None:
    program = command.argv[0]
    if not any(os.access(f"{place}/{program}", os.X_OK) for place in COMMAND_PATH.split(":")):
        raise LlamaAiError(
            f"`{program}` is not installed, and without it the change would have no effect",
            hint="choose another --route; nothing was changed",
        )


def _run_all(
    tree: Tree, plan: Plan, say: Callable[[str], None], run: Callable[[Command], None] | None
) -> None:
    for command in plan.commands:
        if not tree.is_live:
            say(f"would run: {command}")
            continue
        if images_hold_ttm(command.argv[0], path=COMMAND_PATH) is False:
            say(f"not needed: {command} (no initramfs holds ttm)")
            continue
        say(f"running: {command}")
        (run or run_command)(command)


def run_command(command: Command) -> None:
    """Run an allowed command with a fixed search path and a bare environment, no shell.

    Its output goes to ours. Raises :class:`~llama_ai.errors.LlamaAiError` when it fails.
    """
    if not command_allowed(command.argv):
        raise LlamaAiError(f"`{command}` is not a command that this program may run")
    environment = {"PATH": COMMAND_PATH, "LANG": "C.UTF-8", "HOME": "/root"}
    try:
        ended = subprocess.run(
            command.argv,
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LlamaAiError(f"`{command}` failed: {error}", hint=_AFTER_FAILURE) from error
    if ended.returncode != 0:
        raise LlamaAiError(f"`{command}` ended with status {ended.returncode}", hint=_AFTER_FAILURE)


_AFTER_FAILURE = (
    "the files are written but not in effect: run `apply` again once the cause is gone, or `revert`"
)
