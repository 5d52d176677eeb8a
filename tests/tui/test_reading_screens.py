"""The plan and the help: their words, scrolling, and the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from llama_ai.tui.screens.main import MainScreen
from tests.tui.playing import Playing, compare, show

if TYPE_CHECKING:
    from llama_ai.monitor.sampler import Look

SIZES = [(80, 24), (160, 48), (60, 20)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(("key", "name"), [("question_mark", "help"), ("e", "plan")])
def test_the_text(generating: list[Look], size: tuple[int, int], key: str, name: str) -> None:
    async def script(playing: Playing) -> None:
        await playing.press(key)
        compare(f"{name}-{size[0]}x{size[1]}", playing.text())
        await playing.press("escape")
        assert isinstance(playing.app.screen, MainScreen)

    show(generating, size, script)


def test_scrolling_to_the_end_and_back(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.press("e")
        first = playing.text()
        assert "↓ more" in first
        await playing.press("end")
        assert "↓ more" not in playing.text()
        assert "rejected" in playing.text().casefold()
        await playing.press("home")
        assert playing.text() == first

    show(generating, (60, 20), script)


def test_every_choice_is_shown_with_its_reason_and_every_rejection(generating: list[Look]) -> None:
    plan = dict(generating[0].plan or {})
    plan["rejected"] = [
        {"description": "65536 tokens, f16 KV", "over_by_bytes": 3 << 30, "where": "gpu"}
    ]
    look = replace(generating[0], plan=plan)

    async def script(playing: Playing) -> None:
        await playing.press("e")
        text = playing.text()
        for reason in plan["reasons"]:
            assert reason["setting"] in text
            assert reason["why"].split()[0] in text
        assert "65536 tokens, f16 KV: 3.0G over the gpu budget" in text

    show([look], (160, 60), script)


def test_without_a_plan_it_says_so(generating: list[Look]) -> None:
    bare = replace(generating[0], plan=None)
    foreign = replace(bare, sample=replace(bare.sample, instance=None))

    async def kept(playing: Playing) -> None:
        await playing.press("e")
        assert "did not keep the plan" in playing.text()
        assert "CPU, 8192 tokens of context" in playing.text()

    async def other(playing: Playing) -> None:
        await playing.press("e")
        assert "was not started by llama-ai" in playing.text()

    show([bare], (80, 24), kept)
    show([foreign], (80, 24), other)


def test_a_strange_plan_breaks_nothing(generating: list[Look]) -> None:
    strange = {
        "model": 3,
        "reasons": ["x", {"why": None}],
        "memory": [],
        "rejected": [{}],
        "sources": 1,
    }
    look = replace(generating[0], plan=strange)

    async def script(playing: Playing) -> None:
        await playing.press("e")
        assert "PLAN" in playing.text()

    show([look], (80, 24), script)
