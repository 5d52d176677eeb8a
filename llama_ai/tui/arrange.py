"""How the main screen is divided. Pure: the size and the needs in, heights out."""

from __future__ import annotations

from dataclasses import dataclass

WIDE_COLUMNS, WIDE_ROWS = 110, 30
FRAME_ROWS = 2
FRAME_COLUMNS = 4
"""A framed panel: its border, and a blank column at each side."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Rows that each part has to show."""

    header: int
    memory: int
    hardware: int
    slots: int


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """Heights in rows, frames included; the log takes what is left."""

    wide: bool
    header: int
    memory: int
    hardware: int
    speed: int
    slots: int
    gap: bool
    """Whether blank rows separate the parts."""


def is_wide(width: int, height: int) -> bool:
    """Whether there is room for two framed columns."""
    return width >= WIDE_COLUMNS and height >= WIDE_ROWS


def column_width(width: int, height: int) -> int:
    """Columns that a panel of the upper part has for its lines."""
    return width // 2 - FRAME_COLUMNS if is_wide(width, height) else width


def slots_width(width: int, height: int) -> int:
    """Columns that the slots have for their lines."""
    return width - FRAME_COLUMNS if is_wide(width, height) else width


def arrange(width: int, height: int, needs: Needs) -> Arrangement:
    """Give every part what it needs where there is room; slots and log share the rest.

    In a low terminal the parts give way in this order: the charts' height, the totals, the log
    (down to two rows), the slots.
    """
    header = min(needs.header, 3)
    if is_wide(width, height):
        memory, hardware = needs.memory + FRAME_ROWS, needs.hardware + FRAME_ROWS
        wanted = max(memory + hardware, 9 if height < 40 else 13)
        speed = min(wanted, max(memory + hardware, height // 3))
        left = height - header - speed - 1
        slots = min(needs.slots + FRAME_ROWS, max(3 + FRAME_ROWS, left * 2 // 3))
        return Arrangement(
            wide=True,
            header=header,
            memory=speed - hardware,
            hardware=hardware,
            speed=speed,
            slots=slots,
            gap=False,
        )
    gap = height >= 34
    fixed = header + needs.memory + needs.hardware + 1 + (3 if gap else 0)
    left = height - fixed
    speed = 9 if left >= 28 else 7 if left >= 20 else 3 if left >= 8 else 2
    left -= speed
    log = 4 if left >= 8 else 3 if left >= 5 else 0
    if needs.slots > left - log:
        log = min(log, 2)  # the log has a screen of its own, the slots have not
    return Arrangement(
        wide=False,
        header=header,
        memory=needs.memory,
        hardware=needs.hardware,
        speed=speed,
        slots=max(1, min(needs.slots, left - log)),
        gap=gap,
    )
