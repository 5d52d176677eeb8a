"""The main screen at every size, and what the keys do to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from llama_ai.monitor.sample import Missing, Slot
from llama_ai.tui.palette import CONTRAST, LIGHT, PLAIN
from llama_ai.tui.screens.main import MainScreen
from llama_ai.tui.widgets.search import SearchLine
from tests.tui.playing import Playing, compare, late, show, with_state

if TYPE_CHECKING:
    from llama_ai.monitor.sampler import Look

SIZES = [(80, 24), (160, 48), (200, 60), (60, 20), (100, 36), (40, 12)]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_generating_server(generating: list[Look], size: tuple[int, int]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(len(generating))
        compare(f"main-generating-{size[0]}x{size[1]}", playing.text())

    show(generating, size, script)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_an_apu_with_users_drafts_and_a_disk_tier(apu: list[Look], size: tuple[int, int]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(24)
        compare(f"main-apu-{size[0]}x{size[1]}", playing.text())

    show(apu, size, script)


@pytest.mark.parametrize(
    ("state", "detail", "symbol"),
    [
        ("restarting", "the engine ended by signal 11; again in 2 s", "↻ RESTARTING"),
        ("failed", "out of memory 5 times in a row", "✖ FAILED"),
        ("stopped", None, "■ STOPPED"),
        ("hung", "connected, but no answer for 12 s", "▲ HUNG"),
        ("unreachable", "connection refused for 3 s", "✖ UNREACHABLE"),
        ("unauthorised", "the server refuses this key", "✖ UNAUTHORISED"),
        ("loading", "loading model", "◌ LOADING"),
        ("degraded", "/health fails", "▲ DEGRADED"),
        ("foreign", "/health answers 404: not a llama-server?", "✖ FOREIGN"),
        ("sleeping", "the model is unloaded until the next request", "○ SLEEPING"),
        ("absent", "no server runs here: `llama-ai serve MODEL` starts one", "○ ABSENT"),
    ],
)
def test_each_state_has_its_own_word_and_symbol(
    generating: list[Look], state: str, detail: str | None, symbol: str
) -> None:
    look = with_state(generating[5], state, detail)

    async def script(playing: Playing) -> None:
        text = playing.text()
        assert symbol in text
        if detail is not None:
            assert detail in text

    show([look], (80, 24), script)


def test_late_values_are_marked_and_their_age_is_told(generating: list[Look]) -> None:
    looks = [*generating[:20], late(generating[20], 14.0, "the engine is busy with a long batch")]

    async def script(playing: Playing) -> None:
        await playing.play(19)
        assert "italic" not in playing.styled("▶ generating")
        await playing.play(1)
        assert "metrics and slots 14 s old: the engine is busy with a long batch" in playing.text()
        assert "italic" in playing.styled("▶ generating")

    show(looks, (100, 36), script)


def test_a_stuck_sampler_is_told(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        playing.feed._looks = generating  # more to come, but none comes
        playing.app.shown.interval_s = 1.0
        playing.app._last_look_s -= 30.0
        playing.app._tick()
        await playing.pilot.pause()
        assert "sampling is stuck: everything here is 30 s old" in playing.text()

    show([generating[0], generating[1]], (100, 36), script)


def test_what_a_server_does_not_offer_is_told(generating: list[Look]) -> None:
    sample = generating[20].sample
    missing = (
        *sample.missing,
        Missing(what="slots", why="This server does not support slots endpoint."),
    )
    engine = replace(sample.engine, slots=(), kv_used_tokens=None)
    look = replace(generating[20], sample=replace(sample, missing=missing, engine=engine))

    async def script(playing: Playing) -> None:
        text = playing.text()
        assert "no slots: This server does not support slots endpoint." in text
        assert "tokens in use are not known" in text

    show([look], (100, 36), script)


def test_more_slots_than_room(generating: list[Look]) -> None:
    sample = generating[20].sample
    slots = tuple(Slot(id=n, state="generating" if n < 5 else "idle") for n in range(40))
    engine = replace(sample.engine, slots=slots)
    look = replace(generating[20], sample=replace(sample, engine=engine))

    async def script(playing: Playing) -> None:
        text = playing.text()
        assert "more slots, 5 of 40 busy" in text
        assert "LOG" in text

    show([look], (80, 24), script)


def test_pause_freezes_and_goes_on(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(10)
        await playing.press("p")
        frozen = playing.text()
        assert "‖ PAUSED" in frozen
        await playing.play(10)
        assert playing.text().splitlines()[2:] == frozen.splitlines()[2:]
        await playing.press("p")
        playing.app._tick()
        await playing.pilot.pause()
        assert "PAUSED" not in playing.text()
        assert playing.app.shown.look is generating[20]
        # Nothing of what came meanwhile is lost.
        assert len(playing.app.shown.gen_tps) == 21

    show(generating, (80, 24), script)


def test_sorting_the_slots(apu: list[Look]) -> None:
    def order(text: str) -> list[str]:
        rows = [line.split() for line in text.splitlines()]
        return [row[1] for row in rows if len(row) > 2 and row[2] in "▶»·"]

    async def script(playing: Playing) -> None:
        await playing.play(25)
        assert [name[:3] for name in order(playing.text())] == ["ali", "bob", "car"]
        await playing.press("s")
        engine = apu[25].sample.engine
        used = sorted(engine.slots, key=lambda slot: -(slot.ctx_used_tokens or 0))
        names = [(slot.user or "")[:3] for slot in used]
        assert [name[:3] for name in order(playing.text())] == names
        assert "sorted by context" in playing.text()

    show(apu, (100, 36), script)


def test_searching_the_log(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(25)
        await playing.press("l", "slash", *"print_timing")
        text = playing.text()
        assert "with “print_timing”" in text
        body = [line for line in text.splitlines() if line.startswith("I ")]
        assert body
        assert all("print_timing" in line for line in body)
        await playing.press("enter", "q")  # a key again, no longer a letter
        assert playing.app._exit

    show(generating, (120, 40), script)


def test_no_key_lands_in_the_search_line_unasked(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.press("f")
        assert playing.app.screen.query_one(SearchLine).value == ""
        assert "LOG info" in playing.text()

    show(generating, (80, 24), script)


def test_escape_gives_the_search_up(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.press("slash", *"zzz")
        assert "with “zzz” 0 lines" in playing.text()
        await playing.press("escape")
        assert "zzz" not in playing.text()
        assert not playing.app.screen.query_one(SearchLine).display

    show(generating, (80, 24), script)


def test_scrolled_up_the_log_stays_where_it_is(generating: list[Look]) -> None:
    """Lines that arrive below do not move what is being read."""

    async def script(playing: Playing) -> None:
        await playing.play(18)
        await playing.press("l", "pageup", "up")
        before = [line for line in playing.text().splitlines() if line.startswith("I ")]
        assert before
        await playing.play(9)
        assert sum(len(look.log) for look in generating[19:28]) > 20
        after = [line for line in playing.text().splitlines() if line.startswith("I ")]
        assert before[-5:] == after[-5:]
        await playing.press("end")
        assert "below" not in playing.text()

    show(generating, (120, 20), script)


def test_the_log_alone_and_back(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(20)
        both = playing.text()
        await playing.press("l")
        compare("log-alone-80x24", playing.text())
        await playing.press("escape")
        assert playing.text() == both

    show(generating, (80, 24), script)


def test_copying(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(20)
        await playing.press("c")
        assert "slot 0" in playing.app.clipboard
        assert "http://127.0.0.1:9310" in playing.app.clipboard
        await playing.press("l", "c")
        assert playing.app.clipboard.count("\n") > 20
        assert "init_sampler" in playing.app.clipboard

    show(generating, (80, 24), script)


def test_themes_change_colours_and_nothing_else(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(20)
        text, style = playing.text(), playing.styled("READY")
        seen = {style}
        for palette in (LIGHT, CONTRAST):
            await playing.press("t")
            assert playing.text().splitlines()[:-1] == text.splitlines()[:-1]
            assert palette.background in playing.styled("READY")
            seen.add(playing.styled("READY"))
        assert len(seen) == 3

    show(generating, (80, 24), script)


def test_no_color_means_none(generating: list[Look]) -> None:
    async def script(playing: Playing) -> None:
        await playing.play(20)
        for strip in playing.app.screen._compositor.render_strips():
            for segment in strip:
                style = segment.style
                assert style is not None
                for colour in (style.color, style.bgcolor):
                    assert colour is None or colour.is_default, (segment.text, str(style))

    for size in ((80, 24), (160, 48)):
        show(generating, size, script, PLAIN)


def test_resizing(apu: list[Look]) -> None:
    """The same content as when started at that size."""

    async def script(playing: Playing) -> None:
        await playing.play(24)
        for width, height in ((160, 48), (60, 20), (80, 24)):
            await playing.pilot.resize_terminal(width, height)
            await playing.pilot.pause()
            compare(f"main-apu-{width}x{height}", playing.text())

    show(apu, (100, 36), script)


def test_only_changed_lines_are_drawn_again(generating: list[Look]) -> None:
    """A still server costs nothing: the same look again draws no line."""

    async def script(playing: Playing) -> None:
        await playing.play(5)
        drawn: list[object] = []
        screen = playing.app.screen
        assert isinstance(screen, MainScreen)
        for panel in screen.query("Panel"):
            panel.refresh = lambda *regions, **_: drawn.append(regions)  # type: ignore[method-assign, assignment]
        screen.tick()
        assert drawn == []

    show(generating, (80, 24), script)
