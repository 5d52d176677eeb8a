"""Several real models on one port, through the engine's router, as a user serves them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
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

FIRST, SECOND = "SmolLM2-135M-Instruct-Q4_1", "gemma-3-270m-Q4_K_M"
ODD = "Zweites #1; [日本語]"
"""A name that a preset file cannot hold."""

ALLOCATION_LIMIT_BYTES = 150_000_000
LIMITED_MEMORY = """
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
int posix_memalign(void **place, size_t alignment, size_t size) {
    if (size > %d) return ENOMEM;
    int (*real)(void **, size_t, size_t) = dlsym(RTLD_NEXT, "posix_memalign");
    return real(place, alignment, size);
}
"""


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory, demo_model: Path, gemma_model: Path
) -> list[Path]:
    """Two real models of different families, and one that fits no machine."""
    directory = tmp_path_factory.mktemp("several")
    (directory / f"{FIRST}.gguf").symlink_to(demo_model)
    (directory / f"{SECOND}.gguf").symlink_to(gemma_model)
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

    def __init__(
        self, cli: Cli, models: list[Path], *words: str, env: dict[str, str] | None = None
    ) -> None:
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
                env={**cli.env, **(env or {})},
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
        if self.process.poll() is not None:
            return
        pids = list(self.children().values())
        self.process.terminate()
        self.process.wait(30)
        for pid in pids:
            assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie"


@pytest.fixture
def serve(
    tmp_path: Path, engine: EngineInfo, models: list[Path]
) -> Iterator[Callable[..., Router]]:
    cli = Cli(tmp_path, engine.server)
    with contextlib.ExitStack() as stack:

        def start(*words: str, env: dict[str, str] | None = None) -> Router:
            router = Router(cli, models, *words, env=env)
            stack.callback(router.close)
            return router

        yield start


def test_each_model_answers_with_its_own_profile(serve: Callable[..., Router]) -> None:
    router = serve()
    assert router.ask(FIRST) == FIRST
    assert router.ask(SECOND) == SECOND
    assert (router.n_ctx(FIRST), router.n_ctx(SECOND)) == (8192, 32768)
    assert {name: state for name, state in router.states().items() if "Huge" not in name} == {
        FIRST: "loaded",
        SECOND: "loaded",
    }
    [instance] = router.cli.instances()
    listed = {one["name"]: one for one in instance["profile"]["models"]}
    assert set(listed) == {FIRST, SECOND, "Huge"}
    assert listed["Huge"]["why_not"]
    assert "Huge: refused" in router.cli.run("status").stdout


def test_unknown_and_unfit_models_are_refused_with_the_reason(
    serve: Callable[..., Router],
) -> None:
    router = serve("--", "--models-max", "1")
    assert router.ask(FIRST) == FIRST
    with pytest.raises(openai.BadRequestError, match="'nothing' not found"):
        router.ask("nothing")
    for name in ("Huge", next(name for name in router.states() if name.startswith("Huge"))):
        with pytest.raises(openai.BadRequestError, match="does not fit this machine: nothing fits"):
            router.ask(name)
    assert router.states()[FIRST] == "loaded"  # nothing made room for what cannot be loaded


def test_models_are_swapped_by_request(serve: Callable[..., Router]) -> None:
    router = serve("--", "--models-max", "1")
    router.ask(FIRST)
    assert set(router.children()) == {FIRST}
    router.ask(SECOND)
    assert set(router.children()) == {SECOND}
    assert router.states()[FIRST] == "unloaded"


def test_an_idle_model_is_unloaded_and_comes_back(serve: Callable[..., Router]) -> None:
    router = serve("--ttl", "1")
    router.ask(FIRST)
    loaded = psutil.Process(router.children()[FIRST]).memory_info().rss
    router.wait(lambda: router.states()[FIRST] in {"sleeping", "unloaded"})
    assert psutil.Process(router.children()[FIRST]).memory_info().rss < loaded
    assert router.ask(FIRST) == FIRST


def test_a_killed_model_is_started_again_by_the_next_request(
    serve: Callable[..., Router],
) -> None:
    router = serve()
    router.ask(FIRST)
    router.ask(SECOND)
    killed = router.children()[FIRST]
    os.kill(killed, signal.SIGKILL)
    router.wait(lambda: router.states()[FIRST] == "unloaded")
    assert router.ask(FIRST) == FIRST
    assert router.children()[FIRST] != killed
    [instance] = router.cli.instances()
    assert instance["restarts"] == 0
    assert router.states()[SECOND] == "loaded"


def test_a_model_that_runs_out_of_memory_gets_less(
    serve: Callable[..., Router], tmp_path: Path
) -> None:
    source, library = tmp_path / "limited.c", tmp_path / "limited.so"
    source.write_text(LIMITED_MEMORY % ALLOCATION_LIMIT_BYTES)
    subprocess.run(
        ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True
    )
    router = serve("--kv-cache-type", "f16", env={"LD_PRELOAD": str(library)})
    router.client = router.client.with_options(max_retries=0)
    # Its cache of 8192 tokens takes 189 MB, that of 4096 tokens half as much.
    with pytest.raises(openai.InternalServerError, match="failed to load"):
        router.ask(FIRST)
    router.wait(lambda: router.states()[FIRST] == "loaded")
    assert router.ask(FIRST) == FIRST
    assert router.n_ctx(FIRST) == 4096
    assert "ctx_size 8192 -> 4096" in router.said.read_text()
    [instance] = router.cli.instances()
    assert instance["state"] == "ready"
    assert instance["restarts"] == 0
    assert instance["last_failure"]["kind"] == "out-of-memory"
    [first] = [one for one in instance["profile"]["models"] if one["name"] == FIRST]
    assert "4096 tokens" in first["summary"]

    # What was learned holds for the next start, and can be forgotten.
    router.close()
    assert "4096 tokens" in serve().said.read_text()
    assert f"{FIRST}: CPU, 8192 tokens" in serve("--forget").said.read_text()


def test_a_model_of_any_name_is_served(
    tmp_path: Path, engine: EngineInfo, demo_model: Path, gemma_model: Path
) -> None:
    directory = tmp_path / "a;b #c"
    directory.mkdir()
    (directory / f"{ODD}.gguf").symlink_to(demo_model)
    (directory / "Übung: 漢字.gguf").symlink_to(gemma_model)
    router = Router(Cli(tmp_path, engine.server), sorted(directory.iterdir()))
    try:
        names = {one["name"] for one in router.cli.instances()[0]["profile"]["models"]}
        assert "Übung: 漢字" in names
        [odd] = names - {"Übung: 漢字"}
        for name in names:
            assert router.ask(name)
        assert f"'{ODD}' is served as {odd}" in router.said.read_text()
    finally:
        router.close()


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
        assert router.ask(SECOND) == SECOND
    finally:
        router.close()
