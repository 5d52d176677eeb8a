"""Starts ``llama-ai serve`` as a user does, on the real engine and a real model.

``engine`` and ``demo_model`` come from the directory above.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx
import pytest

from llama_ai.supervisor.identity import start_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_ai.engine.capabilities import EngineInfo

CHECKOUT = Path(__file__).resolve().parents[3]
PATIENCE_S = 120
SMALL = ("--ctx-size", "2048", "--parallel", "1", "--cache-ram", "64", "--backend", "cpu")


class Cli:
    """The command ``llama-ai`` in directories of its own."""

    def __init__(self, directory: Path, engine: Path) -> None:
        self.runtime = directory / "runtime"
        self.runtime.mkdir(mode=0o700)
        self.state = directory / "state"
        self.engine = engine
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("LLAMA_", "GGML_"))
        }
        self.env = {
            **kept,
            "XDG_RUNTIME_DIR": str(self.runtime),
            "XDG_STATE_HOME": str(self.state),
            "XDG_CONFIG_HOME": str(directory / "config"),
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONWARNINGS": "error",
        }

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "llama_ai", *words]

    def run(self, *words: str, timeout_s: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        """Run to the end; stdout and stderr are text."""
        return subprocess.run(
            self.argv(*words),
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def instances(self) -> list[dict[str, Any]]:
        document = json.loads(self.run("status", "--json").stdout)
        assert document["schema"] == "llama-ai.status/1"
        found: list[dict[str, Any]] = document["instances"]
        return found

    @property
    def files(self) -> list[str]:
        """The instance files that are there."""
        return sorted(path.name for path in self.runtime.rglob("*.json"))


class Server:
    """A running ``llama-ai serve``."""

    def __init__(
        self, cli: Cli, model: Path, *words: str, env: dict[str, str] | None = None
    ) -> None:
        self.cli = cli
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.said = cli.state.parent / f"serve-{self.port}.txt"
        with self.said.open("wb") as stream:
            self.process = subprocess.Popen(
                cli.argv(
                    "serve",
                    str(model),
                    "--engine",
                    str(cli.engine),
                    "--port",
                    str(self.port),
                    *words,
                ),
                env={**cli.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        self.pids: dict[int, str] = {}

    @property
    def output(self) -> str:
        return self.said.read_text()

    @property
    def record(self) -> dict[str, Any]:
        """The instance file, and a note of the engine's pid for :meth:`assert_gone`."""
        path = self.cli.runtime / "llama-ai" / f"{self.port}.json"
        record: dict[str, Any] = json.loads(path.read_bytes())
        if record["engine_pid"] is not None:
            self.pids[record["engine_pid"]] = record["engine_start"]
        return record

    def wait_ready(self, *, restarts: int = 0) -> dict[str, Any]:
        def ready() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.output
            with contextlib.suppress(FileNotFoundError):
                record = self.record
                if record["state"] == "ready" and record["restarts"] >= restarts:
                    return record
            return None

        return wait_for(ready)

    def wait_end(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    def assert_gone(self) -> None:
        """Nothing is left: no process that we saw, no instance file, no listener."""
        assert self.cli.files == []
        assert self.pids
        for pid, start in self.pids.items():
            assert start_id(pid) != start
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{self.url}/health")

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            _ = self.record
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for pid, start in self.pids.items():
            if start_id(pid) == start:
                os.killpg(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


T = TypeVar("T")


def wait_for(look: Callable[[], T | None]) -> T:
    """Call ``look`` until it gives something."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := look()) is None:
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.05)
    return found


@pytest.fixture
def cli(tmp_path: Path, engine: EngineInfo) -> Cli:
    return Cli(tmp_path, engine.server)


@pytest.fixture
def serve(cli: Cli, demo_model: Path) -> Iterator[Callable[..., Server]]:
    """``serve(*words)`` starts a server that ends with the test."""
    with contextlib.ExitStack() as stack:

        def start(
            *words: str, path: Path = demo_model, env: dict[str, str] | None = None
        ) -> Server:
            server = Server(cli, path, *SMALL, *words, env=env)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, engine: EngineInfo, demo_model: Path
) -> Iterator[Server]:
    """One server with an API key for all tests of a module that do it no harm."""
    cli = Cli(tmp_path_factory.mktemp("shared"), engine.server)
    # The demo model's own template knows no tools.
    template = Path(__file__).with_name("tools.jinja")
    server = Server(
        cli,
        demo_model,
        *SMALL,
        "--",
        "--chat-template-file",
        str(template),
        env={"LLAMA_AI_API_KEY": KEY},
    )
    try:
        server.wait_ready()
        yield server
    finally:
        server.close()


KEY = "sk-of-this-test"
