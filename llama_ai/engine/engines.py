"""Which engine to use: the user's own, one that is built, or one that has to be built now."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.engine import events
from llama_ai.engine.build import build, published
from llama_ai.engine.capabilities import EngineInfo, find_engine, inspect, read_build_info
from llama_ai.engine.recipe import (
    BuildOptions,
    Recipe,
    canonical,
    default_backends,
    make_recipe,
    parse_backends,
)
from llama_ai.engine.toolchain import Toolchain, detect, install_hint
from llama_ai.errors import EngineNotReadyError, LlamaAiError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from llama_ai.engine.events import OnProgress


def ensure_engine(
    *,
    backend: str | None = None,
    engine_path: str | os.PathLike[str] | None = None,
    source: Path | None = None,
    stock: bool = False,
    gfx: str | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = events.ignore,
) -> EngineInfo:
    """An engine that has ``backend`` (one, several with commas, or ``None`` for the usual ones).

    What is built already answers in milliseconds; otherwise it is fetched, patched and compiled,
    with ``on_progress`` told all along. ``engine_path`` names a llama-server to use instead.
    Raises :class:`~llama_ai.errors.EngineNotReadyError` with what to do.
    """
    if engine_path is not None:
        return _external(engine_path, parse_backends(backend))
    selection = _Selection(
        needed=parse_backends(backend),
        source=source,
        stock=stock,
        gfx=gfx,
        toolchain=detect(),
        on_progress=on_progress,
    )
    directory = _installed(selection)
    if directory is None:
        directory = _build(_buildable(selection), jobs, on_progress)
    return _describe(directory)


def build_engine(
    *,
    backends: Sequence[str] = (),
    source: Path | None = None,
    stock: bool = False,
    gfx: str | None = None,
    jobs: int | None = None,
    on_progress: OnProgress = events.ignore,
) -> EngineInfo:
    """Build exactly ``backends`` (nothing: what this machine can of the usual ones).

    For ``llama-ai build``. Raises like :func:`ensure_engine`.
    """
    selection = _Selection(
        needed=canonical({"cpu", *backends}) if backends else (),
        source=source,
        stock=stock,
        gfx=gfx,
        toolchain=detect(),
        on_progress=on_progress,
    )
    recipe = selection.recipe(selection.needed) if backends else _buildable(selection)
    return _describe(_build(recipe, jobs, on_progress))


def default_recipe(on_progress: OnProgress = events.ignore) -> Recipe:
    """The recipe of the engine that :func:`ensure_engine` builds here without further wishes."""
    return _buildable(_Selection(toolchain=detect(), on_progress=on_progress))


def installed_engines() -> tuple[EngineInfo, ...]:
    """Finished builds that run here, the one used last first."""
    folder = paths.cache_dir() / "engines"
    try:
        directories = [path for path in folder.iterdir() if (path / "BUILD_INFO.json").is_file()]
    except OSError:
        return ()
    directories.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    engines = []
    for directory in directories:
        with contextlib.suppress(LlamaAiError):  # a build whose libraries the system lost
            engines.append(_inspect(directory))
    return tuple(engines)


def _external(path: str | os.PathLike[str], needed: Sequence[str]) -> EngineInfo:
    engine = inspect(find_engine(path))
    lacking = [name for name in needed if name not in engine.backends]
    if lacking:
        raise EngineNotReadyError(
            f"the engine {engine.server} has no {' and no '.join(lacking)} backend "
            f"(it has: {', '.join(engine.backends)})",
            hint="name another engine, or leave --engine out to use our build",
        )
    return engine


@dataclass(frozen=True, kw_only=True)
class _Selection:
    """What was asked for, and what this machine can build."""

    needed: tuple[str, ...] = ()
    source: Path | None = None
    stock: bool = False
    gfx: str | None = None
    toolchain: Toolchain
    on_progress: OnProgress

    @property
    def wanted(self) -> tuple[str, ...]:
        """One build holds the usual backends and what is asked for beyond them."""
        return canonical({*default_backends(), *self.needed})

    @property
    def without_vulkan(self) -> bool:
        """Whether the build has to do without Vulkan, and may."""
        can = self.toolchain.vulkan is not None
        return "vulkan" in self.wanted and not can and "vulkan" not in self.needed

    def recipe(self, backends: Sequence[str]) -> Recipe:
        gfx_targets = tuple(word.strip() for word in (self.gfx or "").split(",") if word.strip())
        options = BuildOptions(
            backends=tuple(backends),
            gfx_targets=gfx_targets if "rocm" in backends else (),
            stock=self.stock,
            source=self.source,
        )
        return make_recipe(options, self.toolchain, self.on_progress)


def _buildable(selection: _Selection) -> Recipe:
    """The recipe for what is wanted, less Vulkan where its tools are missing: that is said."""
    if not selection.without_vulkan:
        return selection.recipe(selection.wanted)
    recipe = selection.recipe([name for name in selection.wanted if name != "vulkan"])
    if published(recipe.key) is None:
        events.note(
            selection.on_progress,
            f"building WITHOUT Vulkan: {selection.toolchain.vulkan_missing}; the engine will "
            f"compute on the CPU only ({install_hint()} to change that)",
        )
    return recipe


def _installed(selection: _Selection) -> Path | None:
    """A finished engine of the present sources that serves; ``None``: one has to be built.

    Normally that is exactly what would be built now. Someone who asks for the CPU alone, or whose
    compiler or headers are gone, gets what is there before anything is built.
    """
    recipe = selection.recipe(selection.wanted)
    if directory := published(recipe.key):
        return directory
    enough: list[set[str]] = []
    if set(selection.needed) == {"cpu"}:
        enough.append({"cpu"})
    if selection.without_vulkan:
        enough.append(set(selection.wanted))
    if selection.toolchain.missing:
        enough += [set(selection.wanted), {"cpu", *selection.needed}]
    for backends in enough:
        for directory in sorted((paths.cache_dir() / "engines").glob("[!.]*")):
            info = read_build_info(directory)
            has = info.get("backends")
            if (
                info.get("basis") == recipe.basis
                and info.get("gfx_targets") == list(recipe.options.gfx_targets)
                and isinstance(has, list)
                and backends <= set(has)
            ):
                return directory
    return None


def _build(recipe: Recipe, jobs: int | None, on_progress: OnProgress) -> Path:
    return build(recipe, jobs=jobs, on_progress=on_progress).directory


def _describe(directory: Path) -> EngineInfo:
    with contextlib.suppress(OSError):
        os.utime(directory)  # pruning keeps what is used
    return _inspect(directory)


def _inspect(directory: Path) -> EngineInfo:
    return inspect(find_engine(directory), key=directory.name)
