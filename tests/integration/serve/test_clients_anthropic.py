"""The real ``anthropic`` package against a real model behind ``llama-ai serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anthropic
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anthropic.types import MessageParam

pytestmark = pytest.mark.engine

QUESTION: list[MessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]


@pytest.fixture
def client(shared) -> Iterator[anthropic.Anthropic]:  # type: ignore[no-untyped-def]
    with anthropic.Anthropic(
        base_url=shared.url, api_key="sk-of-this-test", max_retries=0
    ) as client:
        yield client


def test_messages(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(
        model="any",
        messages=QUESTION,
        max_tokens=24,
        system="You are helpful.",
        extra_body={"temperature": 0},
    )
    block = answer.content[0]
    assert block.type == "text"
    assert "Paris" in block.text
    assert answer.usage.output_tokens > 0


def test_streaming(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="any", messages=QUESTION, max_tokens=24, extra_body={"temperature": 0}
    ) as stream:
        pieces = list(stream.text_stream)
    assert len(pieces) > 3
    assert "Paris" in "".join(pieces)


def test_counting_tokens(client: anthropic.Anthropic) -> None:
    assert client.messages.count_tokens(model="any", messages=QUESTION).input_tokens > 10


def test_a_wrong_key_is_refused(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(
            model="any", messages=QUESTION, max_tokens=4
        )
