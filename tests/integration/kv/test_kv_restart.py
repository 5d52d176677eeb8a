"""A conversation goes on after a restart as if there had been none, for every kind of memory."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.integration.kv.conftest import ZOO, numbers, story

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.kv.conftest import Server

RESTARTS = (signal.SIGTERM, signal.SIGKILL)


def converse(
    start: Callable[[], Server], turns: list[list[int]], restarts: tuple[signal.Signals, ...]
) -> tuple[list[list[int]], list[bytes], list[int]]:
    """Answers, states after each turn, and reused tokens; between turns the server is ended."""
    server = start()
    prompt: list[int] = []
    answers, states, reused = [], [], []
    for number, turn in enumerate(turns):
        prompt += turn
        answer, cached = server.answer(prompt)
        prompt += answer
        answers.append(answer)
        states.append(server.state())
        reused.append(cached)
        if restarts and number + 1 < len(turns):
            server.wait_written()
            server.stop(restarts[number % len(restarts)])
            server = start()
    server.stop()
    return answers, states, reused


@pytest.mark.engine
@pytest.mark.parametrize("kind", sorted(ZOO))
def test_every_kind_of_memory_comes_back_to_the_last_bit(
    kind: str,
    zoo: Callable[[str], tuple[Path, tuple[str, ...]]],
    serve: Callable[..., Server],
    tmp_path: Path,
) -> None:
    model, words = zoo(kind)
    counts = (420, 70, 33, 64, 17, 150)
    turns = [numbers(count, count) for count in counts]
    disk = ("--kv-dir", str(tmp_path / "kv"))
    there = converse(lambda: serve(model, *words, *disk), turns, RESTARTS)
    never = converse(lambda: serve(model, *words), turns, ())
    # All but the last token of a turn, which was sampled and never evaluated.
    assert there[2] == [max(0, sum(counts[:turn]) + 8 * turn - 1) for turn in range(len(counts))]
    assert there[0] == never[0]
    assert there[1] == never[1]


@pytest.mark.engine
def test_real_answers_of_a_dense_model(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    check_real(demo_model, serve, tmp_path)


@pytest.mark.engine
def test_real_answers_of_a_model_with_sliding_windows(
    gemma_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    check_real(gemma_model, serve, tmp_path)


def check_real(model: Path, serve: Callable[..., Server], tmp_path: Path) -> None:
    probe = serve(model)
    text = [probe.tokens(story(count, count)) for count in (420, 40, 60)]
    probe.stop()
    disk = ("--kv-dir", str(tmp_path / "kv"))
    there = converse(lambda: serve(model, *disk), text, RESTARTS)
    never = converse(lambda: serve(model), text, ())
    assert there[0] == never[0]
    assert there[1] == never[1]
    assert there[2] == never[2]


@pytest.mark.engine
def test_conversations_that_begin_alike_do_not_mix(
    demo_model: Path, serve: Callable[..., Server], tmp_path: Path
) -> None:
    disk = ("--kv-dir", str(tmp_path / "kv"))
    server = serve(demo_model, *disk)
    common = server.tokens(story(1200, 1))[:1024]
    first = common + server.tokens(" The password of Anna is: walnut." * 4)
    second = common + server.tokens(" The password of Bert is: copper." * 4)
    asked = server.tokens(" And so the password is:")
    server.answer(first)
    server.wait_written()
    server.stop()
    server = serve(demo_model, *disk)
    said, cached = server.answer(second + asked)
    divergence = next(
        i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]
    )
    assert cached == divergence >= 1024
    server.stop()
    fresh = serve(demo_model)
    # Upstream too evaluates what differs in a batch of its own.
    fresh.answer(second[:divergence], 0)
    assert fresh.answer(second + asked)[0] == said
    fresh.stop()


@pytest.mark.engine
@pytest.mark.parametrize("shared", [1024, 4096])
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_what_is_shared_is_all_that_is_reused(
    kind: str,
    shared: int,
    zoo: Callable[[str], tuple[Path, tuple[str, ...]]],
    serve: Callable[..., Server],
    tmp_path: Path,
) -> None:
    model, words = zoo(kind)
    disk = ("--kv-dir", str(tmp_path / "kv"))
    one = (*words, "--ubatch-size", "1")
    common = numbers(shared, 1)
    first, second = [*common, 1, *numbers(200, 2)], [*common, 2, *numbers(200, 3)]
    fresh = serve(model, *one, "--cache-ram", "0")
    fresh.answer(second)
    expected = fresh.state()
    fresh.stop()
    server = serve(model, *one, *disk)
    server.answer(first)
    server.wait_written()
    server.stop(signal.SIGKILL)
    server = serve(model, *one, *disk)
    _, cached = server.answer(second)
    assert cached == (shared if kind == "dense" else 0)  # a hybrid state cannot be cut
    assert server.state() == expected
    server.stop()


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["dense", "hybrid", "window", "recurrent"])
def test_any_edit_gives_the_state_of_a_fresh_server(
    kind: str,
    zoo: Callable[[str], tuple[Path, tuple[str, ...]]],
    serve: Callable[..., Server],
    tmp_path: Path,
) -> None:
    """Law: after any sequence of appending, editing, truncating and swapping, with restarts at any
    point, the state is that of a server that evaluated the prompt alone.

    A micro-batch of one token makes what is computed independent of how a prompt is split.
    """
    chance = random.Random(f"edits of {kind}")  # noqa: S311 - a test's own numbers
    model, words = zoo(kind)
    one = (*words, "--ubatch-size", "1")
    disk = ("--kv-dir", str(tmp_path / "kv"))
    fresh = serve(model, *one)
    server = serve(model, *one, *disk)
    prompt = numbers(600, 7)
    for _ in range(10):
        place = chance.randrange(len(prompt) // 2, len(prompt))
        change = chance.choice(["append", "edit", "truncate", "swap"])
        change = "append" if len(prompt) < 400 else change
        if change == "append":
            prompt = prompt + numbers(chance.randrange(1, 60), place)
        elif change == "edit":
            prompt = [*prompt[:place], prompt[place] % 98 + 1, *prompt[place + 1 :]]
        elif change == "truncate":
            prompt = prompt[:place]
        else:
            prompt = [*prompt[:place], *reversed(prompt[place:])]
        said, _ = server.answer(prompt, 4)
        expected, _ = fresh.answer(prompt, 4, cache_prompt=False)
        assert said == expected, change
        if kind != "window":  # old cells of the window may lie elsewhere
            assert server.state() == fresh.state(), change
        if chance.random() < 0.4:
            server.stop(chance.choice(RESTARTS))
            server = serve(model, *one, *disk)
    assert server.wait_written()["files"] > 0
    server.stop()
    fresh.stop()
