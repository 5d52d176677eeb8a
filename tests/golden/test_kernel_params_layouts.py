"""The helper itself on the layouts of real systems, step by step, against recorded transcripts.

A layout (``kernel_params/layouts/*.layout``) names its files and the steps; the transcript
(``kernel_params/expected/*.txt``) holds what the helper said and every file that changed. Write
the transcripts again with ``UPDATE_GOLDENS=1 pytest tests/golden``, and read the difference.
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent / "kernel_params"
HELPER = Path(__file__).resolve().parents[2] / "scripts" / "kernel-params"
OURS = "var/lib/llama-ai"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One system: its files, and what is done to it."""

    files: dict[str, str]
    first: list[str]
    second: list[str]
    foreign: str

    @classmethod
    def read(cls, path: Path) -> Layout:
        head, *parts = re.split(r"^== ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        steps = dict(line[2:].split(" ", 1) for line in head.splitlines() if line.startswith("! "))
        files = {}
        for part in parts:
            name, _, content = part.partition("\n")
            files[name] = content
        return cls(
            files=files,
            first=steps["first"].split(),
            second=steps["second"].split(),
            foreign=steps["foreign"],
        )

    def write(self, root: Path) -> None:
        for name, content in self.files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content, encoding="utf-8")

    def edit(self, content: str | None) -> str:
        """The other's edit, on whatever the file holds now."""
        _, how, rest = self.foreign.split(" ", 2)
        if how == "append":
            return (content or "") + rest + "\n"
        old, new = rest.split(" => ")
        assert content is not None
        assert old in content
        return content.replace(old, new, 1)

    @property
    def edited(self) -> str:
        return self.foreign.split(" ", 1)[0]


def contents(root: Path) -> dict[str, str]:
    """Every file but our own records."""
    return {
        name: path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*"))
        if path.is_file() and not (name := str(path.relative_to(root))).startswith(OURS)
    }


def call(root: Path, *words: str) -> str:
    """Run the helper as a user would, and return what it said, without times and places."""
    ended = subprocess.run(
        [sys.executable, "-I", str(HELPER), *words, "--root", str(root)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    text = f"$ kernel-params {' '.join(words)}\n{ended.stdout}"
    if ended.stderr:
        text += "".join(f"stderr: {line}\n" for line in ended.stderr.splitlines())
    text += f"exit {ended.returncode}\n"
    text = re.sub(r"[0-9]{8}T[0-9]{6}Z(-[0-9]+)?", "STAMP", text.replace(str(root), "ROOT"))
    return re.sub(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z", "TIME", text)


def changes(before: dict[str, str], after: dict[str, str]) -> str:
    """What changed on disk, as one diff."""
    text = ""
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        lines = difflib.unified_diff(
            (old or "").splitlines(keepends=True),
            (new or "").splitlines(keepends=True),
            name if old is not None else "(absent)",
            name if new is not None else "(absent)",
        )
        text += "".join(lines)
    return "".join(f"disk {line}\n" for line in text.splitlines()) or "disk unchanged\n"


@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("layouts/*.layout")))
def test_layout(name: str, tmp_path: Path) -> None:
    layout = Layout.read(HERE / "layouts" / f"{name}.layout")
    layout.write(tmp_path)
    original = contents(tmp_path)
    transcript = call(tmp_path, "show")

    def step(*words: str) -> tuple[dict[str, str], dict[str, str]]:
        nonlocal transcript
        before = contents(tmp_path)
        transcript += "\n" + call(tmp_path, *words, "--yes")
        after = contents(tmp_path)
        transcript += changes(before, after)
        return before, after

    step("apply", *layout.first)
    before, after = step("apply", *layout.first)
    assert before == after, "applying the same again must change nothing"
    step("apply", *layout.second)

    target = tmp_path / layout.edited
    here = target.read_text(encoding="utf-8") if target.exists() else None
    target.write_text(layout.edit(here), encoding="utf-8")
    transcript += f"\n(somebody else edits {layout.foreign})\n"

    step("revert")
    expected = dict(original)
    untouched = original.get(layout.edited)
    expected[layout.edited] = layout.edit(untouched)
    final = contents(tmp_path)
    if untouched is None:
        # The other's words stand in a file of ours: they stay, ours go.
        kept = final.pop(layout.edited)
        assert expected.pop(layout.edited) in kept
        assert "pages_limit" not in kept
    assert final == expected, "only the other's edit may be left"

    recorded = HERE / "expected" / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDENS"):
        recorded.write_text(transcript, encoding="utf-8")
    assert transcript == recorded.read_text(encoding="utf-8")


def test_enough_layouts() -> None:
    assert len(list(HERE.glob("layouts/*.layout"))) >= 10
    stems = {path.stem for path in HERE.glob("layouts/*.layout")}
    assert stems == {path.stem for path in HERE.glob("expected/*.txt")}
