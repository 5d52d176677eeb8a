"""The unit files, word for word. After a wanted change: UPDATE_GOLDEN=1 pytest tests/golden."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.service import (
    Service,
    install,
    is_ours,
    quote,
    serve_words,
    state,
    template,
    uninstall,
    unit_dir,
    unit_text,
)

GOLDEN = Path(__file__).parent / "service"
GIB = 1 << 30

CASES = {
    "plain": (
        Service(
            name="llama-ai", model_path=Path("/home/u/models/small.gguf"), model_bytes=98_000_000
        ),
        {"HOME": "/home/u"},
    ),
    "awkward": (
        Service(
            name="big",
            model_path=Path('/home/u/my models/100% "new" $HOME\\x.gguf'),
            model_bytes=60 * GIB,
            serve_words=("--port", "9191", "--no-ssd-cache", "--set", "alias=a b"),
            memory_max="24G",
        ),
        {"HOME": "/home/u", "HF_HOME": "/data/hugging face", "XDG_CACHE_HOME": "/data/cache"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_units_are_as_recorded(name: str) -> None:
    service, environ = CASES[name]
    text = unit_text(
        service, template=template(), python="/opt/llama-ai/bin/python", environ=environ
    )
    path = GOLDEN / f"{name}.service"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", CASES)
def test_systemd_accepts_them(name: str, tmp_path: Path) -> None:
    service, environ = CASES[name]
    text = unit_text(service, template=template(), python=sys.executable, environ=environ)
    unit = tmp_path / service.unit
    unit.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("/a/b.gguf", "/a/b.gguf"),
        ("a b", '"a b"'),
        ("", '""'),
        ("100%", "100%%"),
        ('say "x"', '"say \\"x\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("$HOME", "$$HOME"),
        ("it's; a | b", '"it\'s; a | b"'),
    ],
)
def test_words_mean_themselves(word: str, quoted: str) -> None:
    assert quote(word, dollar=True) == quoted


@pytest.mark.parametrize("bad", ["a\nExecStartPre=/bin/evil", "tab\there", "\x7f"])
def test_words_cannot_smuggle_lines(bad: str) -> None:
    with pytest.raises(UsageError):
        quote(bad)
    with pytest.raises(UsageError):
        unit_text(
            Service(name="x", model_path=Path("/m"), model_bytes=None, memory_max=bad),
            template=template(),
            python="/p",
            environ={},
        )


def test_flags_of_serve_are_said_again() -> None:
    words = serve_words(
        {"port": 9191, "ssd_cache": False, "ctx_size": None, "api_key_file": "/k"}, ["alias=x"]
    )
    assert "--port 9191" in " ".join(words)
    assert "--no-ssd-cache" in words
    assert "--api-key-file /k" in " ".join(words)
    assert words[-2:] == ("--set", "alias=x")
    assert "--ctx-size" not in words


def test_a_key_never_goes_into_a_unit() -> None:
    for flags, assignments in (({"api_key": "sk-1"}, []), ({}, ["api-key=sk-1"])):
        with pytest.raises(UsageError) as caught:
            serve_words(flags, assignments)
        assert "--api-key-file" in (caught.value.hint or "")
        assert "sk-1" not in caught.value.message


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A user whose units are below ``tmp_path``; the real systemctl finds no bus there."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return dict(os.environ)


needs_systemd = pytest.mark.skipif(shutil.which("systemctl") is None, reason="needs systemctl")


@needs_systemd
def test_install_and_uninstall_leave_nothing(environ: dict[str, str], tmp_path: Path) -> None:
    service, _ = CASES["plain"]
    path, steps = install(service, environ)
    assert path == tmp_path / "config/systemd/user/llama-ai.service"
    assert is_ours(path)
    assert f"ExecStart={sys.executable} -P -m llama_ai serve " in path.read_text()
    assert any("enable-linger" in step for step in steps)
    assert state("llama-ai", environ)["path"] == str(path)
    install(service, environ)  # again: the same

    wants = path.parent / "default.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / path.name).symlink_to(path)  # as `systemctl enable` does
    other = path.parent / "other.service"
    other.write_text("[Unit]\n")
    assert uninstall("llama-ai", environ) == path
    left = [entry for entry in path.parent.rglob("*") if entry != wants]
    assert left == [other]
    with pytest.raises(LlamaAiError, match="no service"):
        uninstall("llama-ai", environ)


@needs_systemd
def test_a_unit_of_somebody_else_is_left_alone(environ: dict[str, str]) -> None:
    path = unit_dir(environ) / "llama-ai.service"
    path.parent.mkdir(parents=True)
    path.write_text("[Unit]\nDescription=mine\n")
    for act in (
        lambda: install(CASES["plain"][0], environ),
        lambda: uninstall("llama-ai", environ),
    ):
        with pytest.raises(LlamaAiError, match="not written by llama-ai"):
            act()
    assert path.read_text() == "[Unit]\nDescription=mine\n"


def test_without_systemd_it_is_said(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LlamaAiError, match="no systemd"):
        install(CASES["plain"][0], environ)
    assert not unit_dir(environ).exists()
