"""Which models are found, how they are named, and what is said when one is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.errors import ModelNotFoundError
from llama_ai.models import stores
from llama_ai.models.catalog import Entry, resolve, scan
from llama_ai.models.stores import huggingface_cache


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty world: no checkout's models/, a data directory and a cache of our own."""
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(stores, "checkout_dir", lambda: None)
    (tmp_path / "models").mkdir()
    return tmp_path


def put(path: Path, size_bytes: int = 300) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Each path has a content of its own: equal files are one model.
    path.write_bytes(str(path).encode()[::-1].ljust(size_bytes)[:size_bytes])
    return path


def found(places: Path, **environ: str) -> tuple[Entry, ...]:
    return scan([places / "models"], {"HF_HOME": str(places / "hf"), **environ})


def test_shards_are_joined_and_counted_together(places: Path) -> None:
    for number in (1, 2, 3):
        put(places / "models" / f"big-Q4_K_M-0000{number}-of-00003.gguf", number * 10)
    [entry] = found(places)
    assert (entry.name, entry.size_bytes, len(entry.files), entry.quant) == (
        "big-Q4_K_M",
        60,
        3,
        "Q4_K_M",
    )
    assert entry.path.name == "big-Q4_K_M-00001-of-00003.gguf"


@pytest.mark.parametrize("damage", ["absent", "empty"])
def test_a_missing_or_empty_shard_is_named(places: Path, damage: str) -> None:
    put(places / "models" / "big-00001-of-00002.gguf")
    if damage == "empty":
        put(places / "models" / "big-00002-of-00002.gguf", 0)
    [entry] = found(places)
    assert entry.missing == ("part 2 of 2",)
    with pytest.raises(ModelNotFoundError, match="part 2 of 2"):
        resolve("big", [places / "models"], {"HF_HOME": str(places / "hf")})


def test_companions_are_not_models(places: Path) -> None:
    for name in (
        "mmproj-gemma-f16.gguf",
        "gemma-mmproj.gguf",
        "laguna-DFlash-q8.gguf",
        "some-lora-r16.gguf",
    ):
        put(places / "models" / name)
    put(places / "models" / "drafting-table-7b.gguf")
    assert [entry.name for entry in found(places)] == ["drafting-table-7b"]


def test_the_huggingface_cache_keeps_its_repository(places: Path) -> None:
    blob = put(places / "hf" / "hub" / "models--owner--repo-GGUF" / "blobs" / "abc")
    link = places / "hf" / "hub" / "models--owner--repo-GGUF" / "snapshots" / "c0" / "m-Q8_0.gguf"
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    [entry] = found(places)
    assert (entry.repo, entry.quant, entry.path) == ("owner/repo-GGUF", "Q8_0", link)
    environ = {"HF_HOME": str(places / "hf")}
    assert resolve("Owner/Repo-GGUF:q8_0", [], environ).path == link
    assert resolve("owner/repo-GGUF", [], environ).path == link


def test_a_file_reached_twice_is_listed_once(places: Path) -> None:
    target = put(places / "models" / "one.gguf")
    (places / "models" / "sub").mkdir()
    (places / "models" / "sub" / "other.gguf").symlink_to(target)
    assert [entry.name for entry in found(places)] == ["one"]


def test_names_match_exactly_then_by_prefix_then_by_part(places: Path) -> None:
    for name in ("qwen-7b", "qwen-7b-coder", "gemma-3"):
        put(places / "models" / f"{name}.gguf")
    dirs, environ = [places / "models"], {"HF_HOME": str(places / "hf")}
    assert resolve("QWEN-7B", dirs, environ).name == "qwen-7b"
    assert resolve("gem", dirs, environ).name == "gemma-3"
    assert resolve("coder", dirs, environ).name == "qwen-7b-coder"
    with pytest.raises(ModelNotFoundError) as caught:
        resolve("qwen", dirs, environ)
    assert caught.value.hint == "one of: qwen-7b, qwen-7b-coder"


@pytest.mark.parametrize("word", ["no-such", "/no/such/model.gguf", "/etc", "owner/repo:Q4_0"])
def test_what_is_not_there_is_an_error_with_a_next_step(places: Path, word: str) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve(word, [], {"HF_HOME": str(places / "hf")})
    assert caught.value.hint


def test_an_empty_file_and_a_directory_are_not_models(places: Path) -> None:
    empty = put(places / "empty.gguf", 0)
    with pytest.raises(ModelNotFoundError, match="empty file"):
        resolve(str(empty), [], {})
    (places / "folder.gguf").mkdir()
    with pytest.raises(ModelNotFoundError, match="a directory"):
        resolve(str(places / "folder.gguf"), [], {})


def test_any_shard_names_the_whole_model(places: Path) -> None:
    put(places / "x" / "m-00001-of-00002.gguf")
    second = put(places / "x" / "m-00002-of-00002.gguf")
    entry = resolve(str(second), [], {})
    assert entry.path.name == "m-00001-of-00002.gguf"
    assert len(entry.files) == 2


def test_a_broken_link_does_not_hide_the_others(places: Path) -> None:
    put(places / "models" / "good.gguf")
    (places / "models" / "bad.gguf").symlink_to(places / "nowhere")
    names = {entry.name: entry.missing for entry in found(places)}
    assert names == {"good": (), "bad": ("part 1 of 1",)}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"LLAMA_CACHE": "/a", "HF_HUB_CACHE": "/b", "HF_HOME": "/d"}, "/a"),
        ({"HF_HUB_CACHE": "/b", "HUGGINGFACE_HUB_CACHE": "/c"}, "/b"),
        ({"HUGGINGFACE_HUB_CACHE": "/c", "HF_HOME": "/d"}, "/c"),
        ({"HF_HOME": "/d", "XDG_CACHE_HOME": "/e"}, "/d/hub"),
        ({"XDG_CACHE_HOME": "/e"}, "/e/huggingface/hub"),
    ],
)
def test_the_order_of_the_huggingface_cache(environ: dict[str, str], expected: str) -> None:
    assert huggingface_cache(environ) == Path(expected)
