"""A native project of three small files with the engine's cmake interface (native/README.md).

It goes through the real fetch-free path (``--source``), cmake, ninja and publishing in seconds.
``python tiny_engine.py PLACE`` builds it in a process of its own and prints what happened.
"""

from __future__ import annotations

import sys
from pathlib import Path

from llama_ai.engine import pin as pin_module
from llama_ai.engine.build import Built, build
from llama_ai.engine.events import OnProgress, Step
from llama_ai.engine.recipe import BuildOptions, Recipe, make_recipe
from llama_ai.engine.toolchain import detect

CMAKE = """\
cmake_minimum_required(VERSION 3.21)
project(tiny LANGUAGES C CXX)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
if(NOT EXISTS "${LLAMA_AI_UPSTREAM}/tools/server/server.cpp")
    message(FATAL_ERROR "no upstream")
endif()
add_executable(llama-ai-server src/main.cpp "${LLAMA_AI_UPSTREAM}/tools/server/server.cpp")
add_executable(memory_probe src/probe.cpp)
add_executable(test-extra src/probe.cpp)
add_custom_target(engine-tools ALL)
"""

UPSTREAM_TOML = """\
[upstream]
commit = "0123456789012345678901234567890123456789"
[sdist]
package = "tiny"
version = "1"
filename = "tiny.tar.gz"
sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
tree = "tiny"
"""

FILES = {
    "native/CMakeLists.txt": CMAKE,
    "native/upstream.toml": UPSTREAM_TOML,
    "native/patches/series": "",
    "native/src/main.cpp": "int serve();\nint main() { return serve(); }\n",
    "native/src/probe.cpp": "int main() { return 0; }\n",
    "upstream/tools/server/server.cpp": "int serve() { return 0; }\n",
}


def make(place: Path) -> Path:
    """Write the project below ``place``."""
    for name, text in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def recipe(place: Path, on_progress: OnProgress) -> Recipe:
    """The recipe of the project in ``place``."""
    pin_module.native_dir = lambda: place / "native"
    options = BuildOptions(backends=("cpu",), source=place / "upstream")
    return make_recipe(options, detect(), on_progress)


def run(place: Path, on_progress: OnProgress) -> Built:
    """Build it."""
    return build(recipe(place, on_progress), jobs=2, on_progress=on_progress)


def _main() -> None:
    def show(step: Step) -> None:
        print(step.stage, step.text, flush=True)

    built = run(Path(sys.argv[1]), show)
    print("built", built.steps, built.directory)


if __name__ == "__main__":
    _main()
