"""Fetching the pinned source through pip: the real pip, with a small package on local disk."""

from __future__ import annotations

import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from llama_ai.engine.events import Step, ignore
from llama_ai.engine.fetch import fetch
from llama_ai.engine.pin import Pin
from llama_ai.errors import EngineNotReadyError

if TYPE_CHECKING:
    from pathlib import Path

NAME = "tiny-engine-source"
# A build backend that cannot work: what pip fetches must be kept all the same.
PYPROJECT = """\
[build-system]
requires = ["a-package-that-exists-nowhere"]
build-backend = "scikit_build_core.build"
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that pip takes packages from, instead of any index."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    return shelf


def make_sdist(shelf: Path, content: bytes = b"int main() {}\n") -> Pin:
    path = shelf / "tiny_engine_source-1.0.tar.gz"
    top = "tiny_engine_source-1.0"
    files = {
        f"{top}/PKG-INFO": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n".encode(),
        f"{top}/pyproject.toml": PYPROJECT.encode(),
        f"{top}/vendor/llama.cpp/main.cpp": content,
    }
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return Pin(
        commit="0" * 40,
        package=NAME,
        version="1.0",
        filename=path.name,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        tree=f"{top}/vendor/llama.cpp",
    )


def test_brings_the_file_although_its_build_backend_cannot_run(shelf: Path, tmp_path: Path) -> None:
    pin = make_sdist(shelf)
    steps: list[Step] = []
    found = fetch(pin, tmp_path, steps.append)
    assert found == tmp_path / pin.filename
    assert found.read_bytes() == (shelf / pin.filename).read_bytes()
    assert any(step.stage == "fetch" for step in steps)
    assert not list(tmp_path.glob(".fetch-*"))


def test_a_verified_file_is_not_fetched_again(shelf: Path, tmp_path: Path) -> None:
    pin = make_sdist(shelf)
    fetch(pin, tmp_path, ignore)
    (shelf / pin.filename).unlink()
    assert fetch(pin, tmp_path, ignore).is_file()


def test_a_damaged_file_in_the_cache_is_fetched_again(shelf: Path, tmp_path: Path) -> None:
    pin = make_sdist(shelf)
    (tmp_path / pin.filename).write_bytes(b"cut short")
    assert fetch(pin, tmp_path, ignore).read_bytes() == (shelf / pin.filename).read_bytes()


def test_another_file_than_the_pin_s_stops_with_both_hashes(shelf: Path, tmp_path: Path) -> None:
    pin = make_sdist(shelf)
    make_sdist(shelf, content=b"int main() { return 1; }\n")
    served = hashlib.sha256((shelf / pin.filename).read_bytes()).hexdigest()
    with pytest.raises(EngineNotReadyError) as caught:
        fetch(pin, tmp_path, ignore)
    assert pin.sha256 in caught.value.message
    assert served in caught.value.message
    assert not (tmp_path / pin.filename).exists()


def test_no_network_says_what_else_to_do(shelf: Path, tmp_path: Path) -> None:
    pin = make_sdist(shelf)
    (shelf / pin.filename).unlink()
    with pytest.raises(EngineNotReadyError, match="cannot fetch the engine's source") as caught:
        fetch(pin, tmp_path, ignore)
    assert caught.value.exit_code == 5
    assert caught.value.hint is not None
    assert "--source DIR" in caught.value.hint
