"""Models on disk: single files, split ones, links, and what is no model at all."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ai.errors import ModelNotFoundError
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.header import read_header, shard_paths
from tests.support.gguf_files import STR, U16, U32, File, llama, llama_kv, llama_tensors


def split(
    folder: Path, name: str = "m", *, count: int = 3, first_is_metadata: bool = True
) -> list[Path]:
    """The small model in parts, as upstream's gguf-split writes them."""
    tensors = llama_tensors()
    parts = count - first_is_metadata
    groups = [tensors[i::parts] for i in range(parts)]
    if first_is_metadata:
        groups.insert(0, [])
    paths = []
    for no, group in enumerate(groups):
        kv = llama_kv() if no == 0 else {}
        kv |= {
            "split.no": (U16, no),
            "split.count": (U16, count),
            "split.tensors.count": (U32, len(tensors)),
        }
        path = folder / f"{name}-{no + 1:05d}-of-{count:05d}.gguf"
        paths.append(File(kv=kv, tensors=group).write(path))
    return paths


def test_a_single_file(tmp_path: Path) -> None:
    path = llama().write(tmp_path / "m.gguf")
    header = read_header(path)
    assert header.path == path
    assert header.size_bytes == path.stat().st_size
    assert header.kv["general.architecture"] == "llama"
    assert [shard.path for shard in header.shards] == [path]


@pytest.mark.parametrize("first_is_metadata", [True, False])
@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_part_of_a_split_model_gives_the_same(
    tmp_path: Path, given: int, first_is_metadata: bool
) -> None:
    paths = split(tmp_path, first_is_metadata=first_is_metadata)
    header = read_header(paths[given])
    assert header == read_header(paths[0])
    assert header.path == paths[0]
    assert header.kv["llama.block_count"] == 2
    assert header.size_bytes == sum(path.stat().st_size for path in paths)
    assert {tensor.name for tensor in header.tensors} == {name for name, *_ in llama_tensors()}
    for tensor in header.tensors:
        shard = header.shards[tensor.shard]
        assert shard.data_offset <= tensor.offset
        assert tensor.offset + tensor.size_bytes <= shard.size_bytes


def test_parts_in_a_hugging_face_cache_are_beside_the_link(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    names = []
    for number, path in enumerate(split(tmp_path)):
        blob = blobs / f"{number:064x}"
        path.rename(blob)
        link = snapshot / path.name
        link.symlink_to(os.path.relpath(blob, snapshot))
        names.append(link)
    header = read_header(names[1])
    assert [shard.path for shard in header.shards] == names


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[2].unlink()
    with pytest.raises(ModelNotFoundError, match="part 3 of 3 is missing") as caught:
        read_header(paths[0])
    assert not isinstance(caught.value, BadModelFileError)


def test_a_renamed_part_is_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    other = paths[1].rename(tmp_path / "renamed.gguf")
    with pytest.raises(BadModelFileError, match="does not say which"):
        read_header(other)


def test_parts_in_the_wrong_order_are_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    aside = paths[1].rename(tmp_path / "aside")
    paths[2].rename(paths[1])
    aside.rename(paths[2])
    with pytest.raises(BadModelFileError, match="part"):
        read_header(paths[0])


def test_parts_of_two_models_are_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    kv = {"split.no": (U16, 2), "split.count": (U16, 3)}
    File(kv=kv, tensors=[("other.weight", [8], 0, None)]).write(paths[2])
    with pytest.raises(BadModelFileError, match="11 tensors where 20"):
        read_header(paths[0])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    paths = split(tmp_path)
    kv = {"split.no": (U16, 2), "split.count": (U16, 3)}
    twice = [llama_tensors()[0], *llama_tensors()[3::2]]
    assert len(twice) == 10
    File(kv=kv, tensors=twice).write(paths[2])
    with pytest.raises(BadModelFileError, match="a tensor appears in two parts"):
        read_header(paths[0])


def test_parts_differ_in_byte_order(tmp_path: Path) -> None:
    paths = split(tmp_path)
    kv = {"split.no": (U16, 2), "split.count": (U16, 3)}
    File(kv=kv, tensors=llama_tensors()[1::2], order=">").write(paths[2])
    with pytest.raises(BadModelFileError):
        read_header(paths[0])


def test_split_keys_must_be_numbers(tmp_path: Path) -> None:
    path = replace(llama(), kv=llama_kv(more={"split.count": (STR, "3")})).write(
        tmp_path / "m.gguf"
    )
    with pytest.raises(BadModelFileError, match=r"split\.count"):
        read_header(path)


def test_a_name_alone_does_not_make_a_part(tmp_path: Path) -> None:
    path = llama().write(tmp_path / "m-00001-of-00002.gguf")
    assert read_header(path).shards[0].path == path


def test_names_of_parts() -> None:
    assert [path.name for path in shard_paths(Path("/a/m-00002-of-00003.gguf"))] == [
        "m-00001-of-00003.gguf",
        "m-00002-of-00003.gguf",
        "m-00003-of-00003.gguf",
    ]
    for single in ("m.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf", "m-1-of-3.gguf"):
        assert shard_paths(Path(single)) == (Path(single),)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("fifo", "missing", ".", "loop", "n" * 300, "nul\0"):
        with pytest.raises(ModelNotFoundError) as caught:
            read_header(tmp_path / name)
        assert caught.value.hint
        assert caught.value.exit_code == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file(tmp_path: Path) -> None:
    path = llama().write(tmp_path / "m.gguf")
    path.chmod(0)
    with pytest.raises(ModelNotFoundError, match="cannot be opened"):
        read_header(path)
