"""Building, publishing, locking and interrupting, with real cmake, ninja and compiler on a small
project."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llama_ai.engine import build as build_module
from llama_ai.engine import pin as pin_module
from llama_ai.engine.build import build, build_targets, clean, published
from llama_ai.engine.events import Step, ignore
from llama_ai.errors import EngineNotReadyError
from tests.support import tiny_engine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CCACHE_DISABLE", "1")
    # Put back what tiny_engine.recipe() replaces.
    monkeypatch.setattr(pin_module, "native_dir", pin_module.native_dir)
    return tiny_engine.make(tmp_path / "project")


def start(place: Path) -> subprocess.Popen[str]:
    """The same build in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.tiny_engine", str(place)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def log(place: Path) -> str:
    [path] = (place.parent / "cache" / "llama-ai" / "builds").glob("*/build.log")
    return path.read_text()


def test_a_build_is_published_with_what_it_is_made_of(place: Path) -> None:
    steps: list[Step] = []
    built = tiny_engine.run(place, steps.append)
    assert built.steps > 0
    assert subprocess.run([built.directory / "llama-ai-server"], check=False).returncode == 0
    info = json.loads((built.directory / "BUILD_INFO.json").read_text())
    assert info["key"] == built.directory.name
    assert (info["backends"], info["stock"], info["source"]) == (["cpu"], False, "directory")
    assert info["compiler"]
    compiled = [step for step in steps if step.stage == "compile"]
    assert compiled[-1].done == compiled[-1].total == built.steps
    assert {step.stage for step in steps} >= {"unpack", "configure", "compile"}


def test_nothing_changed_means_nothing_done(place: Path) -> None:
    first = tiny_engine.run(place, ignore)
    steps: list[Step] = []
    second = tiny_engine.run(place, steps.append)
    assert (second.directory, second.steps) == (first.directory, 0)
    assert [step for step in steps if step.stage != "unpack"] == []


def test_a_changed_source_rebuilds_only_itself(place: Path) -> None:
    first = tiny_engine.run(place, ignore)
    (place / "native/src/probe.cpp").write_text("int main() { return 3; }\n")
    second = tiny_engine.run(place, ignore)
    assert second.directory != first.directory
    compiled = [line for line in log(place).splitlines() if "Building CXX" in line]
    assert len(compiled) == 1
    assert "probe.cpp" in compiled[0]
    assert subprocess.run([second.directory / "memory_probe"], check=False).returncode == 3
    assert subprocess.run([first.directory / "memory_probe"], check=False).returncode == 0


def test_a_changed_upstream_file_rebuilds_only_itself(place: Path) -> None:
    tiny_engine.run(place, ignore)
    (place / "upstream/tools/server/server.cpp").write_text("int serve() { return 4; }\n")
    second = tiny_engine.run(place, ignore)
    compiled = [line for line in log(place).splitlines() if "Building CXX" in line]
    assert len(compiled) == 1
    assert subprocess.run([second.directory / "llama-ai-server"], check=False).returncode == 4


def test_a_source_saved_during_the_build_is_in_the_engine_that_its_key_names(place: Path) -> None:
    changed = False

    def edit(step: Step) -> None:
        nonlocal changed
        if step.stage == "compile" and not changed:
            changed = True
            (place / "native/src/probe.cpp").write_text("int main() { return 5; }\n")

    built = tiny_engine.run(place, edit)
    assert built.directory.name == tiny_engine.recipe(place, ignore).key
    assert subprocess.run([built.directory / "memory_probe"], check=False).returncode == 5


def test_a_compile_error_shows_the_compiler_s_words_and_the_log(place: Path) -> None:
    (place / "native/src/main.cpp").write_text("int main() { return nonsense; }\n")
    with pytest.raises(EngineNotReadyError, match="building the engine failed") as caught:
        tiny_engine.run(place, ignore)
    assert any("nonsense" in line and "error" in line for line in caught.value.details)
    hint = caught.value.hint or ""
    assert "nonsense" in Path(hint.removeprefix("the whole log: ")).read_text()
    assert not list((place.parent / "cache/llama-ai/engines").glob("*"))
    # And it can be mended.
    (place / "native/src/main.cpp").write_text(tiny_engine.FILES["native/src/main.cpp"])
    assert tiny_engine.run(place, ignore).directory.is_dir()


def test_a_configure_error_says_so(place: Path) -> None:
    (place / "native/CMakeLists.txt").write_text("this is not cmake\n")
    with pytest.raises(EngineNotReadyError, match="could not configure") as caught:
        tiny_engine.run(place, ignore)
    assert caught.value.details


def test_two_builds_at_once_make_one_engine(place: Path) -> None:
    processes = [start(place) for _ in range(2)]
    said = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    engines = {text.splitlines()[-1].split()[2] for text in said}
    assert len(engines) == 1
    compiled = [text for text in said if "compile" in text]
    waited = [text for text in said if "another build is running (pid" in text]
    assert len(compiled) == 1
    assert len(waited) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_build_ends_its_compilers_and_goes_on_later(
    place: Path, number: signal.Signals
) -> None:
    # A "compiler" that hangs, in the place of ccache, while a file of this name exists.
    hang = place / "hang"
    hang.touch()
    tools = place / "tools"
    tools.mkdir()
    (tools / "ccache").write_text(
        f'#!/bin/sh\nif [ -e {hang} ]; then echo $$ >>{place}/hung; sleep 600; fi\nexec "$@"\n'
    )
    (tools / "ccache").chmod(0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{tools}{os.pathsep}{path}"
    try:
        process = start(place)
        assert process.stdout is not None
        while "compile" not in process.stdout.readline() and not (place / "hung").exists():
            assert process.poll() is None
        while not (place / "hung").exists():
            assert process.poll() is None
        process.send_signal(number)
        process.communicate(timeout=30)
        assert process.returncode != 0
        deadline = time.monotonic() + 10
        while any(alive(int(pid)) for pid in (place / "hung").read_text().split()):
            assert time.monotonic() < deadline, "a compiler outlived the build"
            time.sleep(0.05)
        hang.unlink()
        assert tiny_engine.run(place, ignore).directory.is_dir()
    finally:
        os.environ["PATH"] = path


def test_missing_tools_are_named_before_anything_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(place))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(EngineNotReadyError) as caught:
        tiny_engine.run(place, ignore)
    assert caught.value.exit_code == 5
    for word in ("cmake", "ninja", "a C compiler", "a working C++ compiler"):
        assert word in caught.value.message
    assert "install-deps" in (caught.value.hint or "")
    assert not (place.parent / "cache/llama-ai/builds").exists()


def test_too_little_space_is_said_before_anything_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "NEEDED_FREE_BYTES", 1 << 60)
    with pytest.raises(EngineNotReadyError, match="are free"):
        tiny_engine.run(place, ignore)


def test_further_targets_are_built_in_the_same_place(place: Path) -> None:
    built = tiny_engine.run(place, ignore)
    assert not (built.directory / "test-extra").exists()
    recipe = tiny_engine.recipe(place, ignore)
    workspace = build_targets(recipe, ["test-extra"], jobs=1, on_progress=ignore)
    assert (workspace / "bin" / "test-extra").is_file()


def test_clean_removes_builds_and_engines_and_keeps_sources_unless_asked(place: Path) -> None:
    recipe = tiny_engine.recipe(place, ignore)
    build(recipe, jobs=1, on_progress=ignore)
    cache = place.parent / "cache" / "llama-ai"
    assert clean(sources=False, on_progress=ignore) == [cache / "builds", cache / "engines"]
    assert published(recipe.key) is None
    assert (cache / "src").is_dir()
    assert clean(sources=True, on_progress=ignore) == [cache / "src"]


def test_old_builds_and_engines_are_pruned(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "KEPT_ENGINES", 2)
    directories = []
    for number in range(4):
        (place / "native/src/probe.cpp").write_text(f"int main() {{ return {number}; }}\n")
        directories.append(tiny_engine.run(place, ignore).directory)
    assert [path.is_dir() for path in directories] == [False, False, True, True]
