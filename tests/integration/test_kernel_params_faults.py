"""The helper under trouble: killed, out of space, read-only, links, foreign owners, hostile words.

After each fault nothing is half-written, nothing outside the allow-list is touched, and `revert`
gives back every byte.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params import helper
from llama_ai.kernel_params.execute import execute
from llama_ai.kernel_params.planning import plan_apply, plan_document, plan_revert
from llama_ai.kernel_params.routes.base import Command
from llama_ai.kernel_params.tree import Tree
from llama_ai.kernel_params.wanted import Request

HELPER = Path(__file__).resolve().parents[2] / "scripts" / "kernel-params"
OURS = "var/lib/llama-ai"
LAYOUT = {
    "proc/meminfo": "MemTotal:       131072000 kB\n",
    "etc/os-release": "ID=debian\n",
    "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet amdgpu.gttsize=5"\n',
    "etc/default/grub.d/a.cfg": 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX ttm.pages_limit=5"\n',
    "var/lib/x": "",
}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount or give files away")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lay_out(tmp_path / "root")
    return tmp_path / "root"


def lay_out(root: Path) -> None:
    for name, content in LAYOUT.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")


def contents(root: Path, *, ours: bool = False) -> dict[str, str]:
    return {
        name: str(path.readlink()) if path.is_symlink() else path.read_text(encoding="utf-8")
        for path in root.rglob("*")
        if (path.is_file() or path.is_symlink())
        and (ours or not (name := str(path.relative_to(root))).startswith(OURS))
        and (name := str(path.relative_to(root)))
    }


def call(root: Path, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", str(HELPER), *words, "--root", str(root)],
        capture_output=True,
        text=True,
        input=stdin if stdin is not None else "",
        check=False,
    )


def apply_steps(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """The contents before and after an undisturbed ``apply``."""
    before = contents(root)
    assert call(root, "apply", "--gib=104", "--route=grub", "--yes").returncode == 0
    return before, contents(root)


# ---- killed -------------------------------------------------------------------------------------

CHANGING = ("write", "rename", "unlink", "mkdir", "rmdir", "fchmod")
"""Every call that changes something on disk; at a chosen one the process is gone."""


def killed_at(number: int, root: Path, *words: str) -> int:
    """Run in a child that vanishes, as by SIGKILL, in front of its ``number``-th change."""
    child = os.fork()
    if child == 0:  # pragma: no cover - no line of it ever returns to the test
        code = 70
        try:
            left = number

            def counted(real: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **kwargs: Any) -> Any:
                    nonlocal left
                    if left == 0:
                        os._exit(137)
                    left -= 1
                    return real(*args, **kwargs)

                return call

            for name in CHANGING:
                setattr(os, name, counted(getattr(os, name)))
            with contextlib.redirect_stdout(io.StringIO()):
                code = helper.main([*words, f"--root={root}"])
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def inside(root: Path, *words: str) -> tuple[int, str]:
    """The helper's code in this process: exit code and what it said on stderr."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = helper.main([*words, f"--root={root}"])
    return code, errors.getvalue()


@pytest.mark.parametrize("first", ["fresh", "applied"])
def test_killed_between_any_two_writes(tmp_path: Path, first: str) -> None:
    """Each file is whole, old or new; then `revert` or a second `apply` finish cleanly."""
    reference = tmp_path / "reference"
    lay_out(reference)
    original, after = apply_steps(reference)
    template = tmp_path / "template"
    lay_out(template)
    if first == "applied":
        assert inside(template, "apply", "--gib=90", "--route=grub", "--yes")[0] == 0
    before = contents(template)
    for number in range(200):
        root = tmp_path / f"{number}"
        shutil.copytree(template, root)
        code = killed_at(number, root, "apply", "--gib=104", "--route=grub", "--yes")
        now = contents(root)
        hidden = {name for name in now if name.rpartition("/")[2].startswith(".")}
        for name in {*now, *before, *after} - hidden:
            assert now.get(name) in (before.get(name), after.get(name)), (number, name)
        if number % 2:
            assert inside(root, "apply", "--gib=104", "--route=grub", "--yes")[0] == 0
            assert contents(root) == after, number
        failed, why = inside(root, "revert", "--yes")
        if failed:
            assert "nothing to revert" in why
            assert first == "fresh"
        assert contents(root) == original, number
        shutil.rmtree(root)
        if code != 137:
            assert code == 0
            assert number > 15, "the fault was really injected"
            return
    pytest.fail("the helper never came to its end")


def test_killed_while_reverting(tmp_path: Path) -> None:
    template = tmp_path / "template"
    lay_out(template)
    original, _ = apply_steps(template)
    for number in range(200):
        root = tmp_path / f"{number}"
        shutil.copytree(template, root)
        code = killed_at(number, root, "revert", "--yes")
        inside(root, "revert", "--yes")
        assert contents(root) == original, number
        shutil.rmtree(root)
        if code != 137:
            return
    pytest.fail("the helper never came to its end")


def test_commands_that_did_not_run_are_made_up_for(root: Path) -> None:
    """Killed (here: failed) after the files and before the commands: the next `apply` runs them."""
    tree = Tree(root)
    tree.is_live = True  # so that commands run; ours only records
    ran: list[str] = []

    def failing(command: Command) -> None:
        ran.append(str(command))
        raise RuntimeError("killed")

    request = Request(gib=104, route="grub")
    with pytest.raises(RuntimeError):
        execute(tree, plan_apply(tree, request, now="n"), stamp="1", say=print, run=failing)
    again = plan_apply(tree, request, now="n")
    assert not again.edits
    assert [str(command) for command in again.commands] == ["update-grub"]
    execute(tree, again, stamp="2", say=print, run=lambda command: ran.append(str(command)))
    assert ran == ["update-grub", "update-grub"]
    assert not plan_apply(tree, request, now="n").changes


# ---- the disk -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(6))
def test_disk_full_at_each_write(root: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """ENOSPC at each write up to the last file: an error, and every file as it was.

    One backup a changed file, the record twice (its directories are new), then the three files.
    """
    real: Callable[..., int] = os.write
    original = contents(root, ours=True)
    count = 0

    def full(handle: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count == number + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, data)

    tree = Tree(root)
    plan = plan_apply(tree, Request(gib=104, route="grub"), now="n")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(LlamaAiError, match="No space left") as caught:
            execute(tree, plan, stamp="1", say=lambda _: None)
    assert "free some space" in (caught.value.hint or "")
    assert contents(root) == {n: c for n, c in original.items() if not n.startswith(OURS)}
    execute(tree, plan_apply(tree, Request(gib=104, route="grub"), now="n"), stamp="2", say=print)
    execute(tree, plan_revert(tree), stamp="3", say=print)
    assert contents(root, ours=True) == original


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(place)], check=False
    )
    if mounted.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@needs_root
def test_a_really_full_disk(small_disk: Path) -> None:
    lay_out(small_disk)
    filler = os.open(small_disk / "filler", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(filler, b"x" * 512):
            pass
    os.close(filler)
    before = contents(small_disk)
    ended = call(small_disk, "apply", "--gib=104", "--route=grub", "--yes")
    assert ended.returncode == 1
    assert "free some space" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert contents(small_disk) == before
    (small_disk / "filler").unlink()
    assert call(small_disk, "apply", "--gib=104", "--route=grub", "--yes").returncode == 0
    assert call(small_disk, "revert", "--yes").returncode == 0
    assert contents(small_disk) == {n: c for n, c in before.items() if n != "filler"}


@needs_root
def test_a_really_read_only_file_system(small_disk: Path) -> None:
    lay_out(small_disk)
    before = contents(small_disk, ours=True)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ended = call(small_disk, "apply", "--gib=104", "--yes")
    assert ended.returncode == 1
    assert "read-only" in ended.stderr
    assert contents(small_disk, ours=True) == before


# ---- links and owners ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["/etc/shadow", "../shadow", "/etc/default/other"])
def test_a_linked_target_is_refused(root: Path, target: str) -> None:
    for path in (root / "etc/shadow", root / "etc/default/other"):
        path.write_text("GRUB_CMDLINE_LINUX='amdgpu.gttsize=1'\n")
    (root / "etc/default/grub").unlink()
    (root / "etc/default/grub").symlink_to(target)
    before = contents(root)
    ended = call(root, "apply", "--gib=104", "--route=grub", "--yes")
    assert ended.returncode == 1
    assert "may write" in ended.stderr
    assert contents(root) == before


def test_a_linked_directory_is_followed_inside_the_root_only(root: Path) -> None:
    """/efi -> /boot is common and fine; a link to elsewhere is not."""
    (root / "boot/loader/entries").mkdir(parents=True)
    (root / "boot/loader/entries/a.conf").write_text("linux /v\noptions quiet\n")
    (root / "efi").symlink_to("boot")
    ended = call(root, "apply", "--gib=104", "--route=systemd-boot", "--yes")
    assert ended.returncode == 0, ended.stderr
    assert "ttm.pages_limit=27262976" in (root / "boot/loader/entries/a.conf").read_text()
    outside = root.parent / "modprobe.d"
    outside.mkdir()
    (root / "etc/modprobe.d").symlink_to(outside)
    ended = call(root, "apply", "--gib=104", "--route=modprobe.d", "--yes")
    assert ended.returncode == 1
    assert list(outside.iterdir()) == []


def test_a_link_put_in_between_plan_and_write_is_not_followed(root: Path) -> None:
    tree = Tree(root)
    plan = plan_apply(tree, Request(gib=104, route="grub"), now="n")
    shutil.move(root / "etc/default", root.parent / "stolen")
    (root / "etc/default").symlink_to(root.parent / "stolen")
    before = contents(root.parent / "stolen")
    with pytest.raises(LlamaAiError, match="link"):
        execute(tree, plan, stamp="1", say=print)
    assert contents(root.parent / "stolen") == before


def test_a_file_changed_between_plan_and_write_is_kept(root: Path) -> None:
    tree = Tree(root)
    plan = plan_apply(tree, Request(gib=104, route="grub"), now="n")
    (root / "etc/default/grub").write_text("GRUB_TIMEOUT=1\n")
    with pytest.raises(LlamaAiError, match="changed while"):
        execute(tree, plan, stamp="1", say=print)
    assert (root / "etc/default/grub").read_text() == "GRUB_TIMEOUT=1\n"
    assert not (root / "etc/default/grub.d/zz-llama-ai.cfg").exists()
    assert (root / "etc/default/grub.d/a.cfg").read_text() == LAYOUT["etc/default/grub.d/a.cfg"]


@needs_root
@pytest.mark.parametrize("name", ["etc/default/grub", "etc/default"])
def test_a_file_or_directory_of_another_user_is_refused(root: Path, name: str) -> None:
    os.chown(root / name, 12345, 12345)
    before = contents(root, ours=True)
    ended = call(root, "apply", "--gib=104", "--route=grub", "--yes")
    assert ended.returncode == 1
    assert "belongs to user 12345" in ended.stderr
    assert contents(root, ours=True) == before


@needs_root
def test_owner_and_mode_are_kept(root: Path) -> None:
    os.chown(root / "etc/default/grub", 0, 4)
    (root / "etc/default/grub").chmod(0o640)
    assert call(root, "apply", "--gib=104", "--route=grub", "--yes").returncode == 0
    status = (root / "etc/default/grub").stat()
    assert (status.st_gid, status.st_mode & 0o777) == (4, 0o640)
    state = root / OURS / "kernel-params/state.json"
    assert state.stat().st_mode & 0o077 == 0, "it holds what only root may read"
    assert call(root, "revert", "--yes").returncode == 0
    status = (root / "etc/default/grub").stat()
    assert (status.st_gid, status.st_mode & 0o777) == (4, 0o640)


@needs_root
@pytest.mark.skipif(not os.access("/usr/bin/python3", os.X_OK), reason="no system Python")
def test_without_root_it_says_so() -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        lay_out(place / "root")
        shutil.copy(HELPER, place / "helper")
        (place / "root/etc/default/grub").chmod(0o600)

        def as_user(route: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [
                    "/usr/bin/python3",
                    "-I",
                    str(place / "helper"),
                    "apply",
                    "--gib=104",
                    f"--route={route}",
                    "--yes",
                    f"--root={place / 'root'}",
                ],
                capture_output=True,
                text=True,
                check=False,
                user=12345,
                group=12345,
                extra_groups=[],
            )

        ended = as_user("grub")
        assert (ended.returncode, ended.stderr.partition("\n")[0]) == (
            1,
            "error: only root may read /etc/default/grub",
        )
        before = contents(place / "root", ours=True)
        (place / "root/etc/default/grub").chmod(0o644)
        ended = as_user("grub")
        assert ended.returncode == 1
        assert "only root may write" in ended.stderr
        assert contents(place / "root", ours=True) == before


# ---- hostile words ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["apply", "--gib", "104; touch /tmp/owned"],
        ["apply", "--gib", "١٠٤"],
        ["apply", "--gib", "-5"],
        ["apply", "--gib", "0"],
        ["apply", "--gib", "99999"],
        ["apply", "--gib", "1e3"],
        ["apply", "--gib", "0x68"],
        ["apply", "--gib", "104\n"],
        ["apply", "--gib", ""],
        ["apply", "--gib", "104", "--auto"],
        ["apply"],
        ["apply", "--gib", "104", "--route", "../../etc/passwd"],
        ["apply", "--gib", "104", "--route", "grub\nx"],
        ["apply", "--gib", "120"],
        ["apply", "--gib", "120", "--force"],
        ["apply", "--gib", "120", "--reason", "x"],
        ["apply", "--gib", "120", "--force", "--reason", "a\nttm.pages_limit=1"],
        ["apply", "--gi", "104"],
        ["destroy"],
        [],
        ["apply", "--gib=104", "--plan", "/nowhere"],
        ["apply", "--gib=104", "--plan", "/etc/os-release"],
        ["show", "--route", "x"],
    ],
)
def test_hostile_words(root: Path, words: list[str]) -> None:
    before = contents(root, ours=True)
    ended = call(root, *words, *(["--yes"] if words else []))
    assert ended.returncode == 2, ended.stdout
    assert "Traceback" not in ended.stderr
    assert contents(root, ours=True) == before


def tampered() -> list[tuple[str, Callable[[dict[str, Any]], Any]]]:
    def edit(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda plan: {**plan, key: value}

    def request(key: str, value: Any) -> Callable[[dict[str, Any]], Any]:
        return lambda plan: {**plan, "request": {**plan["request"], key: value}}

    return [
        (
            "another path",
            edit(
                "edits", [{"path": "/etc/passwd", "before_sha256": None, "after_sha256": "0" * 64}]
            ),
        ),
        (
            "another content",
            lambda p: {**p, "edits": [{**e, "after_sha256": "0" * 64} for e in p["edits"]]},
        ),
        ("another command", edit("commands", [["reboot"]])),
        ("more commands", lambda p: {**p, "commands": [*p["commands"], ["update-grub"]]}),
        ("another limit", edit("gib", 120)),
        ("a larger request", request("gib", 120)),
        ("a bool for a number", request("gib", True)),
        ("text for a number", request("gib", "104")),
        ("an unknown route", request("route", "/bin/sh")),
        ("an unknown key", request("path", "/etc/passwd")),
        ("no request", edit("request", None)),
        ("another action", edit("action", "revert")),
        ("a list", lambda _: [1, 2]),
        ("nothing", lambda _: None),
    ]


@pytest.mark.parametrize(("name", "change"), tampered(), ids=[name for name, _ in tampered()])
def test_a_tampered_plan_is_refused(
    root: Path, name: str, change: Callable[[dict[str, Any]], Any]
) -> None:
    plan = plan_document(plan_apply(Tree(root), Request(gib=104, route="grub"), now="n"))
    before = contents(root, ours=True)
    ended = call(root, "apply", "--yes", "--plan=-", stdin=json.dumps(change(plan)))
    assert ended.returncode in (1, 2), name
    assert "Traceback" not in ended.stderr
    assert contents(root, ours=True) == before
    ended = call(root, "apply", "--yes", "--plan=-", stdin=json.dumps(plan))
    assert ended.returncode == 0, ended.stderr
    assert "zz-llama-ai.cfg" in str(sorted(contents(root)))


def test_a_plan_for_another_state_of_the_system_is_refused(root: Path) -> None:
    plan = plan_document(plan_apply(Tree(root), Request(gib=104, route="grub"), now="n"))
    with (root / "etc/default/grub").open("a") as stream:
        stream.write("GRUB_TIMEOUT=3\n")
    before = contents(root, ours=True)
    ended = call(root, "apply", "--yes", "--plan=-", stdin=json.dumps(plan))
    assert ended.returncode == 1
    assert "not as it was" in ended.stderr
    assert contents(root, ours=True) == before


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "x" * (1 << 21), "\0"])
def test_a_plan_that_is_none(root: Path, text: str) -> None:
    ended = call(root, "apply", "--yes", "--plan=-", stdin=text)
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("answer", ["", "n\n", "yes please\n", "\n"])
def test_anything_but_yes_changes_nothing(root: Path, answer: str) -> None:
    before = contents(root, ours=True)
    ended = call(root, "apply", "--gib=104", stdin=answer)
    assert ended.returncode == 1
    assert "nothing was changed" in ended.stderr
    assert "ttm.pages_limit=27262976" in ended.stdout, "the diff is shown first"
    assert contents(root, ours=True) == before
    assert call(root, "apply", "--gib=104", stdin="y\n").returncode == 0
    assert contents(root) != before


def test_dry_run_changes_nothing(root: Path) -> None:
    before = contents(root, ours=True)
    assert call(root, "apply", "--gib=104", "--dry-run", "--yes").returncode == 0
    assert contents(root, ours=True) == before
    assert call(root, "apply", "--gib=104", "--yes").returncode == 0
    applied = contents(root, ours=True)
    assert call(root, "revert", "--dry-run", "--yes").returncode == 0
    assert contents(root, ours=True) == applied


# ---- files of a hostile system ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["fifo", "directory", "huge", "binary"])
def test_strange_files(root: Path, kind: str) -> None:
    target = root / "etc/default/grub"
    target.unlink()
    if kind == "fifo":
        os.mkfifo(target)
    elif kind == "directory":
        target.mkdir()
    elif kind == "huge":
        with target.open("wb") as stream:
            stream.truncate(1 << 24)
    else:
        target.write_bytes(b'\xff\xfe GRUB_CMDLINE_LINUX_DEFAULT="\x80 amdgpu.gttsize=1"\n\x00')
    ended = call(root, "apply", "--gib=104", "--route=grub", "--yes")
    assert "Traceback" not in ended.stderr
    if kind != "binary":
        assert ended.returncode == 1
        return
    assert ended.returncode == 0
    assert call(root, "revert", "--yes").returncode == 0
    assert target.read_bytes() == (
        b'\xff\xfe GRUB_CMDLINE_LINUX_DEFAULT="\x80 amdgpu.gttsize=1"\n\x00'
    )


def test_revert_after_two_applies_with_others_edits_in_between(root: Path) -> None:
    """Both edits of the other stay, and `revert` says so."""
    grub = root / "etc/default/grub"
    call(root, "apply", "--gib=104", "--route=grub", "--yes")
    grub.write_text(grub.read_text() + "GRUB_TIMEOUT=7\n")
    drop_in = root / "etc/default/grub.d/zz-llama-ai.cfg"
    assert call(root, "apply", "--gib=90", "--yes").returncode == 0
    assert drop_in.read_text().count("pages_limit") == 1
    grub.write_text(grub.read_text().replace("quiet", "quiet splash"))
    ended = call(root, "revert", "--yes")
    assert "edited by somebody else" in ended.stdout
    assert contents(root) == {
        **LAYOUT,
        "etc/default/grub": 'GRUB_CMDLINE_LINUX_DEFAULT="quiet amdgpu.gttsize=5 splash"\n'
        "GRUB_TIMEOUT=7\n",
    }


def test_a_value_that_another_changed_is_left_and_said(root: Path) -> None:
    conf = root / "etc/modprobe.d/llama-ai.conf"
    call(root, "apply", "--gib=104", "--yes", "--route=modprobe.d")
    conf.write_text(conf.read_text().replace("27262976", "555"))
    ended = call(root, "revert", "--yes")
    assert ended.returncode == 0
    assert "the very words that were ours" in ended.stdout
    assert "pages_limit=555" in conf.read_text()


def test_another_run_at_the_same_time_is_refused(root: Path) -> None:
    import fcntl

    handle = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        ended = call(root, "apply", "--gib=104", "--yes")
    finally:
        os.close(handle)
    assert ended.returncode == 1
    assert "another run" in ended.stderr


def test_nothing_is_left_behind_after_revert(root: Path) -> None:
    before = {str(path.relative_to(root)) for path in root.rglob("*")}
    call(root, "apply", "--gib=104", "--yes", "--route=modprobe.d")
    call(root, "apply", "--gib=90", "--yes", "--route=grub")
    assert plan_revert(Tree(root)).changes
    call(root, "revert", "--yes")
    assert {str(path.relative_to(root)) for path in root.rglob("*")} == before


def test_the_record_becomes_private_with_what_it_holds(root: Path) -> None:
    state = root / OURS / "kernel-params/state.json"
    assert call(root, "apply", "--gib=104", "--route=grub", "--yes").returncode == 0
    assert state.stat().st_mode & 0o777 == 0o644, "`verify` needs no root"
    (root / "etc/default/grub").chmod(0o600)
    assert call(root, "apply", "--gib=90", "--route=grub", "--yes").returncode == 0
    assert state.stat().st_mode & 0o777 == 0o600
