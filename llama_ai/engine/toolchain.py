"""What this machine can build with: compiler, cmake, ninja, and the SDKs of the backends.

Looking is cheap (a few file tests and one ``c++ --version``), because it decides the cache key
and therefore runs at each start.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.errors import EngineNotReadyError, LlamaAiError
from llama_ai.run import run

if TYPE_CHECKING:
    from collections.abc import Mapping

# ggml-vulkan.cpp uses VK_EXT_layer_settings, which came with this header version.
MIN_VULKAN_HEADER = (1, 3, 272)
MIN_CMAKE = (3, 21)

_FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS", "LDFLAGS", "HIPFLAGS")
_HEADER_VERSION = re.compile(rb"^#define VK_HEADER_VERSION (\d+)", re.MULTILINE)
_HEADER_COMPLETE = re.compile(
    rb"^#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(\d+, (\d+), (\d+),", re.MULTILINE
)


@dataclass(frozen=True, kw_only=True)
class VulkanSdk:
    """Headers that are new enough, the loader library, and the shader compiler."""

    header_version: str
    prefix: Path | None
    """A prefix outside the compiler's own search path, or ``None``."""
    loader: Path | None
    """The loader library, named to cmake when the headers come from a private prefix."""
    glslc: Path

    def cmake_definitions(self) -> dict[str, str]:
        """What cmake cannot find by itself."""
        if self.prefix is None:
            return {}
        found = {
            "CMAKE_PREFIX_PATH": str(self.prefix),
            "Vulkan_INCLUDE_DIR": str(self.prefix / "include"),
        }
        if self.loader is not None:
            found["Vulkan_LIBRARY"] = str(self.loader)
        return found


@dataclass(frozen=True, kw_only=True)
class RocmSdk:
    """ROCm's HIP compiler."""

    prefix: Path
    hipcc: Path

    def cmake_definitions(self) -> dict[str, str]:
        """Where its cmake packages and its compiler are."""
        found = {"CMAKE_PREFIX_PATH": str(self.prefix)}
        clang = self.prefix / "llvm" / "bin" / "clang++"
        if clang.exists():
            found["CMAKE_HIP_COMPILER"] = str(clang)
        return found


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """Everything found; ``missing`` says in words what a build lacks (empty: it can build)."""

    compiler: str | None
    """First line of ``c++ --version``."""
    ccache: Path | None
    vulkan: VulkanSdk | None
    vulkan_missing: str | None
    """Why there is no Vulkan, in words; ``None`` when there is."""
    rocm: RocmSdk | None
    flags: tuple[str, ...] = ()
    """What ``CFLAGS`` and its like add (``CFLAGS=-O2``)."""
    missing: tuple[str, ...] = ()

    def require(self) -> None:
        """Raise :class:`~llama_ai.errors.EngineNotReadyError` naming what a build lacks."""
        if self.missing:
            raise EngineNotReadyError(
                f"cannot build the engine: {', '.join(self.missing)} missing", hint=install_hint()
            )
        text = run(["cmake", "--version"], timeout_s=20).output
        found = re.search(r"version (\d+)\.(\d+)", text)
        if found and (int(found[1]), int(found[2])) < MIN_CMAKE:
            raise EngineNotReadyError(
                f"cmake {found[1]}.{found[2]} is too old, the engine needs "
                f"{MIN_CMAKE[0]}.{MIN_CMAKE[1]}",
                hint=install_hint(),
            )


def detect(environ: Mapping[str, str] | None = None) -> Toolchain:
    """Look at ``environ`` (default: the process's) and the usual places."""
    env = os.environ if environ is None else environ
    search = env.get("PATH", os.defpath)

    def which(name: str) -> Path | None:
        found = shutil.which(name, path=search)
        return Path(found) if found else None

    missing = [name for name in ("cmake", "ninja") if which(name) is None]
    if not _compiler_words(env, "CC", ("cc", "gcc", "clang"), search):
        missing.append("a C compiler")
    compiler = None
    if words := _compiler_words(env, "CXX", ("c++", "g++", "clang++"), search):
        try:
            lines = run([*words, "--version"], timeout_s=20).output.splitlines()
            compiler = lines[0].strip() if lines else None
        except LlamaAiError:
            compiler = None
    if compiler is None:
        missing.append("a working C++ compiler")
    vulkan, vulkan_missing = _vulkan(env, which("glslc"))
    return Toolchain(
        compiler=compiler,
        ccache=which("ccache"),
        vulkan=vulkan,
        vulkan_missing=vulkan_missing,
        rocm=_rocm(env, which("hipcc")),
        flags=tuple(f"{name}={env[name]}" for name in _FLAG_VARIABLES if env.get(name)),
        missing=tuple(missing),
    )


def install_hint() -> str:
    """What to do about a missing tool."""
    return f"run {paths.asset('scripts/install-deps')}"


def private_vulkan_prefix() -> Path:
    """Where ``scripts/install-deps`` puts headers that the distribution has too old."""
    return paths.cache_dir() / "vulkan-headers" / "usr"


def _compiler_words(
    env: Mapping[str, str], variable: str, names: tuple[str, ...], search: str
) -> list[str]:
    if words := shlex.split(env.get(variable, "")):
        return words if shutil.which(words[0], path=search) else []
    return next(([found] for name in names if (found := shutil.which(name, path=search))), [])


def _vulkan(env: Mapping[str, str], glslc: Path | None) -> tuple[VulkanSdk | None, str | None]:
    if glslc is None:
        return None, "glslc (the shader compiler) is missing"
    loader = _loader()
    if loader is None:
        return None, "the Vulkan loader (libvulkan) is missing"
    reasons: list[str] = []
    for prefix, private in _vulkan_prefixes(env):
        version = header_version(prefix / "include" / "vulkan" / "vulkan_core.h")
        if version is None:
            continue
        shown = ".".join(map(str, version))
        if version < MIN_VULKAN_HEADER:
            wanted = ".".join(map(str, MIN_VULKAN_HEADER))
            reasons.append(f"the Vulkan headers in {prefix} are {shown}, needed is {wanted}")
        elif not _has_spirv_headers(prefix):
            reasons.append("SPIRV-Headers are missing")
        else:
            return (
                VulkanSdk(
                    header_version=shown,
                    prefix=prefix if private else None,
                    loader=loader if private else None,
                    glslc=glslc,
                ),
                None,
            )
    return None, reasons[0] if reasons else "the Vulkan headers are missing"


def _vulkan_prefixes(env: Mapping[str, str]) -> list[tuple[Path, bool]]:
    prefixes: list[tuple[Path, bool]] = []
    if sdk := env.get("VULKAN_SDK"):
        prefixes.append((Path(sdk), True))
    prefixes += [(Path("/usr"), False), (Path("/usr/local"), False)]
    prefixes.append((private_vulkan_prefix(), True))
    return prefixes


def _has_spirv_headers(prefix: Path) -> bool:
    folders = (
        base / part / "cmake" / "SPIRV-Headers"
        for base in (prefix, Path("/usr"), Path("/usr/local"))
        for part in ("share", "lib", "lib64")
    )
    return any((folder / "SPIRV-HeadersConfig.cmake").is_file() for folder in folders)


def header_version(header: Path) -> tuple[int, int, int] | None:
    """Version of a ``vulkan_core.h`` (1, 3, 239); ``None`` when it is absent or says nothing."""
    try:
        with header.open("rb") as stream:
            text = stream.read(64 << 10)  # the macros stand near the top of a 1 MB file
    except OSError:
        return None
    patch, complete = _HEADER_VERSION.search(text), _HEADER_COMPLETE.search(text)
    if patch is None or complete is None:
        return None
    return int(complete[1]), int(complete[2]), int(patch[1])


def _loader() -> Path | None:
    suffix = "libvulkan.dylib" if sys.platform == "darwin" else "libvulkan.so.1"
    multiarch = sysconfig.get_config_var("MULTIARCH") or f"{os.uname().machine}-linux-gnu"
    folders = [f"/usr/lib/{multiarch}", f"/lib/{multiarch}", "/usr/lib64", "/lib64", "/usr/lib"]
    folders += ["/lib", "/usr/local/lib", "/opt/homebrew/lib"]
    found = (Path(folder) / suffix for folder in folders)
    return next((path for path in found if path.exists()), None)


def _rocm(env: Mapping[str, str], hipcc: Path | None) -> RocmSdk | None:
    for prefix in (env.get("ROCM_PATH"), env.get("HIP_PATH"), "/opt/rocm"):
        if prefix and (Path(prefix) / "bin" / "hipcc").is_file():
            return RocmSdk(prefix=Path(prefix), hipcc=Path(prefix) / "bin" / "hipcc")
    if hipcc is None:
        return None
    return RocmSdk(prefix=hipcc.resolve().parent.parent, hipcc=hipcc)
