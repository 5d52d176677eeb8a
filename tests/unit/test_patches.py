"""The patch format: what is accepted, what is refused, and that a patch lands only where it may."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_ai.engine import patches
from llama_ai.engine.patches import PatchError, apply_series, blob_id, parse, read_series

NATIVE = Path(__file__).resolve().parents[2] / "native"
HEADERS = "Subject: s\nReason: r\nUpstream-Reference: u\nRemove-When: w\n\n"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A file before and after insertions, and the section of a patch that says so."""

    before: bytes
    after: bytes
    section: str


def change(path: str, before: bytes, insertions: list[tuple[int, list[str]]]) -> Change:
    """``insertions`` are (after line, lines); the section is written independently of parse()."""
    old = before.decode("utf-8", "surrogateescape").split("\n")
    new: list[str] = []
    hunks: list[str] = []
    position = added = 0
    for after_line, lines in insertions:
        new += old[position:after_line] + lines
        position = after_line
        count = "" if len(lines) == 1 else f",{len(lines)}"
        hunks.append(f"@@ -{after_line},0 +{after_line + added + 1}{count} @@")
        hunks += [f"+{line}" for line in lines]
        added += len(lines)
    after = "\n".join(new + old[position:]).encode("utf-8", "surrogateescape")
    head = [
        f"diff --git a/{path} b/{path}",
        f"index {blob_id(before)}..{blob_id(after)} 100644",
        f"--- a/{path}",
        f"+++ b/{path}",
    ]
    return Change(before=before, after=after, section="\n".join([*head, *hunks]) + "\n")


BEFORE = b"one\ntwo\nthree\n"
SIMPLE = change("src/a.cpp", BEFORE, [(0, ["// top"]), (2, ["x();", "y();"])])


def tree_with(directory: Path, content: bytes = BEFORE) -> Path:
    (directory / "src").mkdir()
    (directory / "src" / "a.cpp").write_bytes(content)
    return directory


def test_applies_exactly(tmp_path: Path) -> None:
    tree = tree_with(tmp_path)
    apply_series(tree, [parse("p", HEADERS + SIMPLE.section)])
    assert (tree / "src" / "a.cpp").read_bytes() == b"// top\none\ntwo\nx();\ny();\nthree\n"


def test_blob_id_is_gits() -> None:
    # `printf 'hello\n' | git hash-object --stdin`
    assert blob_id(b"hello\n") == "ce013625030ba8dba906f756967f9e9ca394464a"


LINES = st.lists(st.text(st.characters(exclude_characters="\n", codec="utf-8")), max_size=8)


@st.composite
def changes(draw: st.DrawFn) -> Change:
    before = "\n".join(draw(LINES)).encode() + draw(st.sampled_from([b"", b"\n", b"\xff\r\n"]))
    length = before.count(b"\n")
    places = sorted(draw(st.sets(st.integers(0, length), min_size=1, max_size=4)))
    texts = st.text(st.characters(exclude_characters="\n", codec="utf-8"))
    return change(
        "f", before, [(place, draw(st.lists(texts, min_size=1, max_size=3))) for place in places]
    )


@given(made=changes(), other=st.binary(max_size=40))
def test_law_a_patch_turns_before_into_after_and_nothing_else_into_anything(
    tmp_path_factory: pytest.TempPathFactory, made: Change, other: bytes
) -> None:
    """Law: apply(patch, before) == after; for any other content apply raises and writes nothing."""
    directory = tmp_path_factory.mktemp("tree")
    patch = parse("p", HEADERS + made.section)
    file = directory / "f"
    file.write_bytes(made.before)
    apply_series(directory, [patch])
    assert file.read_bytes() == made.after
    for content in (made.after, made.before + b"\n", b"\n" + made.before, other):
        if content == made.before:
            continue
        file.write_bytes(content)
        with pytest.raises(PatchError, match="p does not apply: f is not the file"):
            apply_series(directory, [patch])
        assert file.read_bytes() == content


def test_all_or_nothing_and_the_failing_patch_is_named(tmp_path: Path) -> None:
    tree = tree_with(tmp_path)
    good = parse("0001-good.patch", HEADERS + SIMPLE.section)
    bad = parse("0002-bad.patch", HEADERS + change("src/a.cpp", b"else\n", [(1, ["z"])]).section)
    with pytest.raises(PatchError, match=r"0002-bad\.patch does not apply: src/a\.cpp"):
        apply_series(tree, [good, bad])
    assert (tree / "src" / "a.cpp").read_bytes() == BEFORE


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match=r"p does not apply: src/a\.cpp: No such file"):
        apply_series(tmp_path, [parse("p", HEADERS + SIMPLE.section)])


def test_a_hard_linked_original_stays_as_it_was(tmp_path: Path) -> None:
    tree = tree_with(tmp_path)
    original = tmp_path / "original"
    os.link(tree / "src" / "a.cpp", original)
    (tree / "src" / "a.cpp").chmod(0o755)
    apply_series(tree, [parse("p", HEADERS + SIMPLE.section)])
    assert original.read_bytes() == BEFORE
    assert (tree / "src" / "a.cpp").stat().st_mode & 0o777 == 0o755


def test_a_second_patch_continues_from_the_first(tmp_path: Path) -> None:
    tree = tree_with(tmp_path)
    second = change("src/a.cpp", SIMPLE.after, [(6, ["end"])])
    series = [parse("1", HEADERS + SIMPLE.section), parse("2", HEADERS + second.section)]
    patches.check_chain(series)
    apply_series(tree, series)
    assert (tree / "src" / "a.cpp").read_bytes() == second.after
    with pytest.raises(PatchError, match=r"1 does not continue .* src/a\.cpp"):
        patches.check_chain(series[::-1])


def test_lines_edited_by_hand_are_noticed(tmp_path: Path) -> None:
    patch = parse("p", HEADERS + SIMPLE.section.replace("+x();", "+X();"))
    with pytest.raises(PatchError, match="p was edited by hand"):
        apply_series(tree_with(tmp_path), [patch])


def test_a_moved_hunk_is_noticed(tmp_path: Path) -> None:
    text = SIMPLE.section.replace("@@ -2,0 +4,2 @@", "@@ -1,0 +3,2 @@")
    assert text != SIMPLE.section
    with pytest.raises(PatchError, match="p was edited by hand"):
        apply_series(tree_with(tmp_path), [parse("p", HEADERS + text)])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("+x();", " two", "upstream line"),
        ("+x();", "-two", "upstream line"),
        ("@@ -0,0 +1 @@", "@@ -0,0 +1 @@ int main()", "without context or heading"),
        ("@@ -0,0 +1 @@", "@@ -1 +1 @@", "insertions only"),
        ("@@ -0,0 +1 @@", "@@ -0,0 +2 @@", "do not add up"),
        ("@@ -2,0 +4,2 @@", "@@ -2,0 +4 @@", "`diff --git"),
        ("@@ -2,0 +4,2 @@", "@@ -0,0 +2,2 @@", "not in order"),
        ("+y();\n", "", "ends too early"),
        ("Reason: r\n", "", "lacks Reason"),
        ("Reason: r\n", "Reason: \n", "expected one each of"),
        ("Reason: r\n", "Reason: r\nReason: r\n", "expected one each of"),
        ("Reason: r\n", "Reason: r\nSigned-Off: me\n", "expected one each of"),
        (" b/src/a.cpp", " b/src/b.cpp", "in its place"),
        ("a/src/a.cpp b/src/a.cpp", "a/../a.cpp b/../a.cpp", "below the tree"),
        ("--- a/src/a.cpp", "--- /dev/null", "--- a/src/a.cpp"),
        (" 100644", " 120000", "full blob ids"),
        (f"index {blob_id(BEFORE)}", f"index {blob_id(BEFORE)[:9]}", "full blob ids"),
    ],
)
def test_refused(old: str, new: str, why: str) -> None:
    text = HEADERS + SIMPLE.section
    assert old in text
    with pytest.raises(PatchError, match=f"name.patch, line \\d+: .*{why}"):
        parse("name.patch", text.replace(old, new, 1))


def test_refused_without_a_last_line_end_or_without_a_change() -> None:
    with pytest.raises(PatchError, match="last line has no end"):
        parse("p", (HEADERS + SIMPLE.section)[:-1])
    with pytest.raises(PatchError, match="one section for each file"):
        parse("p", HEADERS)
    with pytest.raises(PatchError, match="one section for each file"):
        parse("p", HEADERS + SIMPLE.section + SIMPLE.section)


def store(directory: Path, series: str, *names: str) -> Path:
    (directory / "patches").mkdir()
    (directory / "patches" / "series").write_text(series)
    for name in names:
        (directory / "patches" / name).write_text(HEADERS + SIMPLE.section)
    return directory


def test_the_series_names_every_patch_once(tmp_path: Path) -> None:
    native = store(tmp_path, "a.patch\nb.patch\n", "a.patch", "b.patch")
    assert [patch.name for patch in read_series(native)] == ["a.patch", "b.patch"]


@pytest.mark.parametrize(
    ("series", "names", "why"),
    [
        ("a.patch\nb.patch\n", ["a.patch"], r"lists b\.patch, but there is no such file"),
        ("a.patch\na.patch\n", ["a.patch"], r"lists a\.patch twice"),
        ("a.patch\n", ["a.patch", "c.patch"], r"not in the series: c\.patch"),
        ("", ["c.diff"], r"not in the series: c\.diff"),
    ],
)
def test_a_wrong_series(tmp_path: Path, series: str, names: list[str], why: str) -> None:
    with pytest.raises(PatchError, match=why):
        read_series(store(tmp_path, series, *names))


def test_no_series(tmp_path: Path) -> None:
    with pytest.raises(PatchError, match=r"cannot read .*series"):
        read_series(tmp_path)


def test_the_hash_covers_names_contents_and_order(tmp_path: Path) -> None:
    first, second = (parse(name, HEADERS + SIMPLE.section) for name in ("1", "2"))
    edited = parse("2", HEADERS.replace("Reason: r", "Reason: q") + SIMPLE.section)
    hashes = {
        patches.series_hash(series)
        for series in ([], [first], [first, second], [second, first], [first, edited])
    }
    assert len(hashes) == 5


def test_the_shipped_series_is_sound() -> None:
    series = read_series(NATIVE)
    patches.check_chain(series)
    added = [
        line
        for patch in series
        for file in patch.files
        for insertion in file.insertions
        for line in insertion.lines
    ]
    assert added, "the stack is what joins our sources to upstream"
    # Every insertion is a call of ours, the include that declares it, or uses what a call answered.
    ours = ("llama_ai::", "llama_ai_expert_", "expert_order", "lazy_mode", "// llama-ai")
    assert [line for line in added if not any(word in line for word in ours)] == []
    includes = {line.split('"')[1] for line in added if line.startswith("#include")}
    assert includes == {"hooks.h", "kv_segment.h", "expert_hook.h"}


def test_every_hook_has_a_call_and_every_call_a_hook() -> None:
    import re

    header = (NATIVE / "src" / "hooks.h").read_text()
    members = set(re.findall(r"\(\*(\w+)\)\(", header))
    # What libllama asks is answered by functions of their own header.
    segment = (NATIVE / "src" / "kv_segment.h").read_text()
    text = "".join(patch.text for patch in read_series(NATIVE))
    calls = set(re.findall(r"llama_ai::(\w+)\(", text))
    assert members <= calls
    assert all(re.search(rf"\b{name}\([^;]*\) \{{", segment) for name in calls - members)
