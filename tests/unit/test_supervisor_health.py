"""Probing: what the counters say, and what stands still. The server is a real one."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from llama_ai.supervisor.health import (
    Activity,
    Health,
    Probe,
    Progress,
    parse_metrics,
    parse_slots,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

SLOT = {
    "id": 0,
    "n_ctx": 2048,
    "speculative": False,
    "is_processing": True,
    "id_task": 4,
    "n_prompt_tokens": 30,
    "n_prompt_tokens_processed": 21,
    "params": {"temperature": 0.8},
    "next_token": [{"has_next_token": True, "n_remain": -1, "n_decoded": 9}],
}

METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 21
llamacpp:tokens_predicted_total 9
llamacpp:n_decode_total 10
llamacpp:requests_processing 1
"""


def test_slots_show_work_and_its_advance() -> None:
    first = parse_slots(json.dumps([SLOT]).encode())
    later = {**SLOT, "next_token": [{"n_decoded": 10}]}
    second = parse_slots(json.dumps([later]).encode())
    assert first is not None
    assert second is not None
    assert first.busy
    assert first.mark != second.mark
    same = parse_slots(json.dumps([{**SLOT, "params": {"temperature": 1}}]).encode())
    assert same == first


def test_idle_slots_without_a_task_are_idle() -> None:
    activity = parse_slots(b'[{"id": 0, "n_ctx": 1, "speculative": false, "is_processing": false}]')
    assert activity is not None
    assert not activity.busy


def test_metrics_show_the_same() -> None:
    first = parse_metrics(METRICS.encode())
    second = parse_metrics(METRICS.replace("predicted_total 9", "predicted_total 10").encode())
    assert first is not None
    assert first.busy
    assert second is not None
    assert first.mark != second.mark


@given(st.binary() | st.text().map(str.encode) | st.just(b"[1]") | st.just(b'{"a": 1}'))
def test_answers_of_strangers_are_unknown_and_never_an_error(body: bytes) -> None:
    """Law: whatever the bytes, parsing gives an Activity or None and raises nothing."""
    for parse in (parse_slots, parse_metrics):
        assert parse(body) is None or isinstance(parse(body), Activity)


def test_standstill_counts_only_while_busy() -> None:
    progress = Progress()
    busy, idle = Activity(busy=True, mark=1), Activity(busy=False, mark=1)
    assert progress.still_s(busy, 100) == 0
    assert progress.still_s(busy, 130) == 30
    assert progress.still_s(Activity(busy=True, mark=2), 140) == 0
    assert progress.still_s(Activity(busy=True, mark=2), 150) == 10
    assert progress.still_s(idle, 160) == 0
    assert progress.still_s(busy, 170) == 0
    assert progress.still_s(None, 180) == 0
    assert progress.still_s(busy, 190) == 0


def test_counters_that_do_not_answer_are_a_standstill_too() -> None:
    progress = Progress()
    assert progress.unanswered_s(10) == 0
    assert progress.unanswered_s(25) == 15
    assert progress.still_s(Activity(busy=True, mark=1), 30) == 0


async def _serving(
    answer: bytes, ask: Callable[[int], Awaitable[object]], *, close: bool = True
) -> tuple[object, bytes]:
    got = b""
    answered = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        got = await reader.readuntil(b"\r\n\r\n")
        if close:
            writer.write(answer)
            await writer.drain()
        else:
            await reader.read()  # says nothing until the other side gives up
        writer.close()
        await writer.wait_closed()
        answered.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    result = await ask(port)
    await answered.wait()
    server.close()
    return result, got


def probe(port: int, **kwargs: str) -> Probe:
    return Probe("127.0.0.1", port, api_key=kwargs.get("api_key"), timeout_s=0.2)


def test_health_answers() -> None:
    for answer, health in [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Health.OK),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", Health.LOADING),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", Health.WRONG),
        (b"220 mail.example ESMTP\r\n", Health.WRONG),
        (b"", Health.WRONG),
    ]:
        result, _ = asyncio.run(_serving(answer, lambda port: probe(port).health()))
        assert result is health, answer


def test_no_answer_in_time_is_wrong_and_nobody_there_is_refused() -> None:
    result, _ = asyncio.run(_serving(b"", lambda port: probe(port).health(), close=False))
    assert result is Health.WRONG
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        assert asyncio.run(probe(holder.getsockname()[1]).health()) is Health.REFUSED


def test_the_key_goes_into_the_header_only() -> None:
    async def ask(port: int) -> object:
        return await Probe("127.0.0.1", port, api_key="first, second", timeout_s=1).activity()

    _, got = asyncio.run(_serving(b"HTTP/1.1 501 x\r\n\r\n", ask))
    assert got.startswith(b"GET /slots HTTP/1.0\r\n")
    assert b"Authorization: Bearer first\r\n" in got
