"""A disk that fails costs the request that needs it, not the server and not the next one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from tests.integration.experts.conftest import PLAIN, RESIDENT
from tests.integration.kv.conftest import numbers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.kv.conftest import Server

    Serve = Callable[..., Server]

pytestmark = pytest.mark.engine

SMALL = (*RESIDENT, "--expert-budget-mib", "2", "--expert-prefetch-threads", "2")


def refused(server: Server, seed: int) -> str:
    """The error that a request gets."""
    body = {"prompt": numbers(300, seed), "n_predict": 8, "temperature": 0}
    response = server.http.post("/completion", json=body)
    assert response.status_code == 500, response.text
    message: str = response.json()["error"]["message"]
    return message


def expected_answer(serve: Serve, model: Path) -> list[int]:
    plain = serve(model, *PLAIN)
    tokens = plain.answer(numbers(300, 1), 12)[0]
    plain.stop()
    return tokens


def test_reads_that_fail(
    tiny: Path, serve: Serve, shim: tuple[dict[str, str], Path], tmp_path: Path
) -> None:
    expected = expected_answer(serve, tiny)
    environment, order = shim
    kept = tmp_path / "kv"
    server = serve(tiny, *SMALL, "--kv-dir", str(kept), env=environment)
    assert server.answer(numbers(300, 1), 12)[0] == expected
    order.write_text(f"e {errno.EIO}")
    for seed in (2, 3):
        message = refused(server, seed)
        assert "tiny.gguf at byte " in message
        assert os.strerror(errno.EIO) in message
    assert server.http.get("/health").status_code == 200
    assert os.strerror(errno.EIO) in server.http.get("/residency").json()["last_error"]
    order.unlink()
    assert server.answer(numbers(300, 1), 12)[0] == expected
    # Nothing of what went wrong was kept.
    for seed in (2, 3):
        assert server.whole_answer(numbers(300, seed), 4)["timings"]["cache_n"] < 256
    server.stop()


def test_a_slow_disk(tiny: Path, serve: Serve, shim: tuple[dict[str, str], Path]) -> None:
    expected = expected_answer(serve, tiny)
    environment, order = shim
    server = serve(tiny, *SMALL, env=environment)
    order.write_text("s 5")
    assert server.answer(numbers(300, 1), 12)[0] == expected
    assert server.http.get("/residency").json()["stall_seconds"] > 0
    server.stop()


@pytest.mark.parametrize("budget", ["2", "0"])
def test_a_file_that_is_cut_short(tiny_copy: Path, serve: Serve, budget: str) -> None:
    whole = tiny_copy.read_bytes()
    expected = expected_answer(serve, tiny_copy)
    server = serve(tiny_copy, *RESIDENT, "--expert-budget-mib", budget)
    assert server.answer(numbers(300, 1), 12)[0] == expected
    with tiny_copy.open("r+b") as file:
        file.truncate(len(whole) // 2)
    assert "has become shorter since the model was loaded" in refused(server, 2)
    with tiny_copy.open("r+b") as file:
        file.write(whole)
    assert server.answer(numbers(300, 1), 12)[0] == expected
    server.stop()


def test_another_model_in_its_place(tiny_copy: Path, serve: Serve) -> None:
    """Written over while it is served, as an interrupted download that begins again would."""
    expected = expected_answer(serve, tiny_copy)
    server = serve(tiny_copy, *SMALL)
    assert server.answer(numbers(300, 1), 12)[0] == expected
    with tiny_copy.open("r+b") as file:
        file.write(bytes(1 << 20))
    assert "was changed since the model was loaded" in refused(server, 2)
    server.stop()
