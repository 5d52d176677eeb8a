"""The KV cache on disk as Python sees it: the choice, the files, and the ``cache`` command."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llama_ai.cli.cache import app
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.kv_cache.choice import choose, default_directory
from llama_ai.kv_cache.files import read_directory, read_header, remove
from tests.support.models import write_model
from tests.unit.test_command import built


def settings_of(**values: object) -> Settings:
    return resolve(
        flags={},
        assignments=[f"{name}={value}" for name, value in values.items()],
        environ={},
        config=ConfigFile(path=Path("config.toml"), values={}, model_dirs=()),
    )


def write(
    path: Path,
    *,
    kind: int = 1,
    begin: int = 0,
    end: int = 300,
    flags: int = 0,
    model: str = "a.gguf",
    size: int = 8192,
    said: int | None = None,
    version: int = 2,
    used_s: float | None = None,
) -> Path:
    """A file with the header of native/README.md, written field by field."""
    fixed = bytearray(512)
    struct.pack_into("<8sII", fixed, 0, b"llamaiKV", version, 1)
    fixed[24:40] = bytes(range(16))
    struct.pack_into("<IIii", fixed, 48, kind, flags, begin, end)
    struct.pack_into("<q", fixed, 64, 1_700_000_000)
    struct.pack_into("<Q", fixed, 112, size if said is None else said)
    struct.pack_into("<64s", fixed, 120, model.encode())
    path.write_bytes(bytes(fixed).ljust(size, b"\0"))
    if used_s is not None:
        os.utime(path, (used_s, used_s))
    return path


STANDARD = "phoenix-64-4g"


def test_the_choice_is_on_unless_somebody_says_no() -> None:
    for tier in ("halo", "standard", "handheld", "none"):
        disk = choose(settings_of(), tier, 1024)
        assert disk.enabled
        assert disk.source == "solver"
        assert disk.directory == default_directory()
        assert (disk.max_gib, disk.max_age_days, disk.system_prompts) == (20, 30, 8)
    off = choose(settings_of(ssd_cache="off"), "standard", 1024)
    assert (off.enabled, off.source) == (False, "flag")
    both = choose(settings_of(ssd_cache="off", kv_disk="on"), "standard", 1024)
    assert both.enabled
    without_ram = choose(settings_of(kv_disk="on"), "halo", 0)
    assert not without_ram.enabled
    assert "--cache-ram" in without_ram.why


def test_the_directory_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose(settings_of(kv_dir="here"), "halo", 1).directory == tmp_path / "here"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert choose(settings_of(kv_dir="~/kv"), "halo", 1).directory == tmp_path / "kv"


def test_the_engine_is_told(tmp_path: Path) -> None:
    model = write_model(tmp_path / "tiny.gguf")
    told = built(
        model,
        settings_of(kv_dir="/kv", kv_max_gib=5, kv_max_age_days=9, system_prompts=2),
        machine=STANDARD,
    )
    argv = told.command.argv
    for flag, value in (
        ("--kv-dir", "/kv"),
        ("--kv-max-gib", "5"),
        ("--kv-max-age-days", "9"),
        ("--system-prompts", "2"),
    ):
        assert argv[argv.index(flag) + 1] == value
    for off in ({"kv_disk": "off"}, {"ssd_cache": "off"}, {"kv_ram_mib": 0}):
        assert "--kv-dir" not in built(model, settings_of(**off), machine=STANDARD).command.argv
    ram = built(model, settings_of(kv_ram_mib=77), machine=STANDARD).command.argv
    assert ram[ram.index("--cache-ram") + 1] == "77"
    # An engine that does not know the flags is not given them.
    stock = frozenset(word for word in argv if word.startswith("-")) - {
        "--kv-dir",
        "--kv-max-gib",
        "--kv-max-age-days",
        "--system-prompts",
    }
    other = built(model, settings_of(), machine=STANDARD, known_flags=stock)
    assert "--kv-dir" not in other.command.argv
    assert any("--kv-dir left out" in note for note in other.notes)


def test_a_header_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.kv", kind=2, begin=700, end=700, flags=3, used_s=1_700_000_100)
    file = read_header(path)
    assert file is not None
    assert (file.kind, file.begin, file.end) == ("partial", 700, 700)
    assert (file.model, file.system, file.system_end) == ("a.gguf", True, True)
    assert (file.size_bytes, file.created_s) == (8192, 1_700_000_000)
    assert file.used_s == 1_700_000_100
    assert file.fingerprint == "000102030405060708090a0b0c0d0e0f"


def test_what_is_no_whole_file_is_damaged(tmp_path: Path) -> None:
    write(tmp_path / "good.kv")
    write(tmp_path / "cut.kv", said=9000)
    write(tmp_path / "old.kv", version=9)
    write(tmp_path / "odd.kv", kind=7)
    (tmp_path / "short.kv").write_bytes(b"llamaiKV")
    (tmp_path / "aside.kv.bad").write_bytes(b"x" * 100)
    (tmp_path / ".writing-1-2").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("not ours")
    (tmp_path / "link.kv").symlink_to(tmp_path / "good.kv")
    contents = read_directory(tmp_path)
    assert [file.path.name for file in contents.files] == ["good.kv"]
    assert {path.name for path in contents.damaged} == {
        "cut.kv",
        "old.kv",
        "odd.kv",
        "short.kv",
        "aside.kv.bad",
    }
    assert contents.total_bytes == 4 * 8192 + 8 + 100
    assert read_directory(tmp_path / "nowhere").files == ()
    with pytest.raises(LlamaAiError, match="cannot read"):
        read_directory(tmp_path / "notes.txt")


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    path = write(tmp_path / "x.kv")
    assert remove([path, path]) == 1
    with pytest.raises(LlamaAiError, match="cannot remove"):
        remove([tmp_path])


def run(*words: str) -> str:
    result = CliRunner().invoke(app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_ls_and_stats(tmp_path: Path) -> None:
    here = ("--kv-dir", str(tmp_path))
    assert "nothing is stored" in run("ls", *here)
    now_s = time.time()
    write(tmp_path / "a.kv", used_s=now_s - 90000)
    write(tmp_path / "b.kv", model="b.gguf", begin=300, end=900, flags=3, used_s=now_s - 7200)
    lines = run("ls", *here).splitlines()
    assert lines[1].split()[0] == "b.gguf"
    assert "system prompt" in lines[1]
    assert "300-900" in lines[1]
    assert "2 h ago" in lines[1]
    assert "1 d ago" in lines[2]
    listed = json.loads(run("ls", *here, "--json"))
    assert listed["schema"] == "llama-ai.cache/1"
    assert [file["name"] for file in listed["files"]] == ["b.kv", "a.kv"]
    document = json.loads(run("stats", *here, "--json"))
    assert document["total_bytes"] == 2 * 8192
    assert document["cap_bytes"] == 20 << 30
    assert {entry["model"]: entry["system_prompts"] for entry in document["models"]} == {
        "a.gguf": 0,
        "b.gguf": 1,
    }
    assert "whoever can read them" in run("stats", *here)


def test_rm_removes_what_is_named(tmp_path: Path) -> None:
    here = ("--kv-dir", str(tmp_path))
    names = ("a.kv", "b.kv", "c.kv", "d.kv")
    for name in names:
        write(tmp_path / name, model=f"{name[0]}.gguf", used_s=time.time() - 86400 * 5)
    write(tmp_path / "new.kv")
    (tmp_path / "x.kv.bad").write_bytes(b"bad")
    assert "removed 1 files, 8.0 KiB" in run("rm", "b.gguf", *here)
    assert json.loads(run("rm", "c.kv", *here, "--json"))["removed_files"] == 1
    assert "removed 2 files" in run("rm", "--older-than-days", "3", *here)
    assert {path.name for path in tmp_path.iterdir()} == {"new.kv", "x.kv.bad"}
    with pytest.raises(UsageError, match="nothing is stored under"):
        run("rm", "new.kv", "other", *here)
    with pytest.raises(UsageError, match="what shall be removed"):
        run("rm", *here)
    assert (tmp_path / "new.kv").exists()
    assert "removed 2 files" in run("rm", "--all", *here)
    assert list(tmp_path.iterdir()) == []
