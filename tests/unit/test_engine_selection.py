"""Which engine is used, and the keys that decide it. Nothing is compiled here."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from llama_ai.engine import engines, toolchain
from llama_ai.engine.build import Built
from llama_ai.engine.events import OnProgress, Step, ignore
from llama_ai.engine.recipe import (
    BuildOptions,
    Recipe,
    check_backends,
    make_recipe,
    parse_backends,
)
from llama_ai.engine.toolchain import RocmSdk, Toolchain, VulkanSdk
from llama_ai.errors import EngineNotReadyError, UsageError

VULKAN = VulkanSdk(header_version="1.4.309", prefix=None, loader=None, glslc=Path("/usr/bin/glslc"))
FULL = Toolchain(
    compiler="c++ 12.2.0", ccache=None, vulkan=VULKAN, vulkan_missing=None, rocm=None, missing=()
)
NO_VULKAN = dataclasses.replace(FULL, vulkan=None, vulkan_missing="glslc is missing")
NO_COMPILER = dataclasses.replace(FULL, compiler=None, missing=("a working C++ compiler",))


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Recipe]:
    """An empty cache on a full Linux machine whose builds succeed at once; what was built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(engines, "detect", lambda: FULL)
    built: list[Recipe] = []

    def build(recipe: Recipe, *, jobs: int | None, on_progress: OnProgress) -> Built:
        options = recipe.options
        check_backends(options.backends, recipe.toolchain, options.gfx_targets)
        built.append(recipe)
        directory = tmp_path / "cache" / "llama-ai" / "engines" / recipe.key
        directory.mkdir(parents=True)
        info = json.dumps(recipe.build_info("2026-01-01T00:00:00+00:00"))
        (directory / "BUILD_INFO.json").write_text(info)
        server = directory / recipe.server_name
        server.write_text("#!/bin/sh\nprintf -- '--model M\\n--port P\\n--ctx-size N\\n'\n")
        server.chmod(0o755)
        return Built(directory=directory, steps=1)

    monkeypatch.setattr(engines, "build", build)
    return built


def use(monkeypatch: pytest.MonkeyPatch, tools: Toolchain) -> None:
    monkeypatch.setattr(engines, "detect", lambda: tools)


def test_the_first_call_builds_cpu_and_vulkan_and_the_second_finds_it(
    machine: list[Recipe],
) -> None:
    first = engines.ensure_engine()
    assert first.backends == ("cpu", "vulkan")
    assert engines.ensure_engine() == first
    assert engines.ensure_engine(backend="vulkan") == first
    assert engines.ensure_engine(backend="cpu") == first
    assert len(machine) == 1
    assert engines.installed_engines() == (first,)


def test_without_vulkan_tools_the_build_is_cpu_only_and_says_so(
    machine: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, NO_VULKAN)
    steps: list[Step] = []
    engine = engines.ensure_engine(on_progress=steps.append)
    assert engine.backends == ("cpu",)
    [note] = [step.text for step in steps if step.stage == "note"]
    assert "WITHOUT Vulkan: glslc is missing" in note
    info = json.loads((engine.directory / "BUILD_INFO.json").read_text())
    assert info["vulkan_missing"] == "glslc is missing"
    # The tools come: another engine, with Vulkan.
    use(monkeypatch, FULL)
    assert engines.ensure_engine().backends == ("cpu", "vulkan")
    # And go again: what was built with them is still there.
    use(monkeypatch, NO_VULKAN)
    assert engines.ensure_engine().backends == ("cpu", "vulkan")
    assert len(machine) == 2


def test_vulkan_that_was_asked_for_is_never_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, NO_VULKAN)
    with pytest.raises(EngineNotReadyError, match="Vulkan backend: glslc is missing"):
        engines.ensure_engine(backend="vulkan")


def test_an_engine_outlives_its_compiler(
    machine: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.ensure_engine()
    use(monkeypatch, NO_COMPILER)
    assert engines.ensure_engine() == engine
    assert len(machine) == 1


def test_a_new_compiler_makes_a_new_engine(
    machine: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.ensure_engine()
    use(monkeypatch, dataclasses.replace(FULL, compiler="c++ 15.1.0"))
    engines.ensure_engine()
    assert len({recipe.key for recipe in machine}) == 2
    assert len({recipe.basis for recipe in machine}) == 1


def test_ccache_and_the_place_of_headers_make_no_new_engine_but_flags_do(
    machine: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = engines.ensure_engine()
    moved = dataclasses.replace(VULKAN, prefix=Path("/opt/vulkan"))
    use(monkeypatch, dataclasses.replace(FULL, ccache=Path("/usr/bin/ccache"), vulkan=moved))
    assert engines.ensure_engine() == first
    use(monkeypatch, dataclasses.replace(FULL, flags=("CXXFLAGS=-O1",)))
    assert engines.ensure_engine().key != first.key


def test_a_cpu_only_build_serves_who_asks_for_the_cpu(machine: list[Recipe]) -> None:
    only = engines.build_engine(backends=("cpu",))
    assert only.backends == ("cpu",)
    assert engines.ensure_engine(backend="cpu") == only
    assert engines.ensure_engine().backends == ("cpu", "vulkan")


def test_rocm_needs_hipcc_and_a_target_and_comes_beside_the_usual_backends(
    machine: list[Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineNotReadyError, match="hipcc is missing"):
        engines.ensure_engine(backend="rocm", gfx="gfx1151")
    sdk = RocmSdk(prefix=Path("/opt/rocm"), hipcc=Path("/opt/rocm/bin/hipcc"))
    use(monkeypatch, dataclasses.replace(FULL, rocm=sdk))
    with pytest.raises(EngineNotReadyError, match="gfx target is not known"):
        engines.ensure_engine(backend="rocm")
    engine = engines.ensure_engine(backend="rocm", gfx="gfx1151")
    assert engine.backends == ("cpu", "vulkan", "rocm")
    assert machine[-1].definitions["AMDGPU_TARGETS"] == "gfx1151"
    assert machine[-1].definitions["LLAMA_AI_HIP"] == "ON"
    engines.ensure_engine(backend="rocm", gfx="gfx1103")
    assert len({recipe.key for recipe in machine}) == 2


def test_metal_is_for_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineNotReadyError, match="macOS only"):
        engines.ensure_engine(backend="metal")


def test_stock_and_patched_are_two_engines(machine: list[Recipe]) -> None:
    ours, stock = engines.ensure_engine(), engines.ensure_engine(stock=True)
    assert ours.directory != stock.directory
    assert (ours.stock, stock.stock) == (False, True)
    assert (stock.patches, stock.server.name) == ((), "llama-server")
    assert ours.server.name == "llama-ai-server"


def test_a_named_engine_must_have_the_backend(machine: list[Recipe]) -> None:
    built = engines.build_engine(backends=("cpu",))
    named = engines.ensure_engine(engine_path=built.directory)
    assert (named.key, named.patches) == (built.key, built.patches)
    with pytest.raises(EngineNotReadyError, match="has no vulkan backend"):
        engines.ensure_engine(engine_path=built.server, backend="vulkan")


def test_a_broken_engine_is_not_listed(machine: list[Recipe]) -> None:
    engine = engines.ensure_engine()
    engine.server.unlink()
    assert engines.installed_engines() == ()


@pytest.mark.parametrize(
    ("words", "backends"),
    [
        (None, ()),
        ("", ()),
        ("cpu", ("cpu",)),
        ("rocm, Vulkan", ("cpu", "vulkan", "rocm")),
    ],
)
def test_backend_words(words: str | None, backends: tuple[str, ...]) -> None:
    assert parse_backends(words) == backends


def test_an_unknown_backend_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no backend 'cuda'"):
        parse_backends("cpu,cuda")


# ------------------------------------------------------------------ keys


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the smallest native directory that a key is made from."""
    native = tmp_path / "native"
    (native / "src").mkdir(parents=True)
    (native / "tests").mkdir()
    (native / "patches").mkdir()
    (native / "patches" / "series").write_text("")
    (native / "CMakeLists.txt").write_text("project(x)\n")
    (native / "src" / "main.cpp").write_text("int main() {}\n")
    (native / "upstream.toml").write_text(
        '[upstream]\ncommit = "aa"\n[sdist]\npackage = "p"\nversion = "1"\n'
        f'filename = "p.tar.gz"\nsha256 = "{"0" * 64}"\ntree = "p"\n'
    )
    monkeypatch.setattr("llama_ai.engine.pin.native_dir", lambda: native)
    return native


def keys() -> tuple[str, str]:
    made = make_recipe(BuildOptions(backends=("cpu",)), FULL, ignore)
    return made.key, made.workspace


def test_a_changed_source_changes_the_key_and_not_the_build_directory(native: Path) -> None:
    before = keys()
    (native / "src" / "main.cpp").write_text("int main() { return 1; }\n")
    after = keys()
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_a_new_pin_changes_the_key(native: Path) -> None:
    before = keys()
    pin = native / "upstream.toml"
    pin.write_text(pin.read_text().replace("0" * 64, "1" * 64))
    assert keys()[0] != before[0]


def test_tests_and_comments_on_the_pin_rebuild_nobody_s_engine(native: Path) -> None:
    before = keys()
    (native / "tests" / "test.cpp").write_text("int main() {}\n")
    (native / "README.md").write_text("text\n")
    pin = native / "upstream.toml"
    pin.write_text("# a remark\n" + pin.read_text())
    assert keys() == before


def test_a_broken_pin_is_named(native: Path) -> None:
    (native / "upstream.toml").write_text("[sdist]\n")
    with pytest.raises(Exception, match=r"cannot read the pin .*upstream\.toml"):
        keys()


# ------------------------------------------------------------------ tools


HEADER = """\
// a comment
#define VK_HEADER_VERSION {patch}
#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, {minor}, VK_HEADER_VERSION)
"""


@pytest.mark.parametrize(
    ("minor", "patch", "enough"), [(3, 239, False), (3, 271, False), (3, 272, True), (4, 0, True)]
)
def test_vulkan_headers_are_compared_by_their_whole_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minor: int, patch: int, enough: bool
) -> None:
    core = tmp_path / "sdk" / "include" / "vulkan" / "vulkan_core.h"
    core.parent.mkdir(parents=True)
    core.write_text(HEADER.format(minor=minor, patch=patch))
    assert toolchain.header_version(core) == (1, minor, patch)
    spirv = tmp_path / "sdk" / "share" / "cmake" / "SPIRV-Headers"
    spirv.mkdir(parents=True)
    (spirv / "SPIRV-HeadersConfig.cmake").touch()
    glslc, loader = tmp_path / "glslc", tmp_path / "libvulkan.so.1"
    monkeypatch.setattr(toolchain, "_loader", lambda: loader)
    monkeypatch.setattr(toolchain, "_vulkan_prefixes", lambda env: [(tmp_path / "sdk", True)])
    sdk, why = toolchain._vulkan({}, glslc)
    if enough:
        assert sdk is not None
        assert sdk.cmake_definitions() == {
            "CMAKE_PREFIX_PATH": str(tmp_path / "sdk"),
            "Vulkan_INCLUDE_DIR": str(tmp_path / "sdk" / "include"),
            "Vulkan_LIBRARY": str(loader),
        }
    else:
        assert sdk is None
        assert why is not None
        assert f"1.{minor}.{patch}, needed is 1.3.272" in why


def test_a_file_that_is_no_vulkan_header_has_no_version(tmp_path: Path) -> None:
    (tmp_path / "x.h").write_text("int x;\n")
    assert toolchain.header_version(tmp_path / "x.h") is None
    assert toolchain.header_version(tmp_path / "absent.h") is None


def test_a_compiler_that_is_named_but_missing_is_missing(tmp_path: Path) -> None:
    found = toolchain.detect({"PATH": str(tmp_path), "CXX": "no-such-c++"})
    assert "a working C++ compiler" in found.missing
    assert "cmake" in found.missing
    with pytest.raises(EngineNotReadyError, match="cmake, ninja"):
        found.require()
