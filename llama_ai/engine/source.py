"""The engine's source: fetch, verify, unpack, patch; always exactly the pin plus the series.

A prepared tree is a plain directory in the user cache beside a manifest of its files. It is made
right *in place*: only files whose content must change are written, so that the compiler sees
only those as new. Callers hold the build lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

from llama_ai import paths
from llama_ai.engine.events import Step
from llama_ai.engine.fetch import fetch
from llama_ai.engine.patches import apply_series, series_hash
from llama_ai.errors import EngineNotReadyError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from llama_ai.engine.events import OnProgress
    from llama_ai.engine.patches import Patch
    from llama_ai.engine.pin import Pin

# Far above the real thing (3,700 files, 170 MB); a stop for a tarball that explodes.
MAX_FILES = 50_000
MAX_TREE_BYTES = 2 << 30


class Origin(Protocol):
    """Where a tree's pristine files come from."""

    @property
    def identity(self) -> str:
        """Changes whenever any pristine file changes."""

    @property
    def directory_name(self) -> str:
        """Name of the tree below the cache's ``src``."""

    def extract(self, target: Path, wanted: Collection[str] | None) -> None:
        """Write the pristine files named in ``wanted`` (``None``: all) below ``target``."""


@dataclass(frozen=True, kw_only=True)
class PinnedSource:
    """The source distribution of the pin, fetched when it is not in the cache yet."""

    pin: Pin
    on_progress: OnProgress

    @property
    def identity(self) -> str:
        """The distribution's hash."""
        return self.pin.sha256

    @property
    def directory_name(self) -> str:
        """``upstream-<hash>``."""
        return f"upstream-{self.pin.sha256[:12]}"

    def extract(self, target: Path, wanted: Collection[str] | None) -> None:
        """Unpack upstream's part of the distribution."""
        archive = fetch(self.pin, source_dir(), self.on_progress)
        count = unpack(archive, self.pin.tree, target, wanted, self.on_progress)
        if count == 0 and wanted is None:
            raise EngineNotReadyError(f"{archive} holds nothing below {self.pin.tree}")


@dataclass(frozen=True, kw_only=True)
class DirectorySource:
    """A developer's tree, copied; the directory itself is only read."""

    directory: Path
    identity: str
    on_progress: OnProgress

    @property
    def directory_name(self) -> str:
        """``local-<hash of the path>``: one copy a directory, whatever its content."""
        return f"local-{hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:12]}"

    def extract(self, target: Path, wanted: Collection[str] | None) -> None:
        """Copy the files."""
        names = local_files(self.directory) if wanted is None else sorted(wanted)
        for index, name in enumerate(names):
            original = self.directory / name
            if not original.is_file():
                continue
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, copy)
            shutil.copymode(original, copy)
            self.on_progress(Step(stage="unpack", done=index + 1, total=len(names)))


def source_dir() -> Path:
    """Where archives and trees are kept."""
    return paths.private(paths.cache_dir() / "src")


def prepare(origin: Origin, patches: Sequence[Patch], *, stock: bool) -> Path:
    """Make the tree of ``origin`` with ``patches`` right and return it.

    Raises :class:`~llama_ai.errors.EngineNotReadyError` (no network, wrong hash) or a
    :class:`~llama_ai.engine.patches.PatchError` that names the patch; the tree is then as before.
    """
    base = source_dir()
    tree = base / (origin.directory_name + ("-stock" if stock else ""))
    manifest_path = tree.with_name(tree.name + ".json")
    manifest = _read_manifest(manifest_path)
    series = series_hash(patches)
    wanted = _outdated(tree, manifest, origin.identity, series, patches)
    if wanted is not None and not wanted:
        return tree
    for left in (*base.glob(".stage-*"), *base.glob(".fetch-*")):
        shutil.rmtree(left, ignore_errors=True)  # of a process that was killed: we hold the lock
    with tempfile.TemporaryDirectory(dir=base, prefix=".stage-") as name:
        stage = Path(name)
        origin.extract(stage, wanted)
        apply_series(stage, patches)
        # From here on the tree is neither old nor new until the manifest says so again.
        manifest_path.unlink(missing_ok=True)
        tree.mkdir(mode=0o700, exist_ok=True)
        _merge(stage, tree, wanted)
    document = {
        "origin": origin.identity,
        "series": series,
        "patched": sorted({file.path for patch in patches for file in patch.files}),
        "files": {path: list(stat) for path, stat in sorted(_stats(tree).items())},
    }
    paths.write_atomic(manifest_path, json.dumps(document).encode())
    return tree


def unpack(
    archive: Path,
    prefix: str,
    target: Path,
    wanted: Collection[str] | None,
    on_progress: OnProgress,
) -> int:
    """Write the regular files below ``prefix`` of a ``.tar.gz`` to ``target``; return how many.

    Anything else below it (links, devices), a path that leaves the target, or more than
    ``MAX_FILES`` or ``MAX_TREE_BYTES`` raises :class:`~llama_ai.errors.EngineNotReadyError`.
    """
    import tarfile

    count = size_bytes = 0
    top = PurePosixPath(prefix)
    try:
        with tarfile.open(archive, "r|gz") as stream:
            for member in stream:
                path = PurePosixPath(member.name)
                if not path.is_relative_to(top) or member.isdir():
                    continue
                relative = path.relative_to(top)
                if relative.as_posix() == ".git" or relative.parts[:1] == (".git",):
                    continue  # a submodule pointer that points nowhere
                count += 1
                size_bytes += member.size
                if count > MAX_FILES or size_bytes > MAX_TREE_BYTES:
                    raise EngineNotReadyError(f"{archive} is far larger than the engine's source")
                content = stream.extractfile(member) if member.isreg() else None
                if content is None or ".." in relative.parts:
                    raise EngineNotReadyError(f"{archive}: refusing to unpack {member.name}")
                if wanted is not None and relative.as_posix() not in wanted:
                    continue
                file = target / relative
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as output:
                    shutil.copyfileobj(content, output)
                file.chmod(0o755 if member.mode & 0o100 else 0o644)
                on_progress(Step(stage="unpack", done=count, total=None, text=f"{count} files"))
    except (tarfile.TarError, EOFError) as error:
        raise EngineNotReadyError(
            f"{archive} is damaged: {error}", hint="delete it; it is fetched again"
        ) from error
    return count


def local_files(directory: Path) -> list[str]:
    """The files of a developer's tree, without repositories and build directories inside it."""
    names: list[str] = []
    for folder, folders, files in os.walk(directory):
        here = Path(folder)
        folders[:] = [
            child
            for child in sorted(folders)
            if child != ".git" and not (here / child / "CMakeCache.txt").exists()
        ]
        names += [
            (here / file).relative_to(directory).as_posix() for file in files if file != ".git"
        ]
    return sorted(names)


def local_source(directory: Path, on_progress: OnProgress) -> DirectorySource:
    """``directory`` as a source, identified by its content.

    Raises :class:`~llama_ai.errors.EngineNotReadyError` when it is no llama.cpp tree.
    """
    directory = directory.expanduser().resolve()
    if not (directory / "tools" / "server" / "server.cpp").is_file():
        raise EngineNotReadyError(
            f"{directory} is not a llama.cpp source tree (no tools/server/server.cpp)",
            hint="give the top directory of a llama.cpp checkout",
        )
    digest = hashlib.sha256()
    for name in local_files(directory):
        try:
            data = (directory / name).read_bytes()
        except FileNotFoundError:
            continue  # a dangling link
        digest.update(f"{name} {len(data)}\n".encode())
        digest.update(data)
    return DirectorySource(
        directory=directory, identity=digest.hexdigest(), on_progress=on_progress
    )


def local_commit(directory: Path) -> str | None:
    """The commit that a developer's tree stands at, or ``None`` when it is not a git work tree."""
    from llama_ai.errors import LlamaAiError
    from llama_ai.run import run

    try:
        top, commit = run(
            ["git", "-C", directory, "rev-parse", "--show-toplevel", "HEAD"], timeout_s=10
        ).output.split("\n")[:2]
    except (LlamaAiError, ValueError):
        return None
    # A plain directory inside somebody's repository has not that repository's commit.
    return commit if Path(top) == directory.expanduser().resolve() else None


def _read_manifest(path: Path) -> Mapping[str, object] | None:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
        return None
    return document


def _outdated(
    tree: Path,
    manifest: Mapping[str, object] | None,
    identity: str,
    series: str,
    patches: Sequence[Patch],
) -> set[str] | None:
    """Files to write again: empty when the tree is right, ``None`` when nothing is known of it."""
    if manifest is None or manifest.get("origin") != identity or not tree.is_dir():
        return None
    recorded, patched = manifest["files"], manifest.get("patched")
    if not isinstance(recorded, dict) or not isinstance(patched, list):
        return None
    found = {path: list(stat) for path, stat in _stats(tree).items()}
    touched = {path for path in recorded.keys() | found if recorded.get(path) != found.get(path)}
    if not touched and manifest.get("series") == series:
        return set()
    # Patches are applied to pristine files, so all that carry or get one are needed.
    return touched | set(patched) | {file.path for patch in patches for file in patch.files}


def _merge(stage: Path, tree: Path, wanted: set[str] | None) -> None:
    """Bring ``tree`` to the staged content; files that are right already keep their time stamp."""
    staged = {path for path, _ in _walk(stage)}
    present = {path for path, _ in _walk(tree)}
    for name in present if wanted is None else present & wanted:
        if name not in staged:
            (tree / name).unlink()
    # Unpacked files carry the time of unpacking, so a change is newer than what was built of it.
    now = time.time()
    for name in staged:
        source, target = stage / name, tree / name
        if name in present and _same(source, target):
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        os.utime(source, (now, now))
        source.replace(target)


def _same(first: Path, second: Path) -> bool:
    one, two = first.stat(), second.lstat()
    return (
        one.st_size == two.st_size
        and one.st_mode == two.st_mode
        and first.read_bytes() == second.read_bytes()
    )


def _walk(top: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    pending = [os.fspath(top)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    yield os.path.relpath(entry.path, top), entry


def _stats(top: Path) -> dict[str, tuple[int, int, int]]:
    stats = {}
    for name, entry in _walk(top):
        status = entry.stat(follow_symlinks=False)
        stats[name] = (status.st_size, status.st_mtime_ns, status.st_mode)
    return stats
