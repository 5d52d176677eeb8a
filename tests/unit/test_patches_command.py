"""``scripts/patches`` on a small upstream of the test's own: import, edit, export, check."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
MESSAGE = "server: call us\n\nReason: we want to know\nUpstream-Reference: f\nRemove-When: never\n"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """An upstream tree, a native directory with a store, and a place for the work tree."""

    top: Path

    @property
    def source(self) -> Path:
        return self.top / "source"

    @property
    def native(self) -> Path:
        return self.top / "native"

    @property
    def tree(self) -> Path:
        return self.top / "tree"

    def run(self, command: str, *words: str, cache: str = "cache") -> tuple[int, str]:
        """The exit code and all output of ``scripts/patches``."""
        done = subprocess.run(
            [sys.executable, CHECKOUT / "scripts" / "patches", command,
             "--native", self.native, *words],
            capture_output=True, text=True, check=False,
            env={**os.environ, "XDG_CACHE_HOME": str(self.top / cache)},
        )  # fmt: skip
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    def ok(self, command: str, *words: str) -> str:
        code, output = self.run(command, *words)
        assert code == 0, output
        return output

    def import_(self) -> None:
        self.ok("import", "--source", str(self.source), "--tree", str(self.tree))

    def export(self) -> None:
        self.ok("export", "--tree", str(self.tree))

    def check(self) -> tuple[int, str]:
        return self.run("check", "--source", str(self.source))

    def git(self, *words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        return subprocess.run(
            ["git", "-C", self.tree, *identity, *words], capture_output=True, text=True, check=True
        ).stdout

    def commit(self, file: str, old: str, new: str, message: str = MESSAGE) -> None:
        path = self.tree / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new, 1))
        self.git("commit", "--all", "--message", message)

    def stored(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in (self.native / "patches").iterdir()}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(top=tmp_path)
    made.source.mkdir()
    (made.source / "a.cpp").write_text("int main() {\n    one();\n    two();\n}\n")
    (made.source / "b.cpp").write_text("b();\n" * 5)
    (made.source / ".gitignore").write_text("b.cpp\n")
    (made.source / ".git").write_text("gitdir: ../nowhere\n")
    (made.native / "patches").mkdir(parents=True)
    (made.native / "patches" / "series").write_text("")
    shutil.copy(CHECKOUT / "native" / "upstream.toml", made.native)
    made.import_()
    return made


@pytest.fixture
def stack(bench: Bench) -> Bench:
    """Two patches, exported."""
    bench.commit("a.cpp", "    two();\n", "    ours();\n    two();\n")
    bench.commit("a.cpp", "}\n", "}\n// end\n", MESSAGE.replace("call us", "say where it ends"))
    bench.export()
    return bench


def test_export_writes_insertions_and_a_series(stack: Bench) -> None:
    stored = stack.stored()
    assert stored["series"] == ("0001-server-call-us.patch\n0002-server-say-where-it-ends.patch\n")
    first = stored["0001-server-call-us.patch"].splitlines()
    assert first[:4] == [
        "Subject: server: call us",
        "Reason: we want to know",
        "Upstream-Reference: f",
        "Remove-When: never",
    ]
    assert first[-2:] == ["@@ -2,0 +3 @@", "+    ours();"]
    assert stack.check() == (0, "2 patches; they apply exactly and export unchanged\n")


def test_export_after_import_is_the_identity(stack: Bench) -> None:
    before = stack.stored()
    stack.import_()  # the tree exists, is clean and exported: it is made again
    assert stack.git("log", "--format=%s", "llama-ai-base..") == (
        "server: say where it ends\nserver: call us\n"
    )
    stack.export()
    assert stack.stored() == before
    assert not (stack.tree / ".git").is_file()
    assert stack.git("ls-files", "b.cpp"), "files that upstream ignores belong to the source too"


def test_a_dropped_commit_drops_its_patch(stack: Bench) -> None:
    stack.git("reset", "--hard", "HEAD~1")
    stack.export()
    assert set(stack.stored()) == {"series", "0001-server-call-us.patch"}


@pytest.mark.parametrize(
    ("file", "old", "new", "message", "why"),
    [
        ("a.cpp", "    two();\n", "", MESSAGE, "does more than insert lines"),
        ("a.cpp", "two()", "2()", MESSAGE, "does more than insert lines"),
        ("a.cpp", "}\n", "}\nx\n", MESSAGE.replace("Reason", "Because"), "lacks Reason"),
        ("a.cpp", "}\n", "}\nx\n", "only a subject", "lacks Reason, Upstream-Reference, Rem"),
    ],
)
def test_export_refuses(
    bench: Bench, file: str, old: str, new: str, message: str, why: str
) -> None:
    bench.commit(file, old, new, message)
    code, output = bench.run("export", "--tree", str(bench.tree))
    assert code == 5
    assert why in output
    assert bench.stored() == {"series": ""}


def test_export_refuses_new_files_and_uncommitted_changes(bench: Bench) -> None:
    (bench.tree / "new.cpp").write_text("x\n")
    code, output = bench.run("export", "--tree", str(bench.tree))
    assert (code, "not committed" in output) == (2, True)
    bench.git("add", "new.cpp")
    bench.git("commit", "--message", MESSAGE)
    code, output = bench.run("export", "--tree", str(bench.tree))
    assert (code, "does more than insert lines" in output) == (5, True)


def test_import_keeps_work_that_is_not_in_the_store(stack: Bench) -> None:
    stack.commit("a.cpp", "    one();\n", "    one();\n    three();\n")
    code, output = stack.run("import", "--source", str(stack.source), "--tree", str(stack.tree))
    assert (code, "holds commits that are not in the store" in output) == (2, True)
    (stack.tree / "a.cpp").write_text("")
    code, output = stack.run("import", "--source", str(stack.source), "--tree", str(stack.tree))
    assert (code, "changes that are not committed" in output) == (2, True)
    code, output = stack.run("import", "--source", str(stack.source), "--tree", str(stack.source))
    assert (code, "is not a work tree of this command" in output) == (2, True)


def test_check_compares_with_a_work_tree(stack: Bench) -> None:
    words = ("--source", str(stack.source), "--tree", str(stack.tree))
    assert stack.run("check", *words)[0] == 0
    stack.commit("a.cpp", "    one();\n", "    one();\n    three();\n")
    code, output = stack.run("check", *words)
    assert (code, "is not what an export writes" in output) == (5, True)
    stack.git("reset", "--hard", "HEAD~2")
    code, output = stack.run("check", *words)
    assert (code, "an export does not write 0002" in output) == (5, True)


def test_check_finds_every_kind_of_damage(stack: Bench) -> None:
    store = stack.native / "patches"
    first = store / "0001-server-call-us.patch"
    series = (store / "series").read_text()
    text = first.read_text()

    def expect(why: str) -> None:
        code, output = stack.check()
        assert (code, why in output) == (5, True), output

    (store / "series").write_text(series + "0003-gone.patch\n")
    expect("lists 0003-gone.patch, but there is no such file")
    (store / "series").write_text(series + series)
    expect("twice")
    (store / "series").write_text("".join(reversed(series.splitlines(keepends=True))))
    expect("does not continue from the patch before it")
    (store / "series").write_text(first.name + "\n")
    expect("not in the series: 0002-server-say-where-it-ends.patch")
    (store / "series").write_text(series)

    first.write_text(text.replace("+    ours();", "+    theirs();"))
    expect("was edited by hand")
    first.write_text(text.replace("@@ -2,0 +3 @@", "@@ -1,0 +2 @@"))
    expect("was edited by hand")
    first.write_text(text.replace("@@ -2,0 +3 @@", "@@ -2,0 +3 @@ int main() {"))
    expect("without context or heading")
    first.write_text(text.replace("+    ours();", " int main() {\n+    ours();"))
    expect("an upstream line in the store")
    first.write_text(text.replace("Subject: server: call us", "Subject: server: call them"))
    expect("should be called 0001-server-call-them.patch")
    first.write_text(text)
    assert stack.check()[0] == 0


def test_check_finds_a_source_that_moved_on(stack: Bench) -> None:
    (stack.source / "a.cpp").write_text("// new\n" + (stack.source / "a.cpp").read_text())
    code, output = stack.check()
    assert code == 5
    assert "0001-server-call-us.patch does not apply: a.cpp is not the file" in output


def test_check_without_a_source_says_what_it_did_not_do(stack: Bench) -> None:
    assert stack.run("check") == (
        0,
        "2 patches; the pinned source is not in the cache: not applied\n",
    )
    archive = stack.top / "cache" / "llama-ai" / "src" / "llama_cpp_python-0.3.36.tar.gz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(b"something else")
    code, output = stack.run("check")
    assert (code, "is not the pinned source" in output) == (5, True)


def test_neither_the_users_git_settings_nor_an_outer_repository_matter(
    stack: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stack.stored()
    settings = stack.top / "gitconfig"
    settings.write_text(
        "[diff]\n\tnoprefix = true\n\tcontext = 9\n\tmnemonicPrefix = true\n"
        "[commit]\n\tgpgSign = true\n[core]\n\tautocrlf = true\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(stack.top / "elsewhere"))
    stack.import_()
    stack.export()
    assert stack.stored() == before
    assert stack.check()[0] == 0
