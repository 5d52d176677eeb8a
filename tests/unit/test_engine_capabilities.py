"""What we learn of an engine binary. Small scripts stand in for odd binaries; the real engine is
tested in tests/integration/test_build.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llama_ai.engine import capabilities
from llama_ai.engine.capabilities import find_engine, inspect, list_devices, parse_devices
from llama_ai.engine.capabilities import parse_flags as flags_of
from llama_ai.errors import EngineNotReadyError

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
-m,    --model FNAME                    model path; see -hf, --hf-repo for others
-c,    --ctx-size N                     size of the prompt context
--port PORT                             port to listen on (default: 8080)
-kvu,  --kv-unified, -no-kvu, --no-kv-unified
                                        use single unified KV buffer (--fit ignores it)
--cpu-strict <0|1>                      use strict CPU placement
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def engine_script(directory: Path, more: str = "") -> Path:
    """A program that answers as a llama-server does, and counts in ``asked`` how often."""
    directory.mkdir(exist_ok=True)
    (directory / "help.txt").write_text(HELP)
    return script(
        directory / "llama-server",
        f"""
here={directory}
echo "$*" >> $here/asked
{more}
case "$1" in
--help) cat $here/help.txt ;;
--version) echo "version: 0.5.0-dev (build 0, commit 0c1e57098)" >&2 ;;
--list-devices) printf 'Available devices:\\n  Vulkan0: A (RADV X) (4096 MiB, 4000 MiB free)\\n' ;;
esac
""",
    )


def asked(directory: Path) -> list[str]:
    return (directory / "asked").read_text().splitlines()


def test_flags_are_all_spellings_in_the_first_column_and_nothing_else() -> None:
    assert flags_of(HELP) == {
        "-h",
        "--help",
        "--usage",
        "-m",
        "--model",
        "-c",
        "--ctx-size",
        "--port",
        "-kvu",
        "--kv-unified",
        "-no-kvu",
        "--no-kv-unified",
        "--cpu-strict",
    }


def test_devices_are_read_in_bytes_whatever_their_description() -> None:
    text = """\
ggml_vulkan: Found 1 Vulkan devices:
ggml_vulkan: 0 = AMD Radeon Graphics (RADV GFX1151) (radv) | uma: 1 | fp16: 1
Available devices:
  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (87722 MiB, 87654 MiB free)
  RPC[127.0.0.1:50052]: remote (1024 MiB, 0 MiB free)
"""
    first, *_ = parse_devices(text)
    assert (first.name, first.description) == ("Vulkan0", "AMD Radeon Graphics (RADV GFX1151)")
    assert (first.total_bytes, first.free_bytes) == (87722 << 20, 87654 << 20)
    assert parse_devices("Available devices:\n  (none)\n") == ()


def test_a_binary_is_asked_once_however_often_it_is_inspected(tmp_path: Path) -> None:
    server = engine_script(tmp_path / "e")
    first = inspect(server)
    assert inspect(server) == first
    assert first.flags == flags_of(HELP)
    assert (first.version, first.upstream_commit) == (
        "0.5.0-dev (build 0, commit 0c1e57098)",
        "0c1e57098",
    )
    assert first.stock
    assert first.key.startswith("external-")
    assert asked(tmp_path / "e").count("--help") == 1


def test_the_same_content_elsewhere_is_not_asked_again(tmp_path: Path) -> None:
    server = engine_script(tmp_path / "e")
    inspect(server)
    other = tmp_path / "copy"
    other.mkdir()
    copy = other / "llama-server"
    copy.write_bytes(server.read_bytes())
    copy.chmod(0o755)
    inspect(copy)
    assert asked(tmp_path / "e").count("--help") == 1


def test_a_changed_binary_or_library_is_asked_again(tmp_path: Path) -> None:
    server = engine_script(tmp_path / "e")
    inspect(server)
    (tmp_path / "e" / "help.txt").write_text(HELP + "--new-flag   one more\n")
    library = tmp_path / "e" / "libllama-common.so.0"
    library.write_bytes(b"one")
    assert "--new-flag" in inspect(server).flags
    library.write_bytes(b"two, longer")
    inspect(server)
    assert asked(tmp_path / "e").count("--help") == 3


@pytest.mark.parametrize("damage", [b"", b"{ not json", b"{}", b'{"format": 1, "flags": 3}'])
def test_a_corrupt_cache_is_asked_again(tmp_path: Path, damage: bytes) -> None:
    server = engine_script(tmp_path / "e")
    first = inspect(server)
    cached = [*(tmp_path / "cache" / "llama-ai" / "probes").iterdir()]
    assert len(cached) == 2
    for path in cached:
        path.write_bytes(damage)
    assert inspect(server) == first
    assert asked(tmp_path / "e").count("--help") == 2


def test_variables_that_the_engine_takes_as_flags_are_kept_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = engine_script(tmp_path / "e", more='echo "port=$LLAMA_ARG_PORT" >> $here/asked')
    monkeypatch.setenv("LLAMA_ARG_PORT", "1")
    inspect(server)
    assert "port=1" not in asked(tmp_path / "e")


def test_a_program_that_is_no_llama_server_is_refused(tmp_path: Path) -> None:
    for text in ("exit 3", "echo hello", "kill -SEGV $$"):
        server = script(tmp_path / "thing", text)
        with pytest.raises(EngineNotReadyError, match=r"llama-server") as caught:
            inspect(server)
        assert caught.value.hint


def test_a_file_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(b"\x00\x01")
    with pytest.raises(EngineNotReadyError, match="is not executable"):
        find_engine(plain)
    plain.chmod(0o755)
    with pytest.raises(EngineNotReadyError, match="not a llama-server that runs here"):
        inspect(find_engine(plain))
    with pytest.raises(EngineNotReadyError, match="does not exist"):
        find_engine(tmp_path / "absent")
    with pytest.raises(EngineNotReadyError, match="as a file or on PATH"):
        find_engine("no-such-engine-anywhere")


def test_an_engine_is_found_by_directory_and_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = engine_script(tmp_path / "e")
    assert find_engine(tmp_path / "e") == server
    monkeypatch.setenv("PATH", f"{tmp_path / 'e'}{os.pathsep}{os.environ['PATH']}")
    assert find_engine("llama-server") == server
    with pytest.raises(EngineNotReadyError, match="no llama-server in"):
        find_engine(tmp_path)


def test_backends_of_a_foreign_engine_are_what_its_files_hold(tmp_path: Path) -> None:
    assert inspect(engine_script(tmp_path / "plain")).backends == ("cpu",)
    static = engine_script(tmp_path / "static", more="# ggml_vulkan: Found %zu devices")
    assert inspect(static).backends == ("cpu", "vulkan")
    shared = engine_script(tmp_path / "shared")
    (tmp_path / "shared" / "libggml-hip.so").write_bytes(b"\0hipMalloc\0")
    assert inspect(shared).backends == ("cpu", "rocm")


def test_devices_that_cannot_be_listed_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = 'case "$1" in --list-devices) echo "driver says no" >&2; exit 1;; esac'
    engine = inspect(engine_script(tmp_path / "e", more=broken))
    with pytest.raises(EngineNotReadyError, match="could not list its devices") as caught:
        list_devices(engine, os.environ)
    assert "driver says no" in caught.value.details
    hanging = 'case "$1" in --list-devices) sleep 60;; esac'
    engine = inspect(engine_script(tmp_path / "h", more=hanging))
    monkeypatch.setattr(capabilities, "DEVICES_TIMEOUT_S", 0.2)
    with pytest.raises(EngineNotReadyError, match="did not end within"):
        list_devices(engine, os.environ)
