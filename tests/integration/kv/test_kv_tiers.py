"""What the tiers say, count, bound, and survive."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from llama_ai.kv_cache.files import read_directory
from tests.integration.kv.conftest import dumped, numbers, story

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.kv.conftest import Server

    Zoo = Callable[[str], tuple[Path, tuple[str, ...]]]

pytestmark = pytest.mark.engine


def test_each_request_says_where_its_beginning_was(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    model, words = zoo("dense")
    disk = ("--kv-dir", str(tmp_path / "kv"))
    server = serve(model, *words, *disk)
    prompt, other = numbers(600, 1), numbers(600, 2)
    server.answer(prompt)
    server.answer(other)
    server.answer([*prompt, *numbers(20, 3)])
    server.answer([*prompt, *numbers(20, 3), 5])
    server.answer(numbers(40, 4))
    after = server.wait_written()
    said = server.said
    assert said[0] == "miss, 0 of 600 tokens: nothing is stored"
    assert said[1] == "miss, 0 of 600 tokens: first divergence before token 256"
    assert said[2].split(",")[0] in {"warm", "cold"}
    assert said[3].startswith("hot, 620 of 621 tokens")
    assert said[4] == "miss, 0 of 40 tokens: too short to be stored"
    assert after["misses"] == 3
    assert after["hits_hot"] == 1
    server.stop()

    server = serve(model, *words, *disk)
    _, cached = server.answer(prompt)
    assert cached == 599  # one token is always evaluated
    assert server.said[0].startswith("cold, 600 of 600 tokens restored from ")
    server.stop()
    server = serve(model, *words, *disk, "--cache-type-k", "q8_0")
    assert server.answer(prompt)[1] == 0
    assert "other fingerprint" in server.said[0]
    server.wait_written()
    metrics = server.http.get("/metrics").text
    assert "llamacpp:prompt_tokens_total" in metrics
    assert "\nllama_ai:kv_misses_total 1\n" in metrics
    assert f"\nllama_ai:kv_disk_bytes {server.cache()['bytes']}\n" in metrics
    server.stop()


def test_files_are_private_and_can_be_dropped(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    model, words = zoo("hybrid")
    directory = tmp_path / "kv"
    server = serve(model, *words, "--kv-dir", str(directory))
    server.answer(numbers(500, 1))
    state = server.wait_written()
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    contents = read_directory(directory)
    assert {file.kind for file in contents.files} == {"segment", "partial"}
    assert len(contents.files) == state["files"] == state["model_files"]
    assert contents.total_bytes == state["bytes"]
    for file in contents.files:
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert file.model == model.name
        assert 0 < file.end <= 507
    assert server.http.delete("/kv-cache").json() == {"deleted_files": len(contents.files)}
    assert list(directory.iterdir()) == []
    assert server.cache()["files"] == 0
    server.stop()
    # What the slot held was stored at the end? It was stored before; nothing new came.
    server = serve(model, *words, "--kv-dir", str(directory), "--no-kv-disk")
    assert server.cache()["enabled"] is False
    assert server.http.delete("/kv-cache").status_code == 409
    server.stop()


def test_bad_files_are_a_miss_and_nothing_else(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    model, words = zoo("hybrid")
    directory = tmp_path / "kv"
    disk = ("--kv-dir", str(directory))
    prompt = numbers(500, 1)
    fresh = serve(model, *words)
    expected = fresh.answer(prompt)[0]
    fresh.stop()
    for place in ("header", "tokens", "state", "end", "length"):
        server = serve(model, *words, *disk)
        assert server.answer(prompt)[0] == expected
        server.wait_written()
        server.stop()
        for file in read_directory(directory).files:
            data = bytearray(file.path.read_bytes())
            at = {"header": 30, "tokens": 700, "state": 4096 + 40, "end": len(data) - 4096}
            if place == "length":
                data = data[: len(data) // 2]
            else:
                data[at[place]] ^= 1
            file.path.write_bytes(data)
        server = serve(model, *words, *disk)
        assert server.answer(prompt) == (expected, 0), place
        after = server.wait_written()
        assert after["damaged_files"] > 0, dumped(after)
        server.stop()
        server = serve(model, *words, *disk)
        assert server.answer([*prompt, *expected])[1] >= 490  # written anew
        server.wait_written()
        server.http.delete("/kv-cache?all=true")
        assert list(directory.iterdir()) == []
        server.stop()


def test_a_cap_smaller_than_one_file_stores_nothing(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    model, words = zoo("dense")
    directory = tmp_path / "kv"
    server = serve(model, *words, "--kv-dir", str(directory), "--kv-max-gib", "0.00001")
    for seed in range(3):
        server.answer(numbers(500, seed))
    after = server.wait_written()
    assert after["files"] == after["bytes"] == 0
    assert list(directory.iterdir()) == []
    server.stop()


def test_a_directory_that_cannot_be_used_costs_the_tier_only(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    model, words = zoo("dense")
    (tmp_path / "file").write_text("not a directory")
    server = serve(model, *words, "--kv-dir", str(tmp_path / "file"))
    assert server.answer(numbers(300, 1))[1] == 0
    state = server.cache()
    assert state["enabled"] is False
    assert "not a directory" in state["reason"]
    assert server.output.count("kv-cache: off") == 1
    server.stop()


@pytest.mark.parametrize("kind", ["dense", "hybrid", "recurrent", "window"])
def test_a_system_prompt_is_found_by_other_conversations(
    kind: str, zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """It is stored at its first evaluation, where the delimiters of messages are known."""
    model, words = zoo(kind)
    disk = ("--kv-dir", str(tmp_path / "kv"))
    server = serve(model, *words, *disk)
    mark = server.tokens("<user>")
    delimiters = [{"role": "user", "delimiter": "<user>"}]
    system = [token for token in numbers(700, 1) if token not in mark][:600]
    server.answer([*system, *mark, *numbers(80, 2)], message_delimiters=delimiters)
    after = server.wait_written()
    assert after["system_prompts"] == 1, dumped(after)
    server.stop()
    server = serve(model, *words, *disk)
    _, cached = server.answer([*system, *mark, *numbers(80, 3)], message_delimiters=delimiters)
    assert cached >= 600
    assert server.said[0].startswith("cold, 600" if kind != "dense" else "cold, 6")
    server.stop()


def test_a_state_is_not_written_twice_a_turn_without_need(
    zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    """Before the answer for templates that change it later, after it for all others."""
    model, words = zoo("hybrid")
    directory = tmp_path / "kv"
    server = serve(model, *words, "--kv-dir", str(directory))

    def ends() -> list[int]:
        server.wait_written()
        return sorted(f.end for f in read_directory(directory).files if f.kind == "partial")

    prompt = numbers(400, 1)
    answer, _ = server.answer(prompt)
    assert ends() == [396, 407]  # who knows
    prompt = [*prompt, *answer, *numbers(30, 2)]
    answer, _ = server.answer(prompt)
    assert ends() == [396, 407, 445]
    prompt = [*prompt[:-1], *numbers(50, 3)]  # the answer was changed
    server.answer(prompt)
    assert ends() == [407, 445, 483, 494]  # three stay, and the one that was left
    server.stop()


@pytest.mark.parametrize("kind", ["hybrid", "recurrent", "window"])
def test_a_common_beginning_is_learned_where_nobody_tells(
    kind: str, zoo: Zoo, serve: Callable[..., Server], tmp_path: Path
) -> None:
    model, words = zoo(kind)
    disk = ("--kv-dir", str(tmp_path / "kv"))
    system = numbers(600, 1)
    reused = []
    for seed in (2, 3, 4):
        server = serve(model, *words, *disk)
        reused.append(server.answer([*system, *numbers(400, seed)])[1])
        server.wait_written()
        server.stop()
    assert reused[0] == 0
    assert reused[2] >= 600 - 16


def test_rewritten_tool_definitions_are_named(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(demo_model, "--kv-dir", str(tmp_path / "kv"))
    one = '{"name": "look_up", "description": "finds a word", "strict": true}'
    other = '{"description": "finds a word", "strict": true, "name": "look_up"}'
    beginning = story(280, 1)
    server.answer(server.tokens(f"{beginning} {one} Use it."))
    server.wait_written()
    server.answer(server.tokens(f"{beginning} {other} Use it."))
    assert "the same tool definitions as before are written in another way" in server.said[1]
    server.answer(server.tokens(f"{beginning} {other.replace('word', 'name')} Use it."))
    assert "tool definitions" not in server.said[2]
    server.stop()
