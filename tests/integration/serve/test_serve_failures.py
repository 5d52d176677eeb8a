"""What cannot work is said in a line or two, with the right exit code, and not tried for ever."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.engine

Cli = Any  # the classes of conftest.py, which cannot be imported
Server = Any


def test_a_missing_model(cli: Cli) -> None:
    done = cli.run("serve", "/no/such/model.gguf", "--engine", str(cli.engine))
    assert done.returncode == 4
    assert "/no/such/model.gguf" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("size", [0, 1000, 50_000_000])
def test_a_truncated_model(cli: Cli, demo_model: Path, tmp_path: Path, size: int) -> None:
    broken = tmp_path / "broken.gguf"
    with demo_model.open("rb") as source:
        broken.write_bytes(source.read(size))
    done = cli.run("serve", str(broken), "--engine", str(cli.engine), "--backend", "cpu")
    assert done.returncode == 4
    assert "broken.gguf" in done.stderr
    assert "Traceback" not in done.stderr
    assert cli.run("status").returncode == 1


def test_a_flag_that_the_engine_refuses_is_not_a_loop(serve: Callable[..., Server]) -> None:
    server = serve("--", "--ctx-checkpoints", "many")
    assert server.wait_end() == 1
    assert "the engine refused its command line" in server.output
    assert "--ctx-checkpoints" in server.output
    assert server.output.count("loading the model") == 1


def test_a_model_that_goes_away_ends_the_restarts(
    serve: Callable[..., Server], cli: Cli, demo_model: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.gguf"
    shutil.copyfile(demo_model, mine)
    server = serve(path=mine)
    record = server.wait_ready()
    mine.unlink()
    assert record["restarts"] == 0
    os.kill(record["engine_pid"], signal.SIGKILL)
    assert server.wait_end() == 4
    assert "mine.gguf" in server.output
    status = cli.run("status", "--json")
    assert status.returncode == 1
    (shown,) = json.loads(status.stdout)["instances"]
    assert shown["state"] == "failed"
    assert shown["last_failure"]["kind"] == "bad-model"
    assert shown["engine_pid"] is None
    assert cli.run("stop").returncode == 0
    assert cli.run("status", "--json").stdout.count("failed") == 0


def test_an_engine_that_is_none(cli: Cli, demo_model: Path) -> None:
    done = cli.run("serve", str(demo_model), "--engine", "/no/such/engine")
    assert done.returncode == 5
    assert "/no/such/engine" in done.stderr
    assert cli.files == []
