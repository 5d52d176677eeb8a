"""A prepared source tree is exactly the origin plus the series, and only changes are rewritten."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from llama_ai.engine import source
from llama_ai.engine.events import ignore
from llama_ai.engine.patches import Patch, PatchError, blob_id, parse
from llama_ai.errors import EngineNotReadyError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

PRISTINE = {
    "CMakeLists.txt": b"project(x)\n",
    "tools/server/server.cpp": b"int one;\nint two;\n",
    "src/a.cpp": b"int a;\n",
}


@dataclass
class MemoryOrigin:
    """Files from memory; counts how often it was asked, and for what."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(PRISTINE))
    identity: str = "v1"
    directory_name: str = "upstream"
    asked: list[set[str] | None] = field(default_factory=list)

    def extract(self, target: Path, wanted: Collection[str] | None) -> None:
        self.asked.append(None if wanted is None else set(wanted))
        for name, data in self.files.items():
            if wanted is None or name in wanted:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(data)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def insertion(name: str, path: str, before: bytes, line: int, text: str) -> Patch:
    """A patch of the store's format that adds one line after ``line``."""
    lines = before.decode().splitlines(keepends=True)
    after = "".join([*lines[:line], text + "\n", *lines[line:]]).encode()
    return parse(
        name,
        f"Subject: s\nReason: r\nUpstream-Reference: u\nRemove-When: w\n\n"
        f"diff --git a/{path} b/{path}\n"
        f"index {blob_id(before)}..{blob_id(after)} 100644\n"
        f"--- a/{path}\n+++ b/{path}\n"
        f"@@ -{line},0 +{line + 1} @@\n+{text}\n",
    )


SERVER = "tools/server/server.cpp"
HOOK = insertion("0001-hook.patch", SERVER, PRISTINE[SERVER], 1, "hook();")


def content(tree: Path) -> dict[str, bytes]:
    return {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in tree.rglob("*")
        if path.is_file()
    }


def stamps(tree: Path) -> dict[str, int]:
    return {name: (tree / name).stat().st_mtime_ns for name in content(tree)}


def test_a_tree_is_the_origin_plus_the_series() -> None:
    tree = source.prepare(MemoryOrigin(), [HOOK], stock=False)
    assert content(tree) == {**PRISTINE, SERVER: b"int one;\nhook();\nint two;\n"}


def test_nothing_is_read_or_written_when_nothing_changed() -> None:
    origin = MemoryOrigin()
    tree = source.prepare(origin, [HOOK], stock=False)
    before = stamps(tree)
    assert source.prepare(origin, [HOOK], stock=False) == tree
    assert origin.asked == [None]
    assert stamps(tree) == before


def test_another_series_rewrites_only_what_it_touches() -> None:
    origin = MemoryOrigin()
    tree = source.prepare(origin, [HOOK], stock=False)
    before = stamps(tree)
    other = insertion("0001-a.patch", "src/a.cpp", PRISTINE["src/a.cpp"], 0, "hook();")
    source.prepare(origin, [other], stock=False)
    assert content(tree) == {**PRISTINE, "src/a.cpp": b"hook();\nint a;\n"}
    changed = {name for name, stamp in stamps(tree).items() if stamp != before[name]}
    assert changed == {SERVER, "src/a.cpp"}
    assert origin.asked[1:] == [{SERVER, "src/a.cpp"}]


def test_an_edited_missing_or_added_file_is_put_right() -> None:
    origin = MemoryOrigin()
    tree = source.prepare(origin, [HOOK], stock=False)
    wanted = content(tree)
    (tree / SERVER).write_bytes(b"tampered\n")
    (tree / "src/a.cpp").unlink()
    (tree / "src/new.cpp").write_bytes(b"stray\n")
    source.prepare(origin, [HOOK], stock=False)
    assert content(tree) == wanted


def test_a_lost_or_corrupt_manifest_costs_a_check_but_no_recompile() -> None:
    origin = MemoryOrigin()
    tree = source.prepare(origin, [HOOK], stock=False)
    before = stamps(tree)
    for manifest in (b"{ not json", b"[]", b'{"files": 3}'):
        tree.with_name("upstream.json").write_bytes(manifest)
        source.prepare(origin, [HOOK], stock=False)
    assert stamps(tree) == before


def test_another_origin_replaces_the_tree() -> None:
    tree = source.prepare(MemoryOrigin(), [], stock=False)
    files = {"CMakeLists.txt": b"project(y)\n", "src/b.cpp": b"int b;\n"}
    source.prepare(MemoryOrigin(files=files, identity="v2"), [], stock=False)
    assert content(tree) == files


def test_a_patch_that_does_not_apply_names_itself_and_leaves_the_tree() -> None:
    origin = MemoryOrigin()
    tree = source.prepare(origin, [HOOK], stock=False)
    before = content(tree)
    wrong = insertion("0002-wrong.patch", "src/a.cpp", b"something else\n", 1, "hook();")
    with pytest.raises(PatchError, match=r"0002-wrong\.patch"):
        source.prepare(origin, [HOOK, wrong], stock=False)
    assert content(tree) == before
    assert not list(source.source_dir().glob(".stage-*"))


def test_stock_and_patched_trees_live_apart() -> None:
    patched = source.prepare(MemoryOrigin(), [HOOK], stock=False)
    stock = source.prepare(MemoryOrigin(), [], stock=True)
    assert content(stock) == PRISTINE
    assert content(patched) != PRISTINE


def test_what_a_killed_process_left_is_cleared_away() -> None:
    left = source.source_dir() / ".stage-dead"
    left.mkdir()
    source.prepare(MemoryOrigin(), [], stock=False)
    assert not left.exists()


# ------------------------------------------------------------------ a developer's own tree


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    directory = tmp_path / "checkout"
    for name, data in PRISTINE.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    (directory / ".git").mkdir()
    (directory / ".git" / "HEAD").write_text("ref")
    (directory / "build" / "x").mkdir(parents=True)
    (directory / "build" / "CMakeCache.txt").write_text("")
    return directory


def test_a_developer_s_tree_is_copied_and_never_touched(checkout: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in checkout.rglob("*")}
    tree = source.prepare(source.local_source(checkout, ignore), [HOOK], stock=False)
    assert content(tree) == {**PRISTINE, SERVER: b"int one;\nhook();\nint two;\n"}
    assert {path: path.stat().st_mtime_ns for path in checkout.rglob("*")} == before


def test_a_developer_s_tree_is_known_by_its_content(checkout: Path) -> None:
    first = source.local_source(checkout, ignore).identity
    (checkout / "build" / "x" / "more").write_text("built")
    assert source.local_source(checkout, ignore).identity == first
    (checkout / "src/a.cpp").write_bytes(b"int b;\n")
    assert source.local_source(checkout, ignore).identity != first


def test_a_directory_that_is_no_llama_cpp_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineNotReadyError, match=r"not a llama\.cpp source tree"):
        source.local_source(tmp_path, ignore)


# ------------------------------------------------------------------ unpacking


def archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as stream:
        for member, data in members:
            member.size = len(data)
            stream.addfile(member, io.BytesIO(data))
    return path


def test_unpack_takes_only_the_tree_and_keeps_the_executable_bit(tmp_path: Path) -> None:
    script = tarfile.TarInfo("p/v/run.sh")
    script.mode = 0o755
    packed = archive(
        tmp_path / "x.tar.gz",
        [
            (tarfile.TarInfo("p/setup.py"), b"no"),
            (script, b"#!/bin/sh\n"),
            (tarfile.TarInfo("p/v/.git"), b"gitdir: nowhere"),
            (tarfile.TarInfo("p/v/.github/x"), b"kept"),
        ],
    )
    assert source.unpack(packed, "p/v", tmp_path / "out", None, ignore) == 2
    assert content(tmp_path / "out") == {"run.sh": b"#!/bin/sh\n", ".github/x": b"kept"}
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_unpack_refuses_links_and_paths_that_leave(tmp_path: Path) -> None:
    link = tarfile.TarInfo("p/v/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    for member in (link, tarfile.TarInfo("p/v/../../../escaped")):
        packed = archive(tmp_path / "x.tar.gz", [(member, b"")])
        with pytest.raises(EngineNotReadyError, match="refusing to unpack"):
            source.unpack(packed, "p/v", tmp_path / "deep" / "out", None, ignore)
    assert not (tmp_path / "escaped").exists()


def test_unpack_stops_at_a_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = archive(tmp_path / "x.tar.gz", [(tarfile.TarInfo("p/v/big"), b"0" * 4096)])
    monkeypatch.setattr(source, "MAX_TREE_BYTES", 4095)
    with pytest.raises(EngineNotReadyError, match="far larger"):
        source.unpack(packed, "p/v", tmp_path / "out", None, ignore)


def test_a_truncated_archive_says_so(tmp_path: Path) -> None:
    packed = archive(tmp_path / "x.tar.gz", [(tarfile.TarInfo("p/v/a"), os.urandom(100_000))])
    packed.write_bytes(packed.read_bytes()[:50_000])
    with pytest.raises(EngineNotReadyError, match="is damaged"):
        source.unpack(packed, "p/v", tmp_path / "out", None, ignore)
