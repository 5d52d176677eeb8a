"""What a build is made of, and the keys that name it.

``key`` names a finished engine: same key, same binaries. ``basis`` is what of it does not depend
on the compiler and the backends, so that a machine whose compiler was removed still finds the
engine that it built. ``workspace`` names the build directory: it leaves the *content* of the
sources out, so that a changed source rebuilds only itself.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import __version__
from llama_ai.engine import pin as pin_module
from llama_ai.engine.patches import read_series, series_hash
from llama_ai.engine.pin import native_digest, read_pin
from llama_ai.engine.source import DirectorySource, PinnedSource, local_commit, local_source
from llama_ai.engine.toolchain import Toolchain, install_hint
from llama_ai.errors import EngineNotReadyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from llama_ai.engine.events import OnProgress
    from llama_ai.engine.patches import Patch

BACKENDS = ("cpu", "vulkan", "rocm", "metal")
RECIPE_FORMAT = 1  # raise it when the way of building changes in a way that no input shows

# Instruction sets that a native build may use; the kernel's other flags come and go with updates.
_ISA_PREFIXES = ("sse", "ssse", "avx", "fma", "f16c", "bmi", "amx", "gfni", "vaes", "vpclmul")


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What the user asked for."""

    backends: tuple[str, ...]
    """In the order of :data:`BACKENDS`; always with ``cpu``."""
    gfx_targets: tuple[str, ...] = ()
    """GPU targets of a ROCm build (``gfx1151``)."""
    stock: bool = False
    source: Path | None = None
    """A llama.cpp tree to build instead of the pin."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a build, gathered before it starts."""

    options: BuildOptions
    toolchain: Toolchain
    native: Path
    patches: tuple[Patch, ...]
    origin: PinnedSource | DirectorySource
    commit: str | None

    @cached_property
    def basis(self) -> str:
        """Names what the engine is made from, whatever the compiler and the backends."""
        return _hash(
            RECIPE_FORMAT,
            self.origin.identity,
            series_hash(self.patches),
            self.native_sha256,
            self.options.stock,
            _cpu_signature(),
        )

    @cached_property
    def native_sha256(self) -> str:
        """Our own sources as they were when first asked."""
        return native_digest(self.native)

    def still_true(self) -> bool:
        """Whether our own sources are what the key says; an editor may save during a build."""
        return native_digest(self.native) == self.native_sha256

    @cached_property
    def key(self) -> str:
        """Names the finished engine."""
        return _hash(self.basis, self._tools, sorted(self.product_definitions.items()))

    @cached_property
    def workspace(self) -> str:
        """Names the build directory."""
        place = [str(self.native), self.origin.directory_name, _cpu_signature()]
        return _hash(self._tools, self.options.stock, place)

    @property
    def _tools(self) -> list[object]:
        vulkan = self.toolchain.vulkan if "vulkan" in self.options.backends else None
        tools: list[object] = [
            self.options.backends,
            self.options.gfx_targets,
            self.toolchain.compiler,
            vulkan.header_version if vulkan else None,
        ]
        return [*tools, *self.toolchain.flags]

    @property
    def server_name(self) -> str:
        """The server's file name."""
        return "llama-server" if self.options.stock else "llama-ai-server"

    @property
    def targets(self) -> tuple[str, ...]:
        """ninja's targets: everything that an engine has, without our native tests."""
        return (self.server_name, "engine-tools", "memory_probe")

    @property
    def definitions(self) -> dict[str, str]:
        """cmake's ``-D`` words, apart from the source's place. See ``native/README.md``."""
        options, toolchain = self.options, self.toolchain
        words = {
            "CMAKE_BUILD_TYPE": "Release",
            "LLAMA_AI_UPSTREAM_COMMIT": self.commit or "unknown",
            "LLAMA_AI_STOCK": _switch(options.stock),
            "LLAMA_AI_VULKAN": _switch("vulkan" in options.backends),
            "LLAMA_AI_HIP": _switch("rocm" in options.backends),
            "LLAMA_AI_METAL": _switch("metal" in options.backends),
        }
        if toolchain.ccache is not None:
            words["CMAKE_C_COMPILER_LAUNCHER"] = "ccache"
            words["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
        parts: list[dict[str, str]] = []
        if "vulkan" in options.backends and toolchain.vulkan is not None:
            parts.append(toolchain.vulkan.cmake_definitions())
        if "rocm" in options.backends and toolchain.rocm is not None:
            parts.append(toolchain.rocm.cmake_definitions())
            words["AMDGPU_TARGETS"] = ";".join(options.gfx_targets)
        for part in parts:
            for name, value in part.items():
                words[name] = f"{words[name]};{value}" if name in words else value
        return words

    @property
    def product_definitions(self) -> dict[str, str]:
        """Those that change the result, and not only where and how fast it is made."""
        return {
            name: value
            for name, value in self.definitions.items()
            if name.startswith(("LLAMA_AI_", "AMDGPU_")) or name == "CMAKE_BUILD_TYPE"
        }

    def build_info(self, date: str) -> dict[str, object]:
        """The content of ``BUILD_INFO.json``. Served to clients: no path of this machine."""
        return {
            "schema": "llama-ai.build-info/1",
            "key": self.key,
            "basis": self.basis,
            "llama_ai_version": __version__,
            "upstream_commit": self.commit,
            "source": "pin" if isinstance(self.origin, PinnedSource) else "directory",
            "source_sha256": self.origin.identity,
            "stock": self.options.stock,
            "patches": [{"name": patch.name, "sha256": patch.sha256} for patch in self.patches],
            "compiler": self.toolchain.compiler,
            "compiler_flags": list(self.toolchain.flags),
            "options": self.product_definitions,
            "backends": list(self.options.backends),
            "gfx_targets": list(self.options.gfx_targets),
            "vulkan_missing": None
            if "vulkan" in self.options.backends
            else self.toolchain.vulkan_missing,
            "date": date,
        }


def make_recipe(options: BuildOptions, toolchain: Toolchain, on_progress: OnProgress) -> Recipe:
    """Gather what a build with ``options`` consists of. Reads small files only, unless
    ``options.source`` names a tree, which is hashed."""
    native = pin_module.native_dir()
    pin = read_pin(native)
    origin: PinnedSource | DirectorySource
    if options.source is None:
        origin = PinnedSource(pin=pin, on_progress=on_progress)
        commit: str | None = pin.commit
    else:
        origin = local_source(options.source, on_progress)
        commit = local_commit(options.source)
    return Recipe(
        options=options,
        toolchain=toolchain,
        native=native,
        patches=() if options.stock else read_series(native),
        origin=origin,
        commit=commit,
    )


def parse_backends(words: str | None) -> tuple[str, ...]:
    """``cpu,vulkan`` -> backends in our order, ``cpu`` always among them; nothing -> ``()``.

    Raises :class:`~llama_ai.errors.UsageError` for a word that is no backend.
    """
    names = [word.strip().lower() for word in (words or "").split(",") if word.strip()]
    for name in names:
        if name not in BACKENDS:
            raise UsageError(
                f"there is no backend {name!r}", hint="one or more of " + ", ".join(BACKENDS)
            )
    return canonical({"cpu", *names}) if names else ()


def canonical(names: Iterable[str]) -> tuple[str, ...]:
    """The same backends in the order of :data:`BACKENDS`."""
    wanted = set(names)
    return tuple(name for name in BACKENDS if name in wanted)


def default_backends() -> tuple[str, ...]:
    """What one build holds unless told otherwise."""
    return ("cpu", "metal") if sys.platform == "darwin" else ("cpu", "vulkan")


def check_backends(
    backends: Sequence[str], toolchain: Toolchain, gfx_targets: Sequence[str]
) -> None:
    """Raise :class:`~llama_ai.errors.EngineNotReadyError` for a backend that cannot be built."""
    if "vulkan" in backends and toolchain.vulkan is None:
        raise EngineNotReadyError(
            f"cannot build the Vulkan backend: {toolchain.vulkan_missing}", hint=install_hint()
        )
    if "metal" in backends and sys.platform != "darwin":
        raise EngineNotReadyError("the Metal backend exists on macOS only")
    if "rocm" in backends:
        if toolchain.rocm is None:
            raise EngineNotReadyError(
                "cannot build the ROCm backend: hipcc is missing",
                hint="install ROCm's HIP SDK (its default place is /opt/rocm; else set ROCM_PATH)",
            )
        if not gfx_targets:
            raise EngineNotReadyError(
                "cannot build the ROCm backend: the GPU's gfx target is not known",
                hint="name it, for example --gfx gfx1151",
            )


def _cpu_signature() -> str:
    """The CPU as the compiler's ``-march=native`` sees it: model and instruction sets."""
    words: dict[str, str] = {}
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                name, colon, value = line.partition(":")
                if not colon:
                    if words:
                        break  # one CPU is enough
                    continue
                words[name.strip().lower()] = value.strip()
    except OSError:
        return platform.processor() or platform.machine()
    flags = words.get("flags") or words.get("features", "")
    known = sorted(flag for flag in flags.split() if flag.startswith(_ISA_PREFIXES))
    if "features" in words:
        known = sorted(flags.split())
    model = [
        words.get(name, "")
        for name in (
            "vendor_id",
            "cpu family",
            "model",
            "model name",
            "cpu implementer",
            "cpu part",
        )
    ]
    return json.dumps([platform.machine(), model, known])


def _switch(on: bool) -> str:
    return "ON" if on else "OFF"


def _hash(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
