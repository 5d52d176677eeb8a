"""Drafts and thoughts on the real engine: what the plan says is what it does."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.integration.serve.conftest import SMALL, Cli, Server

if TYPE_CHECKING:
    from llama_ai.engine.capabilities import EngineInfo

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content and preserve_reasoning %}"
    "<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:<think>\n{% endif %}"
)
KEY = b"tokenizer.chat_template"
TALK = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Two.", "reasoning_content": "EARLIER THOUGHT"},
    {"role": "user", "content": "Three?"},
]


@pytest.fixture
def serve(tmp_path: Path, engine: EngineInfo) -> Iterator[Callable[..., Server]]:
    with contextlib.ExitStack() as stack:

        def start(model: Path, *words: str) -> Server:
            own = tmp_path / f"server-{len(list(tmp_path.iterdir()))}"
            own.mkdir()
            server = Server(Cli(own, engine.server), model, *SMALL, *words)
            stack.callback(server.close)
            server.wait_ready()
            return server

        yield start


@pytest.fixture
def thinker(tmp_path: Path, demo_model: Path) -> Path:
    """The demo model with the template of a reasoning model, of the same length."""
    content = bytearray(demo_model.read_bytes())
    at = content.index(KEY) + len(KEY)
    kind, length = struct.unpack_from("<IQ", content, at)
    assert kind == 8
    template = TEMPLATE.encode()
    assert len(template) <= length
    padded = template + b"{#" + b" " * (length - len(template) - 4) + b"#}"
    content[at + 12 : at + 12 + length] = padded[:length]
    path = tmp_path / "Thinker-135M-Q4_1.gguf"
    path.write_bytes(content)
    return path


def complete(server: Server) -> dict[str, Any]:
    answer: dict[str, Any] = httpx.post(
        f"{server.url}/completion",
        json={"prompt": "One, two, three, four,", "n_predict": 24, "temperature": 0},
        timeout=120,
    ).json()
    return answer


def test_a_draft_runs_ahead_and_changes_no_answer(
    serve: Callable[..., Server], demo_model: Path
) -> None:
    plain = serve(demo_model, "--draft", "off")
    alone = complete(plain)
    plain.close()
    drafted = complete(serve(demo_model, "--draft", str(demo_model)))
    assert drafted["content"] == alone["content"]
    # It is its own draft, so nearly everything that it proposes is right.
    assert drafted["timings"]["draft_n_accepted"] > 0
    assert "draft_n" not in alone["timings"]


@pytest.mark.parametrize("keep", [False, True])
def test_earlier_thoughts_are_stripped_unless_kept(
    serve: Callable[..., Server], thinker: Path, keep: bool
) -> None:
    server = serve(thinker, *(("--preserve-reasoning",) if keep else ()))
    prompt = httpx.post(f"{server.url}/apply-template", json={"messages": TALK}).json()["prompt"]
    assert "Two." in prompt
    assert ("EARLIER THOUGHT" in prompt) is keep
