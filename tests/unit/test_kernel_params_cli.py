"""``llama-ai kernel-params``: what it shows by itself, and how it hands over to the helper."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from llama_ai.cli import kernel_params as cli
from llama_ai.errors import EngineNotReadyError, LlamaAiError, UsageError, UserInterruptError
from llama_ai.kernel_params import helper
from llama_ai.kernel_params.tree import NeedsRootError, Tree

HELPER = Path(__file__).resolve().parents[2] / "scripts" / "kernel-params"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in {
        "proc/meminfo": "MemTotal:       131072000 kB\n",
        "proc/cmdline": "quiet amdgpu.gtt_size=9\n",
        "etc/os-release": "ID=debian\n",
        "sys/module/ttm/parameters/pages_limit": "16384000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    return tmp_path


def run(*words: str) -> int:
    """Through typer, as the application does; our errors pass."""
    try:
        typer.main.get_command(cli.app).main(args=list(words), standalone_mode=True)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--root", str(root), "--gib", "104") == 0
    text = capsys.readouterr().out
    assert "ttm.pages_limit 16384000 (62.5 GiB)" in text
    assert "amdgpu.gtt_size=9: typo" in text
    assert "+options ttm pages_limit=27262976" in text
    assert not (root / "etc/modprobe.d").exists()


def test_show_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", "--root", str(root), "--json") == 0
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "llama-ai.kernel-params-show/1"
    assert body["ceiling_bytes"] == 106 << 30
    assert body["gtt_bytes"] is None
    assert body["found"][0]["verdict"] == "typo"
    assert body["route"] == "modprobe.d"


def test_verify_json_and_its_exit_code(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", "--root", str(root), "--json", "--gib", "104") == 1
    body = json.loads(capsys.readouterr().out)
    assert body["schema"] == "llama-ai.kernel-params-verify/1"
    assert body["ok"] is False
    assert body["expected_bytes"] == 104 << 30
    (root / "sys/module/ttm/parameters/pages_limit").write_text(f"{104 << 18}\n")
    assert run("verify", "--root", str(root), "--gib", "104") == 0


def test_apply_and_revert_below_a_root(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("apply", "--root", str(root), "--auto", "--dry-run") == 0
    assert not (root / "etc/modprobe.d").exists()
    assert run("apply", "--root", str(root), "--gib", "104", "--yes") == 0
    assert "would run: update-initramfs -u -k all" in capsys.readouterr().out
    assert (root / "etc/modprobe.d/llama-ai.conf").exists()
    assert run("revert", "--root", str(root), "--yes") == 0
    assert not (root / "etc/modprobe.d").exists()


def test_errors_are_the_applications_own(root: Path) -> None:
    with pytest.raises(UsageError, match="106 GiB"):
        run("apply", "--root", str(root), "--gib", "120", "--yes")
    with pytest.raises(UsageError, match="recording"):
        run("show", "--root", str(root / "nowhere"))
    with pytest.raises(LlamaAiError, match="nothing to revert"):
        run("revert", "--root", str(root), "--yes")


def handed_over(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[tuple[list[str], str | None]]:
    """Make the live machine be ``root`` and catch what would run with privileges."""
    calls: list[tuple[list[str], str | None]] = []

    def plan(action: str, words: list[str]) -> Any:
        return helper.make_plan(Tree(root), helper.parser().parse_args([action, *words]))

    monkeypatch.setattr(cli, "_plan", plan)
    monkeypatch.setattr(
        cli, "_run_privileged", lambda words, plan: calls.append((list(words), plan))
    )
    return calls


def test_the_confirmed_plan_is_what_the_helper_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = handed_over(monkeypatch, root)
    assert run("apply", "--gib", "104", "--yes") == 0
    assert "+options ttm pages_limit=27262976" in capsys.readouterr().out
    [(words, plan)] = calls
    ended = subprocess.run(
        [sys.executable, "-I", str(HELPER), *words, f"--root={root}"],
        input=plan,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert (
        (root / "etc/modprobe.d/llama-ai.conf")
        .read_text()
        .endswith("options ttm pages_limit=27262976\n")
    )


def test_nothing_runs_without_a_yes(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = handed_over(monkeypatch, root)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(LlamaAiError, match="not confirmed"):
        run("apply", "--gib", "104")
    assert not calls
    assert "pages_limit" in capsys.readouterr().out


def test_what_only_root_can_read_is_left_to_the_helper(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = handed_over(monkeypatch, root)

    def denied(action: str, words: list[str]) -> None:
        raise NeedsRootError("only root may read /boot/efi")

    monkeypatch.setattr(cli, "_plan", denied)
    assert run("apply", "--gib", "104", "--route", "systemd-boot") == 0
    assert calls == [(["apply", "--gib=104", "--route=systemd-boot"], None)]


@pytest.mark.parametrize(
    ("programs", "display", "first"),
    [
        ({"sudo", "pkexec"}, None, "sudo"),
        ({"sudo", "pkexec"}, ":0", "pkexec"),
        ({"pkexec"}, None, "pkexec"),
        ({"sudo"}, ":0", "sudo"),
    ],
)
def test_sudo_or_pkexec(
    programs: set[str], display: str | None, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: name if name in programs else None)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    if display:
        monkeypatch.setenv("DISPLAY", display)
    command = cli.privileged_command(["apply", "--gib=104"])
    assert command[0] == first
    assert command[-4:] == ["-I", str(HELPER), "apply", "--gib=104"]


def test_neither_sudo_nor_pkexec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(EngineNotReadyError, match="neither sudo nor pkexec"):
        cli.privileged_command(["revert"])


def test_interrupted(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_over(monkeypatch, root)
    monkeypatch.setattr(cli, "_plan", interrupted_plan)
    with pytest.raises(UserInterruptError):
        run("apply", "--gib", "104")


def interrupted_plan(action: str, words: list[str]) -> None:
    raise KeyboardInterrupt
