"""The real ``openai`` package against a real model behind ``llama-ai serve``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types.chat import (
        ChatCompletionMessageParam,
        ChatCompletionMessageToolCallParam,
        ChatCompletionToolParam,
    )

pytestmark = pytest.mark.engine

QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France? Answer in one sentence."}
]

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}


@pytest.fixture
def client(shared) -> Iterator[openai.OpenAI]:  # type: ignore[no-untyped-def]
    with openai.OpenAI(
        base_url=f"{shared.url}/v1", api_key="sk-of-this-test", max_retries=0
    ) as client:
        yield client


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert "smollm2" in next(iter(client.models.list())).id.lower()


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any", messages=QUESTION, max_tokens=24, temperature=0
    )
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_streaming_gives_the_same_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="any", messages=QUESTION, max_tokens=24, temperature=0
    )
    pieces = [
        chunk.choices[0].delta.content
        for chunk in client.chat.completions.create(
            model="any", messages=QUESTION, max_tokens=24, temperature=0, stream=True
        )
        if chunk.choices and chunk.choices[0].delta.content
    ]
    assert len(pieces) > 3
    assert "".join(pieces) == whole.choices[0].message.content


def test_a_tool_is_called_and_its_result_used(client: openai.OpenAI) -> None:
    # A model of 135 million parameters needs to be shown how it is done.
    messages: list[ChatCompletionMessageParam] = []
    for city, degrees in (("Rome", "21"), ("Oslo", "4"), ("Madrid", "25")):
        call: ChatCompletionMessageToolCallParam = {
            "id": f"call_{city}",
            "type": "function",
            "function": {
                "name": "get_weather",
                "arguments": json.dumps({"city": city, "unit": "celsius"}),
            },
        }
        messages += [
            {"role": "user", "content": f"How warm is it in {city}?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": degrees},
            {"role": "assistant", "content": f"It is {degrees} degrees in {city}."},
        ]
    messages.append({"role": "user", "content": "How warm is it in Paris?"})
    answer = client.chat.completions.create(
        model="any", messages=messages, tools=[WEATHER], max_tokens=60, temperature=0
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    (called,) = answer.choices[0].message.tool_calls or []
    assert called.type == "function"
    assert called.function.name == "get_weather"
    assert json.loads(called.function.arguments) == {"city": "Paris", "unit": "celsius"}


def test_embeddings_are_refused_as_the_engine_refuses_them(client: openai.OpenAI) -> None:
    # A chat model without --embeddings: the engine answers, and says no.
    with pytest.raises(openai.APIStatusError) as caught:
        client.embeddings.create(model="any", input="hello")
    assert caught.value.status_code == 501


def test_a_wrong_key_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
