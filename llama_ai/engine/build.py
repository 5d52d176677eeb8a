"""Build an engine with cmake and ninja, and publish it whole or not at all.

Below the cache: ``builds/<workspace>`` is cmake's directory with ``build.log``, kept so that a
changed source rebuilds only itself and an interrupted build goes on; ``engines/<key>`` is a
finished engine, which nobody writes to again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import errno
import json
import os
import re
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.engine.events import OnProgress, Step, note
from llama_ai.engine.lock import exclusive
from llama_ai.engine.recipe import check_backends
from llama_ai.engine.source import prepare
from llama_ai.errors import EngineNotReadyError
from llama_ai.run import CommandFailedError, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from llama_ai.engine.recipe import Recipe

# Measured with the pin, CPU and Vulkan: archive 73 MiB, tree 176 MiB, build directory 220 MiB,
# engine 50 MiB, and as much again of compiler cache and temporary files.
NEEDED_FREE_BYTES = 1 << 30
# The heaviest translation units need this much while they are compiled.
JOB_BYTES = 1500 << 20
KEPT_BUILDS = 4
KEPT_ENGINES = 6

_NINJA = re.compile(r"\[(\d+)/(\d+)\] (.*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """A finished engine, and how many steps ninja ran for it (0: it was there already)."""

    directory: Path
    steps: int


def engines_dir() -> Path:
    """Finished engines, one directory a key."""
    return paths.private(paths.cache_dir() / "engines")


def builds_dir() -> Path:
    """cmake's build directories."""
    return paths.private(paths.cache_dir() / "builds")


def published(key: str) -> Path | None:
    """The finished engine of that key, or ``None``."""
    directory = paths.cache_dir() / "engines" / key
    return directory if (directory / "BUILD_INFO.json").is_file() else None


def build(recipe: Recipe, *, jobs: int | None, on_progress: OnProgress) -> Built:
    """Build ``recipe`` unless it is there, and return where it is.

    Raises :class:`~llama_ai.errors.EngineNotReadyError`: a tool is missing (before anything was
    started), no network, no space, or the compiler failed (naming the log).
    """
    if directory := published(recipe.key):
        return Built(directory=directory, steps=0)
    recipe.toolchain.require()
    check_backends(recipe.options.backends, recipe.toolchain, recipe.options.gfx_targets)
    with _interruptible(), _disk_errors(), exclusive(_lock_file(), on_progress):
        if directory := published(recipe.key):  # the one we waited for
            return Built(directory=directory, steps=0)
        workspace = builds_dir() / recipe.workspace
        _check_space(workspace)
        tree = prepare(recipe.origin, recipe.patches, stock=recipe.options.stock)
        steps = _compile(recipe, tree, workspace, recipe.targets, jobs, on_progress)
        while not recipe.still_true():
            note(on_progress, "the native sources changed during the build: building again")
            recipe = dataclasses.replace(recipe)
            steps += _compile(recipe, tree, workspace, recipe.targets, jobs, on_progress)
        directory = _publish(recipe, workspace)
        _prune(builds_dir(), KEPT_BUILDS, keep=workspace)
        _prune(engines_dir(), KEPT_ENGINES, keep=directory)
    return Built(directory=directory, steps=steps)


def build_targets(
    recipe: Recipe, targets: Sequence[str], *, jobs: int | None, on_progress: OnProgress
) -> Path:
    """Build further targets (native tests, upstream's zoo writer) in ``recipe``'s build directory,
    and return that; programs are in its ``bin``. Raises like :func:`build`."""
    recipe.toolchain.require()
    with _interruptible(), _disk_errors(), exclusive(_lock_file(), on_progress):
        workspace = builds_dir() / recipe.workspace
        tree = prepare(recipe.origin, recipe.patches, stock=recipe.options.stock)
        _compile(recipe, tree, workspace, targets, jobs, on_progress)
    return workspace


def clean(*, sources: bool, on_progress: OnProgress) -> list[Path]:
    """Remove builds and engines, with ``sources`` what was fetched too; return what is gone."""
    names = ["builds", "engines", "probes", *(["src"] if sources else [])]
    with exclusive(_lock_file(), on_progress):
        found = [path for name in names if (path := paths.cache_dir() / name).exists()]
        for path in found:
            shutil.rmtree(path)
    return found


def default_jobs() -> int:
    """As many compilers as there are CPUs for us and memory for them."""
    import psutil

    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cpus or 1, psutil.virtual_memory().available // JOB_BYTES))


def _lock_file() -> Path:
    return paths.private(paths.cache_dir()) / "build.lock"


def _compile(
    recipe: Recipe,
    tree: Path,
    workspace: Path,
    targets: Sequence[str],
    jobs: int | None,
    on_progress: OnProgress,
) -> int:
    paths.private(workspace)
    os.utime(workspace)
    log_path = workspace / "build.log"
    with log_path.open("w", encoding="utf-8") as log:
        _configure(recipe, tree, workspace, log_path, log.write, on_progress)
        counter = _NinjaCounter(on_progress)

        def on_line(text: str) -> None:
            log.write(text + "\n")
            counter.line(text)

        words = ["ninja", "-C", str(workspace), "-j", str(jobs or default_jobs()), *targets]
        try:
            stream(words, on_line, env=_environment(recipe))
        except CommandFailedError as error:
            log.flush()
            raise _build_failed(log_path) from error
    return counter.done


def _configure(
    recipe: Recipe,
    tree: Path,
    workspace: Path,
    log_path: Path,
    write: Callable[[str], object],
    on_progress: OnProgress,
) -> None:
    words = ["cmake", "-S", str(recipe.native), "-B", str(workspace), "-G", "Ninja"]
    definitions = {**recipe.definitions, "LLAMA_AI_UPSTREAM": str(tree)}
    words += [f"-D{name}={value}" for name, value in sorted(definitions.items())]
    # ninja runs cmake again by itself when a CMakeLists changed; only other words need us.
    stamp = workspace / "configured.json"
    text = json.dumps(words)
    if stamp.is_file() and stamp.read_text() == text and (workspace / "build.ninja").is_file():
        return
    stamp.unlink(missing_ok=True)
    (workspace / "CMakeCache.txt").unlink(missing_ok=True)

    def on_line(line: str) -> None:
        write(line + "\n")
        on_progress(Step(stage="configure", text=line.removeprefix("-- ")[:60]))

    try:
        stream(words, on_line, env=_environment(recipe))
    except CommandFailedError as error:
        raise EngineNotReadyError(
            "cmake could not configure the engine",
            hint=f"the whole log: {log_path}",
            details=tuple(line for line in error.details if line.strip())[-10:],
        ) from error
    stamp.write_text(text)


def _environment(recipe: Recipe) -> dict[str, str]:
    env = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    # With paths relative to the cache, ccache's results survive a move of the cache or the home.
    env.setdefault("CCACHE_BASEDIR", str(paths.cache_dir()))
    env.setdefault("CCACHE_NOHASHDIR", "1")
    rocm = recipe.toolchain.rocm
    if "rocm" in recipe.options.backends and rocm is not None:
        env.setdefault("HIP_PATH", str(rocm.prefix))
        env.setdefault("ROCM_PATH", str(rocm.prefix))
    return env


class _NinjaCounter:
    """Follows ninja's own ``[finished/total]``.

    A sub-build (Vulkan's shader generator) prints counts of its own, which are far smaller.
    """

    def __init__(self, on_progress: OnProgress) -> None:
        self.done = 0
        self._total = 0
        self._on_progress = on_progress

    def line(self, text: str) -> None:
        match = _NINJA.match(text)
        if match is None:
            return
        done, total = int(match[1]), int(match[2])
        if done < self.done or total * 2 < self._total:
            return
        self.done, self._total = done, total
        words = match[3].split()
        shown = f"{done}/{total} {Path(words[-1]).name if words else ''}"
        self._on_progress(Step(stage="compile", done=done, total=total, text=shown))


def _build_failed(log_path: Path) -> EngineNotReadyError:
    """The error with the lines of the first failed command; ninja goes on for a while after it."""
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    first = next((index for index, line in enumerate(lines) if line.startswith("FAILED:")), None)
    if first is None:
        shown = lines[-12:]
    else:
        # The line after FAILED: is the compiler's whole command.
        said = [line for line in lines[first + 2 :] if not line.startswith("[")]
        shown = [lines[first], *said[:12]]
    hint = f"the whole log: {log_path}"
    if any("Killed" in line or "fatal error: Killed" in line for line in shown):
        hint = f"out of memory? try `llama-ai build --jobs 1`; {hint}"
    return EngineNotReadyError(
        "building the engine failed", hint=hint, details=tuple(line[:200] for line in shown)
    )


def _publish(recipe: Recipe, workspace: Path) -> Path:
    """Copy the programs and libraries to ``engines/<key>``; the rename makes it visible whole."""
    target = engines_dir() / recipe.key
    date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    for left in engines_dir().glob(".new-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=engines_dir(), prefix=".new-") as name:
        new = Path(name) / "engine"
        new.mkdir(mode=0o755)
        for path in sorted((workspace / "bin").iterdir()):
            if not path.name.startswith("test-"):
                shutil.copy2(path, new / path.name, follow_symlinks=False)
        if not (new / recipe.server_name).is_file():
            raise EngineNotReadyError(f"the build ended well, but made no {recipe.server_name}")
        info = json.dumps(recipe.build_info(date), indent=2) + "\n"
        (new / "BUILD_INFO.json").write_text(info, encoding="utf-8")
        shutil.rmtree(
            target, ignore_errors=True
        )  # a directory without BUILD_INFO.json is no engine
        new.rename(target)
    return target


def _prune(folder: Path, count: int, *, keep: Path) -> None:
    """Remove all but the ``count`` directories used last."""
    directories = [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    directories.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in directories[count:]:
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)


def _check_space(workspace: Path) -> None:
    if (workspace / "build.ninja").exists():
        return  # most of it is there
    free_bytes = shutil.disk_usage(paths.cache_dir()).free
    if free_bytes < NEEDED_FREE_BYTES:
        raise EngineNotReadyError(
            f"building the engine needs about {NEEDED_FREE_BYTES >> 20} MiB in "
            f"{paths.cache_dir()}, {free_bytes >> 20} MiB are free",
            hint="free some space, or set XDG_CACHE_HOME to a larger disk",
        )


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES}:
            raise
        raise EngineNotReadyError(
            f"cannot write the engine's build: {error.strerror} ({error.filename})",
            hint="free some space, or set XDG_CACHE_HOME to another disk",
        ) from error


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the compilers too, as Ctrl-C does.

    They run in a process group of their own, so a signal to us alone would leave them running.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = {
        number: signal.signal(number, interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
