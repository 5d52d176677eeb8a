"""Several real models on one port, through the engine's router, as a user serves them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import httpx
import numpy as np
import openai
import psutil
import pytest

from tests.integration.serve.conftest import PATIENCE_S, Cli, free_port

if TYPE_CHECKING:
    from llama_ai.engine.capabilities import EngineInfo

BIG, SHORT = "SmolLM2-135M-Instruct-Q4_1", "Short-135M-Q4_1"
KEY = "llama.context_length"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> list[Path]:
    """The demo model, the same with half its context, and one that fits no machine."""
    directory = tmp_path_factory.mktemp("several")
    content = bytearray(demo_model.read_bytes())
    at = content.index(KEY.encode()) + len(KEY)
    assert struct.unpack_from("<II", content, at) == (4, 8192)
    struct.pack_into("<I", content, at + 4, 4096)
    (directory / f"{SHORT}.gguf").write_bytes(content)
    (directory / f"{BIG}.gguf").symlink_to(demo_model)
    huge(directory / "Huge.gguf")
    return sorted(directory.iterdir())


def huge(path: Path) -> None:
    """A model of 400 GB: a true header, and a hole for its weights."""
    width, wide = 8192, 1 << 22
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(32)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (32, width),
        "output_norm.weight": (width,),
        "blk.0.attn_norm.weight": (width,),
        **{f"blk.0.attn_{part}.weight": (width, width) for part in ("q", "k", "v", "output")},
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (wide, width),
        "blk.0.ffn_up.weight": (wide, width),
        "blk.0.ffn_down.weight": (width, wide),
    }
    size = 0
    for name, shape in shapes.items():
        count = 4 * math.prod(shape)
        size += count
        writer.add_tensor_info(name, shape, np.dtype(np.float32), count)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as stream:
        stream.truncate(-(-stream.seek(0, os.SEEK_END) // 32) * 32 + size)


class Router:
    """``llama-ai serve`` over several models."""

    def __init__(self, cli: Cli, models: list[Path], *words: str) -> None:
        self.port = free_port()
        self.cli = cli
        self.url = f"http://127.0.0.1:{self.port}"
        self.said = cli.state.parent / f"router-{self.port}.txt"
        with self.said.open("wb") as stream:
            self.process = subprocess.Popen(
                cli.argv(
                    "serve",
                    *(str(model) for model in models),
                    *("--engine", str(cli.engine)),
                    *("--port", str(self.port)),
                    *("--backend", "cpu", "--cache-ram", "64", "--parallel", "1"),
                    *words,
                ),
                env=cli.env,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        # As users have it: the engine closes kept connections, and the client's retry is for that.
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none")
        self.wait(lambda: "ready " in self.said.read_text())

    def wait(self, holds: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not holds():
            assert self.process.poll() is None, self.said.read_text()
            assert time.monotonic() < deadline_s, self.said.read_text()
            time.sleep(0.1)

    def ask(self, model: str) -> str:
        answer = self.client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=4,
            temperature=0,
        )
        assert answer.choices[0].message.content
        return answer.model

    def states(self) -> dict[str, str]:
        data = httpx.get(f"{self.url}/v1/models").json()["data"]
        return {one["id"]: one["status"]["value"] for one in data}

    def n_ctx(self, model: str) -> int:
        props: dict[str, Any] = httpx.get(f"{self.url}/props", params={"model": model}).json()
        return int(props["default_generation_settings"]["n_ctx"])

    def children(self) -> dict[str, int]:
        """The process of each loaded model."""
        found: dict[str, int] = {}
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = process.cmdline()
                if "--model" in line:
                    found[Path(line[line.index("--model") + 1]).stem] = process.pid
        return found

    def close(self) -> None:
        pids = list(self.children().values()) if self.process.poll() is None else []
        self.process.terminate()
        self.process.wait(30)
        for pid in pids:
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


@pytest.fixture
def serve(
    tmp_path: Path, engine: EngineInfo, models: list[Path]
) -> Iterator[Callable[..., Router]]:
    with contextlib.ExitStack() as stack:

        def start(*words: str) -> Router:
            router = Router(Cli(tmp_path, engine.server), models, *words)
            stack.callback(router.close)
            return router

        yield start


def test_each_model_answers_with_its_own_profile(serve: Callable[..., Router]) -> None:
    router = serve()
    assert router.ask(BIG) == BIG
    assert router.ask(SHORT) == SHORT
    assert (router.n_ctx(BIG), router.n_ctx(SHORT)) == (8192, 4096)
    assert {name: state for name, state in router.states().items() if "Huge" not in name} == {
        BIG: "loaded",
        SHORT: "loaded",
    }
    [instance] = router.cli.instances()
    listed = {one["name"]: one for one in instance["profile"]["models"]}
    assert set(listed) == {BIG, SHORT, "Huge"}
    assert listed["Huge"]["why_not"]
    assert "Huge: refused" in router.cli.run("status").stdout


def test_unknown_and_unfit_models_are_refused_with_the_reason(
    serve: Callable[..., Router],
) -> None:
    router = serve()
    with pytest.raises(openai.BadRequestError, match="'nothing' not found"):
        router.ask("nothing")
    with pytest.raises(openai.InternalServerError, match="nothing fits"):
        router.ask("Huge")
    assert router.ask(BIG) == BIG


def test_models_are_swapped_by_request(serve: Callable[..., Router]) -> None:
    router = serve("--", "--models-max", "1")
    router.ask(BIG)
    assert set(router.children()) == {BIG}
    router.ask(SHORT)
    assert set(router.children()) == {SHORT}
    assert router.states()[BIG] == "unloaded"


def test_an_idle_model_is_unloaded_and_comes_back(serve: Callable[..., Router]) -> None:
    router = serve("--ttl", "1")
    router.ask(BIG)
    loaded = psutil.Process(router.children()[BIG]).memory_info().rss
    router.wait(lambda: router.states()[BIG] in {"sleeping", "unloaded"})
    assert psutil.Process(router.children()[BIG]).memory_info().rss < loaded
    assert router.ask(BIG) == BIG


def test_a_killed_model_is_started_again_by_the_next_request(
    serve: Callable[..., Router],
) -> None:
    router = serve()
    router.ask(BIG)
    router.ask(SHORT)
    killed = router.children()[BIG]
    os.kill(killed, signal.SIGKILL)
    router.wait(lambda: router.states()[BIG] == "unloaded")
    assert router.ask(BIG) == BIG
    assert router.children()[BIG] != killed
    [instance] = router.cli.instances()
    assert instance["restarts"] == 0
    assert router.states()[SHORT] == "loaded"


def test_serve_without_a_name_takes_all(
    tmp_path: Path, engine: EngineInfo, models: list[Path]
) -> None:
    cli = Cli(tmp_path, engine.server)
    cli.env |= {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    config = tmp_path / "config" / "llama-ai" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[models]\ndirs = [{json.dumps(str(models[0].parent))}]\n")
    router = Router(cli, [])
    try:
        assert router.ask(SHORT) == SHORT
    finally:
        router.close()
