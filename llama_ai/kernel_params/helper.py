"""The command line of ``scripts/kernel-params``: the only part of this program that needs root.

It runs alone (``sudo scripts/kernel-params apply --gib 104``) or is handed a plan that a user has
already seen (``--plan FILE``); then it makes its own plan from the same request and goes on only
when both are the same. It never reboots.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import sys
import time
from typing import TYPE_CHECKING, Any

from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.kernel_params.esp import ESP_ROUTES, mounted_entries
from llama_ai.kernel_params.execute import BACKUPS, execute, locked
from llama_ai.kernel_params.facts import read_facts
from llama_ai.kernel_params.planning import Plan, plan_apply, plan_document, plan_revert
from llama_ai.kernel_params.report import (
    after_text,
    plan_text,
    show_json,
    show_text,
    verdict_text,
)
from llama_ai.kernel_params.routes.choose import (
    ROUTES,
    boot_files,
    choose_route,
    refuse_declarative,
)
from llama_ai.kernel_params.routes.entries import MOUNTED_BY_US
from llama_ai.kernel_params.routes.initramfs import initramfs_commands
from llama_ai.kernel_params.state import State, read_state
from llama_ai.kernel_params.tree import NeedsRootError, Tree
from llama_ai.kernel_params.verify import verify
from llama_ai.kernel_params.wanted import Request

if TYPE_CHECKING:
    from collections.abc import Sequence

PLAN_LIMIT_BYTES = 1 << 20
_GIB = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)


def parser() -> argparse.ArgumentParser:
    """The options; the action may stand before or behind them."""
    result = argparse.ArgumentParser(
        prog="kernel-params",
        description="Let the GPU of an AMD APU use more of the system's memory (TTM's page limit).",
        allow_abbrev=False,
    )
    result.add_argument("action", choices=("show", "apply", "revert", "verify"))
    result.add_argument("--gib", metavar="N", help="the limit in whole GiB")
    result.add_argument("--auto", action="store_true", help="the highest limit that is safe here")
    result.add_argument("--route", metavar="ROUTE", help=f"one of {', '.join(ROUTES)}")
    result.add_argument("--root", metavar="DIR", default="/", help="edit below DIR; run nothing")
    result.add_argument("--yes", action="store_true", help="do not ask")
    result.add_argument("--dry-run", action="store_true", help="only show what would be done")
    result.add_argument("--force", action="store_true", help="go above the safe limit")
    result.add_argument("--reason", metavar="TEXT", help="why; needed with --force")
    result.add_argument(
        "--page-pool", action="store_true", help="let TTM keep as many freed pages, too"
    )
    result.add_argument(
        "--gttsize", action="store_true", help="write the deprecated amdgpu.gttsize, too"
    )
    result.add_argument("--json", action="store_true", help="show, verify: print one JSON object")
    result.add_argument(
        "--plan", metavar="FILE", help="apply, revert: a confirmed plan (- is standard input)"
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run and return the exit code: 0 done, 1 failed or refused, 2 wrong words, 130 interrupted."""
    try:
        return run_helper(argv)
    except LlamaAiError as problem:
        sys.stdout.flush()
        sys.stderr.write(f"error: {problem.message}\n")
        if problem.hint:
            sys.stderr.write(f"  {problem.hint}\n")
        for line in problem.details:
            sys.stderr.write(f"    {line}\n")
        return problem.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


def run_helper(argv: Sequence[str] | None = None) -> int:
    """:func:`main`, but errors are raised: :class:`~llama_ai.errors.LlamaAiError`."""
    options = parser().parse_args(argv)
    if not os.path.isdir(options.root):  # noqa: PTH112 - as given, links and all
        raise UsageError(f"--root {options.root}: no such directory")
    tree = Tree(options.root)
    if tree.is_live and os.geteuid() == 0:
        _trust_interpreter()
    if options.action == "show":
        return _show(tree, options)
    if options.action == "verify":
        return _verify(tree, options)
    if tree.is_live and os.geteuid() != 0 and not options.dry_run:
        raise NeedsRootError(
            f"only root may {options.action}", hint="run it with sudo, or look with --dry-run"
        )
    given = _given_plan(options.plan)
    if options.dry_run:
        with mounted_entries(tree, write=False):
            return _change(tree, options, given)
    with locked(tree):
        return _change(tree, options, given)


def _change(tree: Tree, options: argparse.Namespace, given: dict[str, Any] | None) -> int:
    request = None
    if options.action == "apply":
        request = _request_of_plan(given) if given else _request(options, needed=True)
    with mounted_entries(tree, write=not options.dry_run and _needs_esps(tree, request)):
        plan = _plan_for(tree, options.action, request)
        if given is not None and plan_document(plan) != given:
            raise LlamaAiError(
                "the system is not as it was when the plan was shown: nothing was changed",
                hint="show the plan again",
            )
        if given is None:
            sys.stdout.write(plan_text(plan))
        if plan.instructions:
            sys.stdout.write("Nothing was changed.\n")
            return 0
        if not plan.changes and plan.state == read_state(tree):
            sys.stdout.write("Nothing to change: it is set up as asked.\n")
            return 0
        if options.dry_run:
            sys.stdout.write("Dry run: nothing was changed.\n")
            return 0
        if not options.yes and plan.changes:
            confirm()
        execute(tree, plan, stamp=_stamp(tree), say=_say)
        sys.stdout.write(after_text(plan))
    return 0


def make_plan(tree: Tree, options: argparse.Namespace) -> Plan:
    """The plan for parsed options (``apply`` or ``revert``)."""
    request = _request(options, needed=True) if options.action == "apply" else None
    return _plan_for(tree, options.action, request)


def _plan_for(tree: Tree, action: str, request: Request | None) -> Plan:
    if request is None or action == "revert":
        _all_attached(tree)
        return plan_revert(tree)
    return plan_apply(tree, request, now=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def _all_attached(tree: Tree) -> None:
    for path in read_state(tree).files:
        place = "/".join(path.split("/")[:4])
        if path.startswith(MOUNTED_BY_US + "/") and not tree.is_dir(place + "/loader"):
            raise NeedsRootError(
                f"the partition {place.rpartition('/')[2]}, which holds changed boot entries, "
                "is not mounted",
                hint="attach it and run `revert` as root",
            )


def _needs_esps(tree: Tree, request: Request | None) -> bool:
    """Whether partitions that are not mounted must be looked at: only for routes that use them."""
    state = read_state(tree)
    if any(path.startswith(MOUNTED_BY_US) for path in state.files):
        return True
    named = request.route if request else None
    if named is None and state.asked is not None:
        named = state.asked.route
    return choose_route(tree, named).route.name in ESP_ROUTES


def _show(tree: Tree, options: argparse.Namespace) -> int:
    facts, state = read_facts(tree), _readable_state(tree)
    choice = None
    try:
        refuse_declarative(tree, None)
        choice = choose_route(tree, options.route)
    except UsageError:
        raise
    except LlamaAiError as problem:
        if not (options.gib or options.auto):
            sys.stderr.write(f"note: {problem.message}\n  {problem.hint}\n")
            sys.stderr.write("".join(f"    {line}\n" for line in problem.details))
    try:
        boot = boot_files(tree)
    except NeedsRootError:
        boot = None
    if options.json:
        body = {"schema": "llama-ai.kernel-params-show/1", **show_json(facts, state, choice, boot)}
        sys.stdout.write(json.dumps(body, indent=2) + "\n")
        return 0
    sys.stdout.write(show_text(facts, state, choice, boot))
    request = _request(options, needed=False)
    if request is not None:
        sys.stdout.write("\n")
        sys.stdout.write(plan_text(_plan_for(tree, "apply", request)))
    return 0


def _verify(tree: Tree, options: argparse.Namespace) -> int:
    facts, state = read_facts(tree), _readable_state(tree)
    request = _request(options, needed=False)
    commands = initramfs_commands(tree)
    verdict = verify(
        facts,
        asked=state.asked if state else None,
        gib=request.gib if request else None,
        rebuild=str(commands[0]) if commands else None,
    )
    if options.json:
        body = {"schema": "llama-ai.kernel-params-verify/1", **vars(verdict)}
        sys.stdout.write(json.dumps(body, indent=2) + "\n")
    else:
        sys.stdout.write(verdict_text(verdict))
    return 0 if verdict.ok else 1


def _readable_state(tree: Tree) -> State | None:
    try:
        return read_state(tree)
    except NeedsRootError:
        return None


def _request(options: argparse.Namespace, *, needed: bool) -> Request | None:
    if options.gib is not None and options.auto:
        raise UsageError("--gib and --auto: give one of them")
    if options.gib is None and not options.auto:
        if needed:
            raise UsageError("how much? give --gib N, or --auto for the highest limit that is safe")
        return None
    if options.gib is not None and not _GIB.fullmatch(options.gib):
        raise UsageError(f"--gib {options.gib!r}: give whole GiB, such as 104")
    if options.route is not None and options.route not in ROUTES:
        raise UsageError(f"--route {options.route!r}: one of {', '.join(ROUTES)}")
    return Request(
        gib=int(options.gib) if options.gib else None,
        route=options.route,
        page_pool=options.page_pool,
        gttsize=options.gttsize,
        force=options.force,
        reason=options.reason,
    )


def _given_plan(where: str | None) -> dict[str, Any] | None:
    if where is None:
        return None
    try:
        if where == "-":
            text = sys.stdin.buffer.read(PLAN_LIMIT_BYTES + 1)
        else:
            with open(where, "rb") as stream:  # noqa: PTH123 - a path as given
                text = stream.read(PLAN_LIMIT_BYTES + 1)
        plan = json.loads(text) if len(text) <= PLAN_LIMIT_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--plan {where}: not a readable plan ({error})") from error
    if not isinstance(plan, dict):
        raise UsageError(f"--plan {where}: not a plan")
    return plan


def _request_of_plan(plan: dict[str, Any]) -> Request:
    """The request inside a plan, every value checked for its type."""
    raw = plan.get("request")
    kinds: dict[str, tuple[type, ...]] = {
        "gib": (int, type(None)),
        "route": (str, type(None)),
        "page_pool": (bool,),
        "gttsize": (bool,),
        "force": (bool,),
        "reason": (str, type(None)),
    }
    if (
        not isinstance(raw, dict)
        or set(raw) != set(kinds)
        or not all(type(raw[key]) in kind for key, kind in kinds.items())
    ):
        raise UsageError("--plan: its request is not complete or not of the right types")
    if raw["route"] is not None and raw["route"] not in ROUTES:
        raise UsageError(f"--plan: route {raw['route']!r} is not known")
    return Request(**raw)


def confirm() -> None:
    """Ask on the terminal; anything but a yes raises."""
    sys.stdout.write("Do it? [y/N] ")
    sys.stdout.flush()
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        sys.stdout.write("\n")
    if answer.strip().lower() not in ("y", "yes"):
        raise LlamaAiError(
            "not confirmed: nothing was changed", hint="answer y, or give --yes in a script"
        )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _stamp(tree: Tree) -> str:
    """A directory name for this run's backups that no earlier run has taken."""
    base = stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    count = 1
    while tree.exists(f"{BACKUPS}/{stamp}"):
        count += 1
        stamp = f"{base}-{count}"
    return stamp


def _trust_interpreter() -> None:
    """As root, refuse a Python whose program or library another user could have changed."""
    for path in (sys.executable, os.__file__):
        real = os.path.realpath(path)
        while real != "/":
            status = os.stat(real)  # noqa: PTH116
            group = status.st_mode & stat.S_IWGRP and status.st_gid != 0
            if status.st_uid != 0 or group or status.st_mode & stat.S_IWOTH:
                raise LlamaAiError(
                    f"this Python is not root's own ({real}): not run as root",
                    hint="use the system's: sudo /usr/bin/python3 -I scripts/kernel-params …",
                )
            real = os.path.dirname(real)  # noqa: PTH120
