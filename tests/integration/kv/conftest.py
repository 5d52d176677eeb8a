"""Engines with a KV cache on disk, and models of every kind of memory.

``engine`` and ``demo_model`` come from the directory above.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from llama_ai import paths
from llama_ai.engine.build import build_targets
from llama_ai.engine.engines import default_recipe
from llama_ai.engine.events import ignore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from llama_ai.engine.capabilities import EngineInfo

PATIENCE_S = 120
ZOO = {
    "mla": "deepseek2",
    "hybrid": "falcon-h1",
    "hybrid-moe": "qwen3next",
    "recurrent": "mamba2",
    "window": "gpt-oss",
    "whole": "deepseek4",  # a kind of memory that is stored as one piece
    "dense": "llama",
}


class Server:
    """A running ``llama-ai-server`` with one slot, unless told otherwise.

    ``before`` is what starts it in some other surroundings, ``env`` is added to its environment.
    """

    def __init__(
        self,
        program: Path,
        model: Path,
        directory: Path,
        *words: str,
        before: tuple[str, ...] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.saved = directory / "saved"
        self.saved.mkdir(parents=True, exist_ok=True)
        self.log = directory / f"server-{port}.log"
        self.asked = 0
        argv = [
            *before,
            str(program),
            "--model",
            str(model),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        argv += ["--threads", "1", "--ctx-size", "8192", "--no-warmup", "--metrics"]
        argv += ["--slot-save-path", str(self.saved), *words]
        if "--parallel" not in words:
            argv += ["--parallel", "1"]
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S)
        self._wait(self._healthy)

    def _healthy(self) -> bool:
        assert self.process.poll() is None, self.output
        try:
            return self.http.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    @staticmethod
    def _wait(condition: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end_s, "waited too long"
            time.sleep(0.02)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def said(self) -> list[str]:
        """What the tiers said about each request, in order; the log comes a little later."""
        self._wait(lambda: len(self._said()) >= self.asked)
        return self._said()

    def _said(self) -> list[str]:
        return [
            line.split("kv-cache: slot ", 1)[1].split(": ", 1)[1]
            for line in self.output.splitlines()
            if "kv-cache: slot " in line
        ]

    def post(self, path: str, body: dict[str, Any]) -> Any:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def tokens(self, text: str) -> list[int]:
        found: list[int] = self.post("/tokenize", {"content": text})["tokens"]
        return found

    def answer(self, prompt: list[int], count: int = 8, **more: Any) -> tuple[list[int], int]:
        """The greedy answer, and how many tokens of the prompt were not evaluated."""
        result = self.whole_answer(prompt, count, **more)
        return result["tokens"], result["timings"]["cache_n"]

    def whole_answer(self, prompt: list[int], count: int, **more: Any) -> dict[str, Any]:
        self.asked += 1
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "seed": 1}
        result: dict[str, Any] = self.post(
            "/completion", {**body, "return_tokens": True, "ignore_eos": True, **more}
        )
        return result

    def state(self, slot: int = 0) -> bytes:
        """The slot's state and tokens as upstream saves them."""
        self.post(f"/slots/{slot}?action=save", {"filename": "state.bin"})
        return (self.saved / "state.bin").read_bytes()

    def cache(self) -> dict[str, Any]:
        document: dict[str, Any] = self.http.get("/kv-cache").json()
        assert document["schema"] == "llama-ai.kv-cache/1"
        return document

    def wait_written(self) -> dict[str, Any]:
        """Waits until nothing is left to be written.

        An answer is sent before the slot is stored; any later request is taken up after that.
        """
        self.http.get("/slots")
        self._wait(lambda: self.cache()["queued_files"] == 0)
        return self.cache()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        code = self.process.wait(PATIENCE_S)
        self.http.close()
        assert code == (-how if how is signal.SIGKILL else 0), self.output


@pytest.fixture
def serve(engine: EngineInfo, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """``serve(model, *words)``: a server that does not outlive the test."""
    started: list[Server] = []
    numbers = itertools.count()

    def start(model: Path, *words: str, **more: Any) -> Server:
        one = Server(engine.server, model, tmp_path / f"run{next(numbers)}", *words, **more)
        started.append(one)
        return one

    yield start
    for one in started:
        with contextlib.suppress(OSError):
            one.process.kill()
        one.process.wait(PATIENCE_S)
        one.http.close()


@pytest.fixture(scope="session")
def zoo() -> Callable[[str], tuple[Path, tuple[str, ...]]]:
    """``zoo(kind)``: a small model of that kind of memory, and the words to serve it with.

    Upstream's own writer makes it. Its weights are random, so its answers prove nothing; the state
    that it leaves behind does.
    """
    program = (
        build_targets(default_recipe(), ("test-llama-archs",), jobs=None, on_progress=ignore)
        / "bin"
        / "test-llama-archs"
    )
    digest = hashlib.sha256(program.read_bytes()).hexdigest()[:16]
    directory = paths.private(paths.cache_dir() / "test-models" / f"zoo-{digest}")

    def model(kind: str) -> tuple[Path, tuple[str, ...]]:
        name = ZOO[kind]
        found = sorted(directory.glob(f"{name}-*.gguf"))
        if not found:
            with tempfile.TemporaryDirectory(dir=directory) as scratch:
                subprocess.run(
                    [program, "-a", name, "-o", scratch], check=True, capture_output=True
                )
                for path in Path(scratch).glob(f"{name}-*.gguf"):
                    path.replace(directory / path.name)
            found = sorted(directory.glob(f"{name}-*.gguf"))
        return found[0], ("--override-kv", f"{name}.context_length=int:8192")

    return model


def story(words: int, seed: int) -> str:
    """Plain text of so many words, another one for each seed."""
    nouns = [
        "river",
        "house",
        "dog",
        "letter",
        "garden",
        "road",
        "winter",
        "child",
        "boat",
        "market",
    ]
    verbs = ["carries", "finds", "leaves", "follows", "remembers", "opens"]
    state = seed
    said = []
    for _ in range(words // 4):
        state = (state * 1103515245 + 12345) % 2**31
        first, verb, second = state % 10, state // 10 % 6, state // 60 % 10
        said.append(f"The {nouns[first]} {verbs[verb]} {nouns[second]}.")
    return " ".join(said)


def numbers(count: int, seed: int) -> list[int]:
    """Tokens for the zoo's models, another list for each seed."""
    digest = hashlib.shake_256(str(seed).encode()).digest(count)
    return [1 + byte % 98 for byte in digest]


def dumped(document: object) -> str:
    """For messages of failed assertions."""
    return json.dumps(document, indent=1)
