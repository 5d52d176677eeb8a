"""Disks that are full, read-only or gone: the tier is lost, the server is not."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.kv.conftest import dumped, numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.kv.conftest import Server

    Zoo = Callable[[str], tuple[Path, tuple[str, ...]]]

pytestmark = pytest.mark.engine

OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")


def fill(path: Path) -> None:
    """Until there is no room for a byte more."""
    with path.open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        stream.writelines(itertools.repeat(bytes(1 << 16)))


def test_a_small_disk_that_others_fill(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """A tmpfs of 6 MB: half of what is free is ours; then somebody else takes the rest."""
    directory = tmp_path / "small"
    directory.mkdir()
    mount = f"mount -t tmpfs -o size=6m,mode=700 none {directory}"
    able = subprocess.run([*OWN_MOUNTS, "sh", "-c", mount], capture_output=True, check=False)
    if able.returncode != 0:
        pytest.skip("this system lets nobody make mounts of their own")
    model, words = zoo("dense")
    shell = ("sh", "-c", f'{mount} && exec "$0" "$@"')
    server = serve(model, *words, "--kv-dir", str(directory / "kv"), before=(*OWN_MOUNTS, *shell))
    inside = f"/proc/{server.process.pid}/root{directory}"
    fresh = serve(model, *words, "--cache-ram", "0")
    for seed in range(8):
        assert server.answer(numbers(800, seed))[0] == fresh.answer(numbers(800, seed))[0]
        state = server.wait_written()
        room = os.statvfs(inside)
        assert state["bytes"] <= (room.f_bavail * room.f_frsize + state["bytes"]) / 2 + 65536
    state = server.cache()
    assert state["writing"] is True
    assert state["evicted_files"] > 0
    assert state["files"] > 0
    fill(Path(inside) / "others")
    for seed in range(20, 24):
        assert server.answer(numbers(800, seed))[0] == fresh.answer(numbers(800, seed))[0]
    after = server.wait_written()
    assert after["bytes"] <= state["bytes"], dumped(after)
    assert server.output.count("kv-cache: writing failed") <= 1
    server.stop()
    fresh.stop()


def test_a_directory_that_goes_away(zoo: Zoo, serve: Callable[..., Server], tmp_path: Path) -> None:
    model, words = zoo("hybrid")
    directory = tmp_path / "kv"
    server = serve(model, *words, "--kv-dir", str(directory))
    first, _ = server.answer(numbers(500, 1))
    server.wait_written()
    shutil.rmtree(directory)
    for seed in (2, 3, 4):
        server.answer(numbers(500, seed))
        server.wait_written()
    assert server.cache()["writing"] is False
    assert server.output.count("kv-cache: writing failed (No such file or directory)") == 1
    said, _ = server.answer(numbers(500, 1))
    assert said == first
    server.stop()
