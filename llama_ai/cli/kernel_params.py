"""``llama-ai kernel-params``: look without root; change through the helper, with sudo or pkexec."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli.options import JsonOption, RootOption, YesOption

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_ai.kernel_params.planning import Plan

app = typer.Typer(
    name="kernel-params",
    help="Give the GPU more of the system's memory (TTM's page limit).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

GibOption = Annotated[str | None, typer.Option("--gib", metavar="N", help="the limit in whole GiB")]
AutoOption = Annotated[
    bool, typer.Option("--auto", help="the highest limit that is safe on this machine")
]
RouteOption = Annotated[
    str | None,
    typer.Option(
        "--route",
        metavar="ROUTE",
        help="modprobe.d, grub, grubby, rpm-ostree, systemd-boot, uki, limine or steamos",
    ),
]
EditRootOption = Annotated[
    str | None,
    typer.Option("--root", metavar="DIR", help="edit the system below DIR, and run no command"),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="only show what would be done")]


@app.command()
def show(
    gib: GibOption = None,
    auto: AutoOption = False,
    route: RouteOption = None,
    root: RootOption = None,
    json: JsonOption = False,
) -> None:
    """Show the limit in force, what sets it, and with --gib what `apply` would change."""
    _look("show", _words(gib=gib, auto=auto, route=route, json=json), root)


@app.command()
def verify(gib: GibOption = None, root: RootOption = None, json: JsonOption = False) -> None:
    """After the reboot: is in force what was asked for, and if not, why not?"""
    _look("verify", _words(gib=gib, json=json), root)


@app.command()
def apply(
    gib: GibOption = None,
    auto: AutoOption = False,
    route: RouteOption = None,
    force: Annotated[bool, typer.Option("--force", help="go above the safe limit")] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="why; needed with --force")
    ] = None,
    page_pool: Annotated[
        bool, typer.Option("--page-pool", help="let TTM keep as many freed pages, too")
    ] = False,
    gttsize: Annotated[
        bool, typer.Option("--gttsize", help="write the deprecated amdgpu.gttsize, too")
    ] = False,
    root: EditRootOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Set the limit: show the change, ask, and write it (takes effect at the next reboot)."""
    words = _words(
        gib=gib,
        auto=auto,
        route=route,
        force=force,
        reason=reason,
        page_pool=page_pool,
        gttsize=gttsize,
    )
    _change("apply", words, root, dry_run=dry_run, yes=yes)


@app.command()
def revert(
    root: EditRootOption = None, dry_run: DryRunOption = False, yes: YesOption = False
) -> None:
    """Put everything back as it was before the first `apply`."""
    _change("revert", [], root, dry_run=dry_run, yes=yes)


def _words(**options: str | bool | None) -> list[str]:
    """Options as the helper takes them."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, str):
            words.append(f"{flag}={value}")
    return words


def _look(action: str, words: list[str], root: str | None) -> None:
    from llama_ai.hardware.root import open_root
    from llama_ai.kernel_params.helper import run_helper

    with _interruptible(), open_root(root) as opened:
        code = run_helper([action, *words, f"--root={opened.directory}"])
    if code:
        raise typer.Exit(code)


@contextmanager
def _interruptible() -> Iterator[None]:
    from llama_ai.errors import UserInterruptError

    try:
        yield
    except KeyboardInterrupt:
        # typer would turn it into exit code 1; the contract says 130.
        raise UserInterruptError("interrupted") from None


def _change(action: str, words: list[str], root: str | None, *, dry_run: bool, yes: bool) -> None:
    with _interruptible():
        _change_now(action, words, root, dry_run=dry_run, yes=yes)


def _change_now(
    action: str, words: list[str], root: str | None, *, dry_run: bool, yes: bool
) -> None:
    from llama_ai.kernel_params.helper import run_helper
    from llama_ai.kernel_params.tree import NeedsRootError, Tree

    if dry_run:
        _look(action, [*words, "--dry-run"], root)
        return
    if root is not None and not Tree(root).is_live:
        # A recording or a mounted system: no privilege beyond the user's own is needed.
        code = run_helper([action, *words, f"--root={root}", *(["--yes"] if yes else [])])
        if code:
            raise typer.Exit(code)
        return
    try:
        plan = _plan(action, words)
    except NeedsRootError:
        # Only root may read what must be changed, so the helper shows it and asks.
        _run_privileged([action, *words, *(["--yes"] if yes else [])], None)
        return
    _confirmed(action, plan, yes=yes)


def _plan(action: str, words: list[str]) -> Plan:
    """The plan as far as it can be made without root; raises NeedsRootError where it cannot."""
    from llama_ai.kernel_params import esp, helper
    from llama_ai.kernel_params.tree import NeedsRootError, Tree

    tree = Tree("/")
    options = helper.parser().parse_args([action, *words])
    plan = helper.make_plan(tree, options)
    uses_esps = plan.choice is not None and plan.choice.route.name in esp.ESP_ROUTES
    if uses_esps and esp.unmounted_fat(tree):
        raise NeedsRootError("only root may look at partitions that are not mounted")
    return plan


def _confirmed(action: str, plan: Plan, *, yes: bool) -> None:
    import json
    import sys

    from llama_ai.kernel_params.helper import confirm
    from llama_ai.kernel_params.planning import plan_document
    from llama_ai.kernel_params.report import plan_text

    sys.stdout.write(plan_text(plan))
    sys.stdout.flush()
    if plan.instructions:
        sys.stdout.write("Nothing was changed.\n")
        return
    if plan.changes and not yes:
        confirm()
    _run_privileged([action, "--yes", "--plan=-"], json.dumps(plan_document(plan)))


def privileged_command(words: Sequence[str]) -> list[str]:
    """The helper's command line, with sudo or pkexec in front where we are not root.

    The system's own Python runs it, isolated: nothing is imported from where a user can write.
    Raises :class:`~llama_ai.errors.EngineNotReadyError` when there is neither sudo nor pkexec.
    """
    import os
    import shutil
    import sys

    from llama_ai import paths
    from llama_ai.errors import EngineNotReadyError

    helper = paths.asset("scripts/kernel-params")
    python = next(
        (
            path
            for path in ("/usr/bin/python3", "/usr/local/bin/python3")
            if os.access(path, os.X_OK)
        ),
        sys.executable,
    )
    command = [python, "-I", str(helper), *words]
    if os.geteuid() == 0:
        return command
    graphical = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if shutil.which("sudo") and (sys.stdin.isatty() or not graphical):
        return ["sudo", "--", *command]
    if shutil.which("pkexec"):
        return ["pkexec", *command]
    if shutil.which("sudo"):
        return ["sudo", "--", *command]
    raise EngineNotReadyError(
        "neither sudo nor pkexec is installed", hint=f"as root, run: {' '.join(command)}"
    )


def _run_privileged(words: Sequence[str], plan: str | None) -> None:
    import subprocess

    from llama_ai.errors import EngineNotReadyError

    command = privileged_command(words)
    try:
        ended = subprocess.run(
            command, input=plan.encode() if plan is not None else None, check=False
        )
    except OSError as error:
        raise EngineNotReadyError(f"cannot run `{command[0]}`: {error.strerror}") from error
    if ended.returncode:
        # The helper has said why; sudo uses 1 as well.
        raise typer.Exit(ended.returncode if ended.returncode in (1, 2, 130) else 1)
