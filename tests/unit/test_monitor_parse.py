"""The engine's answers, the log's lines and addresses as records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_ai.errors import UsageError
from llama_ai.monitor.http import parse_target
from llama_ai.monitor.logtail import SlotFacts, parse_line
from llama_ai.monitor.parse import (
    clean,
    error_message,
    parse_metrics,
    parse_props,
    parse_slots,
)

BUSY: dict[str, Any] = {
    "id": 2,
    "n_ctx": 8192,
    "speculative": False,
    "is_processing": True,
    "id_task": 5,
    "n_prompt_tokens": 114,
    "n_prompt_tokens_processed": 39,
    "n_prompt_tokens_cache": 7,
    "params": {"llama_user_id": "bob"},
    "next_token": [{"has_next_token": True, "n_remain": 225, "n_decoded": 75}],
}


def slot(**changes: Any) -> Any:
    return parse_slots(json.dumps([{**BUSY, **changes}]).encode())[0]


def test_a_busy_slot() -> None:
    found = slot()
    assert (found.id, found.busy, found.task_id, found.user) == (2, True, 5, "bob")
    assert (found.ctx_tokens, found.ctx_used_tokens) == (8192, 114)
    assert (found.cached_tokens, found.read_tokens) == (7, 39)
    assert (found.generated_tokens, found.remaining_tokens) == (75, 225)


def test_a_fresh_slot_knows_little() -> None:
    (found,) = parse_slots(b'[{"id":0,"n_ctx":512,"speculative":false,"is_processing":false}]')
    assert not found.busy
    assert (found.task_id, found.user, found.read_tokens) == (None, None, None)
    assert found.generated_tokens is None


def test_no_limit_is_no_number_of_remaining_tokens() -> None:
    found = slot(next_token=[{"n_remain": -1, "n_decoded": 3}])
    assert (found.generated_tokens, found.remaining_tokens) == (3, None)


def test_an_older_server_gives_an_object_for_the_next_token() -> None:
    assert slot(next_token={"n_remain": 4, "n_decoded": 3}).generated_tokens == 3


def test_wrong_types_are_not_known() -> None:
    assert slot(n_ctx=10**400).ctx_tokens is None
    found = slot(n_ctx="8192", n_prompt_tokens=-5, n_prompt_tokens_cache=True, next_token=[])
    assert found.ctx_tokens is found.ctx_used_tokens is found.cached_tokens is None
    assert found.generated_tokens is None


@pytest.mark.parametrize("body", [b"{}", b"[1]", b"[{}]", b"<html>", b"", b"\xff"])
def test_what_is_no_list_of_slots(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_slots(body)


def test_metrics() -> None:
    text = (
        b"# HELP llamacpp:x y\n# TYPE llamacpp:x counter\nllamacpp:x 12\n"
        b'with{a="b"} 3\nllama_ai:kv_disk_bytes 1e9\nnan NaN\ninf +Inf\ntimed 4 1700000000000\n'
    )
    assert parse_metrics(text) == {
        "llamacpp:x": 12,
        "llama_ai:kv_disk_bytes": 1e9,
        "timed": 4,
    }


@pytest.mark.parametrize("body", [b"<html>\n", b"llamacpp:x\n", b"a b\n"])
def test_what_are_no_metrics(body: bytes) -> None:
    with pytest.raises(ValueError):
        parse_metrics(body)


def test_props() -> None:
    props = parse_props(
        b'{"model_alias":"m","build_info":"b0-1","is_sleeping":true,"total_slots":4}'
    )
    assert (props.model, props.build, props.sleeping, props.slots_total) == ("m", "b0-1", True, 4)
    assert parse_props(b'{"model_path":"/a/b.gguf"}').model == "b.gguf"
    assert parse_props(b"{}").sleeping is None


def test_the_servers_words_in_an_error() -> None:
    assert error_message(b'{"error":{"message":"Loading model","code":503}}') == "Loading model"
    assert error_message(b"nothing") is None
    assert error_message(b'{"error":7}') is None


@given(st.text(max_size=900))
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    """Nothing that a terminal would obey passes, and nothing grows past the limit."""
    cleaned = clean(text)
    assert cleaned.isprintable()
    assert len(cleaned) <= 400


def test_an_escape_sequence_in_a_users_name_is_defused() -> None:
    assert slot(params={"llama_user_id": "a\x1b[2Jb"}).user == "a [2Jb"


@pytest.mark.parametrize(
    ("line", "level", "text"),
    [
        ("0.17.662.954 I slot get_availabl: id  0", "info", "slot get_availabl: id  0"),
        ("1.0.17.662.954 W srv x: careful", "warning", "srv x: careful"),
        ("0.00.001.000 E lost", "error", "lost"),
        ("0.00.001.000 D detail", "debug", "detail"),
        ("--- llama-ai: start 1", "ours", "start 1"),
        ("radv: some driver's words", "info", "radv: some driver's words"),
        ("0.1 I am no time stamp", "info", "0.1 I am no time stamp"),
    ],
)
def test_lines_of_the_log(line: str, level: str, text: str) -> None:
    parsed = parse_line(line)
    assert (parsed.level, parsed.text) == (level, text)


def test_what_the_log_says_about_slots() -> None:
    facts = SlotFacts()
    for line in (
        "1.18 I slot print_timing: id  1 | task 5 | draft acceptance = 0.71429 (   10 accepted",
        "0.1 I kv-cache: slot 0: miss, 0 of 309 tokens: first difference at token 12",
        "0.1 I kv-cache: slot 1: cold, 900 of 939 tokens restored from 2 files, 7.1 MB in 3.2 ms",
        "0.1 I kv-cache: slot 2: hot, 321 of 366 tokens in the slot",
    ):
        facts.take(line)
    assert facts.draft_acceptance == {1: pytest.approx(0.71429)}
    assert facts.cache_tier == {0: "miss", 1: "cold", 2: "hot"}
    assert facts.miss_reason == {0: "first difference at token 12"}
    facts.take("0.2 I kv-cache: slot 0: hot, 20 of 30 tokens in the slot")
    assert facts.miss_reason == {}


def test_addresses() -> None:
    target = parse_target("https://[::1]:8443/api/", "k1,k2")
    assert (target.host, target.port, target.tls, target.prefix) == ("::1", 8443, True, "/api")
    assert target.api_key == "k1"
    assert target.url == "https://[::1]:8443/api"
    assert parse_target("box:9090", None).url == "http://box:9090"
    assert parse_target("http://box", None).port == 80


def test_a_key_is_not_in_a_repr() -> None:
    assert "secret" not in repr(parse_target("http://box", "secret"))


@pytest.mark.parametrize(
    "url",
    [
        "ftp://box",
        "http://",
        "http://a:b@box",
        "http://box/x?y=1",
        "http://box:99999",
        "http://box/a\r\nb",
        "http://[::1",
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_target(url, None)
    assert "a:b" not in caught.value.message


@pytest.mark.parametrize("key", ["a\r\nX: y", "schlüssel"])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(UsageError):
        parse_target("http://box", key)
