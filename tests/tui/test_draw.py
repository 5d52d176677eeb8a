"""Lines, bars, charts and numbers: laws that hold for every input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from llama_ai.tui.arrange import Needs, arrange
from llama_ai.tui.draw import (
    bar,
    count,
    duration,
    fit,
    size,
    sparkline,
    speed,
    spread,
    width_of,
    wrap,
)
from llama_ai.tui.palette import NAMES, PLAIN, THEMES

WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs", "So"]), max_size=40)
LINES = st.lists(st.tuples(WORDS, st.just("text")), max_size=5).map(tuple)


@given(LINES, st.integers(0, 120))
def test_a_fitted_line_has_exactly_its_width(line: tuple[tuple[str, str], ...], width: int) -> None:
    """Also with wide characters, whose halves are never shown."""
    assert width_of(fit(line, width)) == width


@given(LINES, LINES, st.integers(0, 120))
def test_two_ends_never_exceed_the_width(
    left: tuple[tuple[str, str], ...], right: tuple[tuple[str, str], ...], width: int
) -> None:
    assert width_of(spread(left, right, width)) == width


SHARES = st.floats(0, 2, allow_nan=False)


@given(st.lists(SHARES, max_size=3), st.integers(0, 80), st.none() | SHARES)
def test_a_bar_has_its_width_whatever_it_shows(
    shares: list[float], width: int, mark: float | None
) -> None:
    line = bar([(share, "█", "ram") for share in shares], width, mark=mark)
    assert width_of(line) == width


def test_parts_of_a_bar_are_told_apart_without_colour() -> None:
    line = bar([(0.25, "█", "vram"), (0.25, "▓", "gtt")], 8, mark=0.8)
    assert "".join(text for text, _ in line) == "██▓▓░░┃░"


def test_a_little_is_more_than_nothing() -> None:
    assert "".join(text for text, _ in bar([(0.001, "█", "ram")], 10)).count("█") == 1
    assert "".join(text for text, _ in bar([(0.0, "█", "ram")], 10)).count("█") == 0


@given(
    st.lists(st.none() | st.floats(0, 1e9, allow_nan=False), max_size=50),
    st.integers(0, 60),
    st.integers(1, 6),
)
def test_a_chart_has_its_size(values: list[float | None], width: int, height: int) -> None:
    rows = sparkline(values, width, height)
    assert len(rows) == height
    assert all(cell_len(row) == width for row in rows)


def test_unknown_zero_and_little_differ_in_a_chart() -> None:
    assert sparkline([None, 0, 0.001, 1], 4) == [" ·▁█"]


def test_a_chart_of_several_rows_grows_from_below() -> None:
    assert sparkline([1, 2, 4], 3, 2) == ["  █", "▄██"]


@given(WORDS, st.integers(1, 60))
def test_wrapped_text_fits_and_loses_nothing(text: str, width: int) -> None:
    pieces = wrap(text, width)
    if width > 6:
        assert all(cell_len(piece) <= width for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


@given(
    st.integers(20, 300),
    st.integers(10, 100),
    st.integers(2, 3),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 300),
)
def test_the_parts_fit_on_the_screen(
    width: int, height: int, header: int, memory: int, hardware: int, slots: int
) -> None:
    """Header, upper part, slots and keys together never exceed the height, down to 12 rows."""
    needs = Needs(header=header, memory=memory, hardware=hardware, slots=slots)
    parts = arrange(width, height, needs)
    upper = parts.speed if parts.wide else parts.memory + parts.hardware + parts.speed
    total = parts.header + upper + parts.slots + 1 + (3 if parts.gap else 0)
    least = header + memory + hardware + 2 + 1 + 1
    assert total <= max(height, least)
    assert min(parts.memory, parts.hardware, parts.speed, parts.slots) >= 1


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "?"), (0, "0B"), (2048, "2K"), (5 << 20, "5M"), (3 << 30, "3.0G"), (2 << 40, "2.0T")],
)
def test_sizes(number: int | None, text: str) -> None:
    assert size(number) == text


def test_numbers_for_people() -> None:
    assert [count(n) for n in (None, 999, 12_345, 4_100_000)] == ["?", "999", "12.3k", "4.1M"]
    assert [speed(n) for n in (None, 0.0, 12.34, 234.5)] == ["-", "0.0", "12.3", "234"]
    assert [duration(n) for n in (5, 245, 3723, 3 * 86400 + 4 * 3600)] == [
        "5s",
        "4:05",
        "1:02:03",
        "3d 04h",
    ]


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", sorted(THEMES))
def test_every_colour_can_be_read_on_its_background(name: str) -> None:
    """WCAG's contrast of at least 4.5 for text."""
    palette = THEMES[name]
    back = _luminance(palette.background)
    for style in NAMES:
        colour = palette.styles[style].color
        assert colour is not None
        one, other = sorted((_luminance(colour.name), back), reverse=True)
        if style != "match":  # the other way round
            assert (one + 0.05) / (other + 0.05) >= 4.5, style


def test_the_theme_without_colour_has_none() -> None:
    for style in PLAIN.styles.values():
        assert style.color is None
        assert style.bgcolor is None
