"""Reading below a root: failures are None, zero is zero, nothing leads out."""

from __future__ import annotations

import errno
import io
import os
import tarfile
from pathlib import Path

import pytest

from llama_ai.errors import UsageError
from llama_ai.hardware.root import MAX_PLAUSIBLE, Root, open_root, parse_int


def test_absent_empty_and_zero_stay_apart(tmp_path: Path) -> None:
    (tmp_path / "zero").write_text("0\n")
    (tmp_path / "empty").write_text("")
    root = Root(tmp_path)
    assert root.read_int("zero") == 0
    assert root.read_int("empty") is None
    assert root.read_text("empty") == ""
    assert root.read_text("absent") is None
    assert root.read_int("absent") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("0x1002", 0x1002),
        ("0XfF", 255),
        (str(MAX_PLAUSIBLE), MAX_PLAUSIBLE),
        (str(MAX_PLAUSIBLE + 1), None),
        ("-1", None),
        ("1_000", None),
        ("١٢", None),
        ("9" * 5000, None),
        ("0x" + "f" * 17, None),
        ("1.5", None),
        ("", None),
        (None, None),
    ],
)
def test_numbers(text: str | None, value: int | None) -> None:
    assert parse_int(text) == value


@pytest.mark.parametrize(
    "code",
    [
        errno.EINVAL,
        errno.ENODATA,
        errno.EIO,
        errno.EBUSY,
        errno.EACCES,
        errno.ENOENT,
        errno.ENODEV,
    ],
)
def test_a_read_that_fails_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "power1_average").write_text("5\n")

    def refuse(handle: int, count: int) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "read", refuse)
    assert Root(tmp_path).read_int("power1_average") is None


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    root = Root(tmp_path)
    assert root.read_text("fifo") is None
    assert root.read_text("directory") is None
    assert root.read_text("a\0b") is None
    assert root.listdir("fifo") == []


def test_a_long_file_is_cut(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"a" * 5000)
    assert len(Root(tmp_path).read_bytes("long", limit=1000) or b"") == 1000


def test_links_stay_inside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    top = tmp_path / "root"
    (top / "sys/deep").mkdir(parents=True)
    (top / "secret").write_text("inside")
    (top / "sys/absolute").symlink_to("/secret")
    (top / "sys/deep/up").symlink_to("../../../../../../secret")
    (top / "sys/device").symlink_to("deep")
    (top / "sys/deep/vendor").write_text("0x1002")
    (top / "loop").symlink_to("loop")
    root = Root(top)
    assert root.read_text("sys/absolute") == "inside"
    assert root.read_text("sys/deep/up") == "inside"
    assert root.read_text("../secret") == "inside"
    assert root.read_text("sys/device/vendor") == "0x1002"
    assert root.read_text("loop") is None
    assert root.read_text("loop/x") is None
    assert root.link_name("sys/device") == "deep"
    assert root.link_name("sys/deep") is None


def test_words_are_one_printable_line(tmp_path: Path) -> None:
    for name, text in {"good": "AMD\n", "two": "a\nb", "bell": "a\x07", "empty": "\n"}.items():
        (tmp_path / name).write_text(text)
    root = Root(tmp_path)
    assert root.read_word("good") == "AMD"
    assert [root.read_word(name) for name in ("two", "bell", "empty", "no")] == [None] * 4


def write_tar(path: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_a_tarball_is_a_root(tmp_path: Path) -> None:
    plain = write_tar(tmp_path / "a.tar.gz", [(tarfile.TarInfo("proc/version"), b"Linux\n")])
    nested = write_tar(tmp_path / "b.tar.gz", [(tarfile.TarInfo("m/proc/version"), b"Linux\n")])
    for path in (plain, nested):
        with open_root(path) as root:
            assert root.read_text("proc/version") == "Linux"
            assert not root.is_live
            place = root.directory
        assert not place.exists()


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../escaped"),
        link("link", "/etc/passwd"),
        link("link", "../../../x"),
    ],
)
def test_a_tarball_that_leads_out_is_refused(tmp_path: Path, member: tarfile.TarInfo) -> None:
    path = write_tar(tmp_path / "bad.tar.gz", [(member, b"")])
    with pytest.raises(UsageError), open_root(path):
        pass
    assert not (tmp_path / "escaped").exists()


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_ai.hardware.root.TAR_LIMIT_BYTES", 1000)
    path = write_tar(tmp_path / "bomb.tar.gz", [(tarfile.TarInfo("zeros"), b"\0" * 2000)])
    with pytest.raises(UsageError, match="too large"), open_root(path):
        pass


def test_what_is_no_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no archive")
    for path in (tmp_path / "text", tmp_path / "absent"):
        with pytest.raises(UsageError), open_root(path):
            pass


def test_no_root_is_this_machine() -> None:
    with open_root(None) as root:
        assert root.is_live
