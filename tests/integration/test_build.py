"""The real engine: what ``build`` makes, what ``backends`` tells, and what goes wrong and how."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from llama_ai.engine.build import build_targets, builds_dir
from llama_ai.engine.capabilities import EngineInfo, inspect, list_devices
from llama_ai.engine.engines import default_recipe, ensure_engine
from llama_ai.engine.events import Step, ignore
from llama_ai.engine.probe import measure
from solver.types import Layout
from tests.support.cli import llama_ai, private_env

pytestmark = pytest.mark.engine

PROGRAMS = ("llama-ai-server", "llama-bench", "llama-fit-params", "ggml-rpc-server", "memory_probe")


def test_the_engine_is_complete_and_runs_from_where_it_is(engine: EngineInfo) -> None:
    for name in PROGRAMS:
        assert os.access(engine.directory / name, os.X_OK), name
    assert not list(engine.directory.glob("test-*"))
    assert {"--model", "--ctx-size", "--fit", "--cache-ram", "--load-mode"} <= engine.flags
    assert engine.version
    assert engine.upstream_commit
    assert {"memory-probe", "bench", "rpc-server", "metrics"} <= set(engine.capabilities)
    assert not engine.stock
    assert "cpu" in engine.backends


def test_the_server_prints_what_it_was_built_from(engine: EngineInfo) -> None:
    words = [str(engine.server), "--build-info"]
    printed = subprocess.run(words, capture_output=True, check=True, text=True).stdout
    info = json.loads(printed)
    assert info == json.loads((engine.directory / "BUILD_INFO.json").read_text())
    assert info["key"] == engine.key
    assert tuple(patch["name"] for patch in info["patches"]) == engine.patches
    assert all(len(patch["sha256"]) == 64 for patch in info["patches"])
    assert str(engine.directory) not in printed


def test_an_engine_that_is_there_is_used_without_a_word(engine: EngineInfo) -> None:
    log = builds_dir() / default_recipe().workspace / "build.log"
    before = log.stat().st_mtime_ns if log.exists() else None
    steps: list[Step] = []
    assert ensure_engine(on_progress=steps.append) == engine
    assert steps == []
    assert before == (log.stat().st_mtime_ns if log.exists() else None)


def test_a_touched_source_is_all_that_is_compiled_again(engine: EngineInfo) -> None:
    recipe = default_recipe()
    # Finish whatever else is due in the build directory first.
    build_targets(recipe, recipe.targets, jobs=None, on_progress=ignore)
    os.utime(recipe.native / "src" / "main.cpp")
    workspace = build_targets(recipe, recipe.targets, jobs=None, on_progress=ignore)
    lines = (workspace / "build.log").read_text().splitlines()
    compiled = [line for line in lines if "Building C" in line]
    assert len(compiled) == 1
    assert "main.cpp" in compiled[0]


def test_the_engine_works_as_an_external_one_too(engine: EngineInfo) -> None:
    assert inspect(engine.server) == engine
    assert ensure_engine(engine_path=engine.directory) == engine


@pytest.mark.vulkan
def test_mesa_s_software_device_is_listed_when_it_is_asked_for(vulkan_engine: EngineInfo) -> None:
    env = {**os.environ, "GGML_VK_VISIBLE_DEVICES": "0"}
    device = list_devices(vulkan_engine, env)[0]
    assert device.name == "Vulkan0"
    assert device.total_bytes is not None
    assert device.total_bytes > 0


def test_the_probe_measures_a_real_model(engine: EngineInfo, demo_model: Path) -> None:
    small, large = Layout(ctx_size=1024), Layout(ctx_size=4096)
    measured = measure(engine, demo_model, [small, large], device=None, env=os.environ)
    assert measured is not None
    sizes = []
    for answer in measured:
        assert answer.error is None
        assert answer.host is not None
        sizes.append(answer.host.context_bytes)
        # Q4_1 of 135 million parameters.
        assert 80 << 20 < answer.host.model_bytes < 200 << 20
    # 30 layers x (K + V) x 3 heads x 64 values x 2 bytes a token.
    assert sizes == [1024 * 30 * 2 * 3 * 64 * 2, 4096 * 30 * 2 * 3 * 64 * 2]


# ------------------------------------------------------------------ the commands


def test_backends_json_is_the_contract(engine: EngineInfo) -> None:
    done = llama_ai("backends", "--json", env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "llama-ai.backends/1"
    [row] = [row for row in document["engines"] if row["key"] == engine.key]
    assert list(row) == [
        "key",
        "dir",
        "server",
        "version",
        "upstream_commit",
        "patches",
        "backends",
        "devices",
        "capabilities",
        "stock",
    ]
    assert Path(row["dir"]) / "llama-ai-server" == Path(row["server"])
    for device in row["devices"]:
        assert list(device) == ["name", "description", "total_bytes", "free_bytes"]


def test_backends_without_any_engine_says_what_to_do(tmp_path: Path) -> None:
    env = private_env(tmp_path)
    assert "run `llama-ai build`" in llama_ai("backends", env=env).stdout
    assert json.loads(llama_ai("backends", "--json", env=env).stdout)["engines"] == []


def test_build_says_where_the_engine_is(engine: EngineInfo) -> None:
    done = llama_ai("build", env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert str(engine.server) in done.stdout


def test_without_a_network_the_way_out_is_told(tmp_path: Path) -> None:
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null"}
    done = llama_ai("build", "--backend", "cpu", env=private_env(tmp_path, **nowhere))
    assert done.returncode == 5
    assert "cannot fetch the engine's source" in done.stderr
    assert "llama-ai build --source DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_compiler_nothing_is_started(tmp_path: Path) -> None:
    env = private_env(tmp_path, PATH=str(tmp_path))
    env.pop("CC", None)
    env.pop("CXX", None)
    done = llama_ai("build", env=env)
    assert done.returncode == 5
    assert "C++ compiler" in done.stderr
    assert "install-deps" in done.stderr
    assert not (tmp_path / "cache" / "llama-ai" / "builds").exists()


def test_a_tree_that_the_patches_do_not_fit_is_told_by_the_patch(
    tmp_path: Path, engine: EngineInfo
) -> None:
    server = tmp_path / "tree" / "tools" / "server" / "server.cpp"
    server.parent.mkdir(parents=True)
    server.write_text("int main() {}\n")
    tree = str(tmp_path / "tree")
    done = llama_ai("build", "--source", tree, "--backend", "cpu", env=private_env(tmp_path))
    assert done.returncode == 5
    assert engine.patches[0] in done.stderr
    assert server.read_text() == "int main() {}\n"
    done = llama_ai("build", "--source", str(tmp_path), env=private_env(tmp_path))
    assert done.returncode == 5
    assert "not a llama.cpp source tree" in done.stderr


def test_wrong_words_are_usage_errors(tmp_path: Path) -> None:
    env = private_env(tmp_path)
    assert llama_ai("build", "--backend", "cuda", env=env).returncode == 2
    assert llama_ai("build", "--clean", "--stock", env=env).returncode == 2
    assert llama_ai("build", "--all", env=env).returncode == 2
    assert llama_ai("build", "--jobs", "0", env=env).returncode == 2


def test_clean_with_nothing_there_is_no_error(tmp_path: Path) -> None:
    done = llama_ai("build", "--clean", env=private_env(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "nothing to remove" in done.stdout
