"""Drafts, projectors and thoughts on the real engine: what the plan says is what it does."""

from __future__ import annotations

import base64
import contextlib
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.integration.serve.conftest import SMALL, Cli, Server
from tests.support.companions import PICTURE_TOKENS, write_draft, write_mtp, write_projector

if TYPE_CHECKING:
    from llama_ai.engine.capabilities import EngineInfo

# As reasoning models have it: thoughts in tags, a switch that leaves them out, and those of earlier
# turns only on request.
TEMPLATE = """\
{%- for m in messages -%}
{{ '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and m.reasoning_content and (loop.last or preserve_reasoning) -%}
{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif -%}
{{ m.content + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking -%}
{{ '<think>\\n\\n</think>\\n\\n' }}
{%- else -%}
{{ '<think>\\n' }}
{%- endif -%}
{%- endif -%}
"""
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
    """The demo model with the template of a reasoning model."""
    content = demo_model.read_bytes()
    at = content.index(KEY) + len(KEY)
    kind, length = struct.unpack_from("<IQ", content, at)
    assert kind == 8
    # A header that grows by its alignment keeps all places behind it in order.
    template = TEMPLATE.encode()
    grown = length + max(0, -(-(len(template) + 4 - length) // 32) * 32)
    template += b"{#" + b" " * (grown - len(template) - 4) + b"#}"
    path = tmp_path / "Thinker-135M-Q4_1.gguf"
    start, rest = content[: at + 4], content[at + 12 + length :]
    path.write_bytes(start + struct.pack("<Q", grown) + template + rest)
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


@pytest.mark.parametrize("kind", ["mtp", "dflash", "dspark"])
def test_drafts_of_every_kind_are_found_and_served(
    serve: Callable[..., Server], tmp_path: Path, demo_model: Path, kind: str
) -> None:
    if kind == "mtp":
        model = write_mtp(tmp_path / "Tiny-F16.gguf", demo_model)
    else:
        model = tmp_path / "SmolLM2-135M-Instruct-Q4_1.gguf"
        model.symlink_to(demo_model)
        write_draft(tmp_path / "dflash-SmolLM2-135M-Instruct-F16.gguf", demo_model)
    if kind == "dspark":  # which comes before DFlash
        beside = tmp_path / "SmolLM2-135M-Instruct-dspark-F16.gguf"
        write_draft(beside, demo_model, markov=True)
    plain = serve(model, "--draft", "off")
    alone = complete(plain)
    plain.close()
    # How sure a draft of random weights is depends on the CPU that multiplies them.
    server = serve(model, "--dflash-p-min", "0")
    assert f"{kind} draft" in server.output
    drafted = complete(server)
    assert drafted["content"] == alone["content"]
    assert drafted["timings"]["draft_n"] > 0


def test_a_draft_with_another_vocabulary_is_left_out_and_said(
    serve: Callable[..., Server], tmp_path: Path, demo_model: Path
) -> None:
    model = tmp_path / "SmolLM2-135M-Instruct-Q4_1.gguf"
    model.symlink_to(demo_model)
    draft = tmp_path / "dflash-SmolLM2-135M-Instruct-F16.gguf"
    write_draft(draft, demo_model, n_tokens=40_000)
    server = serve(model)
    assert f"{draft.name} left out" in server.output
    assert "vocabulary (40000 tokens)" in server.output
    assert "draft_n" not in complete(server)["timings"]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_projector_sees_unless_it_is_left_out(
    serve: Callable[..., Server], tmp_path: Path, demo_model: Path, wanted: bool
) -> None:
    model = tmp_path / "SmolLM2-135M-Instruct-Q4_1.gguf"
    model.symlink_to(demo_model)
    write_projector(tmp_path / "mmproj-SmolLM2-135M-Instruct-F16.gguf")
    server = serve(model, *(() if wanted else ("--no-mmproj",)))
    text = {"type": "text", "text": "What is this?"}
    picture = {"type": "image_url", "image_url": {"url": red_square()}}

    def ask(*parts: dict[str, Any]) -> httpx.Response:
        return httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 4},
            timeout=120,
        )

    blind, seeing = ask(text), ask(text, picture)
    assert blind.status_code == 200
    if not wanted:
        assert "sees pictures" not in server.output
        assert 400 <= seeing.status_code <= 500
        return
    assert "sees pictures" in server.output
    assert seeing.status_code == 200
    tokens = [answer.json()["usage"]["prompt_tokens"] for answer in (blind, seeing)]
    assert tokens[1] - tokens[0] == PICTURE_TOKENS


def test_what_comes_before_a_picture_survives_a_restart(
    serve: Callable[..., Server], tmp_path: Path, demo_model: Path
) -> None:
    model = tmp_path / "SmolLM2-135M-Instruct-Q4_1.gguf"
    model.symlink_to(demo_model)
    write_projector(tmp_path / "mmproj-SmolLM2-135M-Instruct-F16.gguf")
    parts = [
        {"type": "text", "text": "A lake in the hills. " * 80},
        {"type": "image_url", "image_url": {"url": red_square()}},
        {"type": "text", "text": "What is this?"},
    ]
    request = {"messages": [{"role": "user", "content": parts}], "max_tokens": 4, "temperature": 0}
    answers = []
    for _ in range(2):
        server = serve(model, "--kv-dir", str(tmp_path / "kv"))
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=request, timeout=120).json()
        answers.append(answer)
        server.close()
    first, second = answers
    assert second["choices"] == first["choices"]
    assert first["timings"]["cache_n"] == 0
    before_picture = first["timings"]["prompt_n"] - PICTURE_TOKENS
    assert 256 <= second["timings"]["cache_n"] < before_picture


def red_square() -> str:
    """A picture of 64 by 64 pixels, as a data URL."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows = b"".join(b"\0" + bytes((200, 10, 10)) * 64 for _ in range(64))
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0))
    png += chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@pytest.mark.parametrize("keep", [False, True])
def test_earlier_thoughts_are_stripped_unless_kept(
    serve: Callable[..., Server], thinker: Path, keep: bool
) -> None:
    server = serve(thinker, *(("--preserve-reasoning",) if keep else ()))
    prompt = httpx.post(f"{server.url}/apply-template", json={"messages": TALK}).json()["prompt"]
    assert "Two." in prompt
    assert ("EARLIER THOUGHT" in prompt) is keep


def test_thinking_ends_at_its_budget(serve: Callable[..., Server], thinker: Path) -> None:
    thoughts: dict[str, str] = {}
    for budget in ("8", "-1"):
        server = serve(thinker, "--reasoning-budget", budget)
        answer = httpx.post(
            f"{server.url}/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "Why is the sky blue?"}],
                "max_tokens": 48,
                "temperature": 0,
            },
            timeout=120,
        ).json()
        thoughts[budget] = answer["choices"][0]["message"]["reasoning_content"]
        server.close()
    assert thoughts["-1"].startswith(thoughts["8"])
    assert 0 < len(thoughts["8"].split()) <= 8
    assert len(thoughts["-1"].split()) > 16
