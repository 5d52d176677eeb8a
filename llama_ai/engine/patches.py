"""The patch stack: read it, check it, apply it. The only place that knows the format.

A patch inserts lines into upstream files and does nothing else. It is stored without context, so
nothing in the store is an upstream line; a line number alone would however let a patch land at a
wrong place. The anchor is therefore the pair of git blob ids on the ``index`` line of each file:
the content before and the content after. :func:`apply_series` accepts exactly those two and
writes nothing unless every patch of the series passes.

No git is needed here: an insertion is simple, and a plain directory is what a build has.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NoReturn

from llama_ai.errors import EngineNotReadyError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SUBJECT = "Subject"
TRAILERS = ("Reason", "Upstream-Reference", "Remove-When")
SUFFIX = ".patch"

_FILE = re.compile(r"diff --git a/(?P<old>\S+) b/(?P<new>\S+)")
_INDEX = re.compile(r"index (?P<before>[0-9a-f]{40})\.\.(?P<after>[0-9a-f]{40}) 100(?:644|755)")
_HUNK = re.compile(r"@@ -(?P<line>\d+),0 \+(?P<start>\d+)(?:,(?P<count>\d+))? @@")
_HEADER = re.compile(r"(?P<key>[A-Z][A-Za-z-]*): (?P<value>\S.*)")


class PatchError(EngineNotReadyError):
    """A patch, or the series, is wrong or does not apply; the message names it."""


@dataclass(frozen=True, kw_only=True)
class Insertion:
    """``lines`` (with their line ends) go in after line ``after_line`` (0: at the top)."""

    after_line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class FilePatch:
    """What a patch does to one file. ``before`` and ``after`` are git blob ids (SHA-1, hex)."""

    path: str
    before: str
    after: str
    insertions: tuple[Insertion, ...]


@dataclass(frozen=True, kw_only=True)
class Patch:
    """One patch of the series. ``text`` is the stored file, as it is."""

    name: str
    subject: str
    trailers: tuple[tuple[str, str], ...]
    files: tuple[FilePatch, ...]
    text: str

    @property
    def sha256(self) -> str:
        """Hash of the stored file."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def read_series(native_dir: Path) -> tuple[Patch, ...]:
    """The patches of ``native_dir/patches/series``, in order.

    Raises :class:`PatchError` when the series is missing or names a file twice or one that does
    not exist, or when a file is not in the series or not in the format.
    """
    store = native_dir / "patches"
    try:
        listed = (store / "series").read_text(encoding="utf-8").split()
    except OSError as error:
        raise PatchError(f"cannot read {store / 'series'}: {error.strerror}") from error
    for name in listed:
        if listed.count(name) > 1:
            raise PatchError(f"the series lists {name} twice")
        if not (store / name).is_file():
            raise PatchError(f"the series lists {name}, but there is no such file")
    orphans = sorted({path.name for path in store.glob("*")} - {*listed, "series"})
    if orphans:
        raise PatchError(
            f"not in the series: {', '.join(orphans)}", hint=f"add it, or delete it from {store}"
        )
    return tuple(parse(name, (store / name).read_text(encoding="utf-8")) for name in listed)


def series_hash(patches: Iterable[Patch]) -> str:
    """One SHA-256 over the names and contents of the series, in order."""
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(f"{patch.name} {patch.sha256}\n".encode())
    return digest.hexdigest()


def check_chain(patches: Sequence[Patch]) -> None:
    """Check, without any source, that each patch starts where the one before it left the file.

    Raises :class:`PatchError` naming the patch and the file.
    """
    state: dict[str, str] = {}
    for patch in patches:
        for file in patch.files:
            if state.setdefault(file.path, file.before) != file.before:
                raise PatchError(
                    f"{patch.name} does not continue from the patch before it in {file.path}",
                    hint="run scripts/patches import, rebase there, and export",
                )
            state[file.path] = file.after


def apply_series(tree: Path, patches: Sequence[Patch]) -> None:
    """Apply ``patches`` in order to the plain directory ``tree``: all of them, or none.

    Raises :class:`PatchError` naming the patch and file that does not apply exactly as stated.
    """
    contents: dict[str, str] = {}
    for patch in patches:
        for file in patch.files:
            if file.path not in contents:
                contents[file.path] = _read(tree, patch, file)
            contents[file.path] = _insert(contents[file.path], patch, file)
    for path, text in contents.items():
        target = tree / path
        mode = target.stat().st_mode & 0o777
        target.unlink()  # never write through a hard link into somebody's source
        target.write_bytes(text.encode("utf-8", "surrogateescape"))
        target.chmod(mode)


def blob_id(data: bytes) -> str:
    """The id that git gives to a file of this content."""
    # SHA-1 is git's name for a file; the source itself is verified by the sdist's SHA-256.
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def parse(name: str, text: str) -> Patch:
    """Read one stored patch. Raises :class:`PatchError` at the first line out of format."""
    reader = _Reader(name, text)
    headers: dict[str, str] = {}
    while (line := reader.next()) != "":
        match = _HEADER.fullmatch(line)
        if not match or match["key"] not in (SUBJECT, *TRAILERS) or match["key"] in headers:
            reader.fail("expected one each of " + ", ".join((SUBJECT, *TRAILERS)))
        headers[match["key"]] = match["value"]
    missing = [key for key in (SUBJECT, *TRAILERS) if key not in headers]
    if missing:
        reader.fail("lacks " + ", ".join(missing))
    files: list[FilePatch] = []
    while not reader.at_end():
        files.append(_parse_file(reader))
    paths = [file.path for file in files]
    if not files or len(set(paths)) != len(paths):
        reader.fail("expected one section for each file")
    return Patch(
        name=name,
        subject=headers[SUBJECT],
        trailers=tuple((key, headers[key]) for key in TRAILERS),
        files=tuple(files),
        text=text,
    )


class _Reader:
    """The lines of a patch with the number of the current one, for messages."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = text.split("\n")
        self._at = 0
        if self._lines.pop() != "":
            self._at = len(self._lines) + 1
            self.fail("the last line has no end")

    def at_end(self) -> bool:
        return self._at >= len(self._lines)

    def peek(self) -> str:
        return "" if self.at_end() else self._lines[self._at]

    def next(self) -> str:
        if self.at_end():
            self.fail("ends too early")
        self._at += 1
        return self._lines[self._at - 1]

    def expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.fullmatch(self.next())
        if match is None:
            self.fail(f"expected {what}")
        return match

    def fail(self, why: str) -> NoReturn:
        raise PatchError(f"{self._name}, line {self._at}: {why}")


def _parse_file(reader: _Reader) -> FilePatch:
    names = reader.expect(_FILE, "`diff --git a/FILE b/FILE`")
    path = names["new"]
    if names["old"] != path or PurePosixPath(path).is_absolute() or ".." in path.split("/"):
        reader.fail("a patch changes a file in its place, below the tree")
    index = reader.expect(_INDEX, "`index BEFORE..AFTER MODE` with full blob ids")
    reader.expect(re.compile(re.escape(f"--- a/{path}")), f"`--- a/{path}`")
    reader.expect(re.compile(re.escape(f"+++ b/{path}")), f"`+++ b/{path}`")
    insertions: list[Insertion] = []
    added = 0
    while reader.peek().startswith("@@"):
        hunk = reader.expect(_HUNK, "a hunk of insertions only, without context or heading")
        count = int(hunk["count"] or 1)
        after_line = int(hunk["line"])
        if count == 0 or int(hunk["start"]) != after_line + added + 1:
            reader.fail("the hunk's line numbers do not add up")
        if insertions and after_line <= insertions[-1].after_line:
            reader.fail("hunks are not in order")
        lines: list[str] = []
        for _ in range(count):
            line = reader.next()
            if not line.startswith("+"):
                reader.fail("an upstream line in the store: only insertions are allowed")
            lines.append(line[1:] + "\n")
        added += count
        insertions.append(Insertion(after_line=after_line, lines=tuple(lines)))
    if not insertions:
        reader.fail("expected a hunk")
    return FilePatch(
        path=path, before=index["before"], after=index["after"], insertions=tuple(insertions)
    )


def _read(tree: Path, patch: Patch, file: FilePatch) -> str:
    try:
        return (tree / file.path).read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        raise PatchError(
            f"{patch.name} does not apply: {file.path}: {error.strerror}",
            hint="build another source tree with --stock, or bring the patches up to date",
        ) from error


def _insert(text: str, patch: Patch, file: FilePatch) -> str:
    if blob_id(text.encode("utf-8", "surrogateescape")) != file.before:
        raise PatchError(
            f"{patch.name} does not apply: {file.path} is not the file that it was made for",
            hint="build another source tree with --stock, or bring the patches up to date",
        )
    lines = text.split("\n")
    # `split` leaves the text after the last line end as a last element; it is no line.
    result: list[str] = []
    position = 0
    for insertion in file.insertions:
        if insertion.after_line >= len(lines):
            raise PatchError(f"{patch.name} does not apply: {file.path} is too short")
        result += [line + "\n" for line in lines[position : insertion.after_line]]
        result += insertion.lines
        position = insertion.after_line
    patched = "".join(result) + "\n".join(lines[position:])
    if blob_id(patched.encode("utf-8", "surrogateescape")) != file.after:
        raise PatchError(
            f"{patch.name} was edited by hand: {file.path} is not what it states afterwards",
            hint="run scripts/patches import, commit there, and export",
        )
    return patched
