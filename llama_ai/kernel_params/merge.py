"""Take our own change out of a file that somebody else has edited since: a three-way merge.

From what we wrote, two ways lead away: back to what was there before us, and on to what is there
now. Where the two touch different words, both are taken; where they touch the same words, the
other's edit stays and that is reported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from llama_ai.kernel_params.tree import decode, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

# A word takes the blanks before it along; quotes and line ends stand alone.
_TOKEN = re.compile(r"[ \t]*[^\s\"']+|[ \t]*[\"']|[ \t]*\r?\n|[ \t]+|\s")


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The result, and whether an edit of somebody else overlapped with ours."""

    content: bytes | None
    overlapped: bool = False


@dataclass(frozen=True, kw_only=True)
class _Change:
    start: int
    end: int
    new: tuple[str, ...]


def undo(*, base: bytes | None, written: bytes | None, current: bytes | None) -> Merged:
    """``current`` without the step from ``base`` to ``written``. ``None`` stands for no file."""
    if current in (written, base):
        return Merged(content=base)
    if current is None:
        return Merged(content=None, overlapped=True)  # somebody removed the file: it stays so
    if written is None:
        return Merged(content=current, overlapped=True)
    old = _TOKEN.findall(decode(written))
    back = _changes(old, _TOKEN.findall(decode(base or b"")))
    theirs = _changes(old, _TOKEN.findall(decode(current)))
    back = [mine for mine in back if mine not in theirs]  # done by the other too: once is enough
    kept = [mine for mine in back if not any(_touch(mine, other) for other in theirs)]
    pieces: list[str] = []
    at = 0
    for change in sorted([*kept, *theirs], key=lambda one: (one.start, one.end)):
        pieces += old[at : change.start]
        pieces += change.new
        at = change.end
    pieces += old[at:]
    content = encode("".join(pieces))
    if base is None and not content.strip():
        return Merged(content=None)
    return Merged(content=content, overlapped=len(kept) < len(back))


def _changes(old: Sequence[str], new: Sequence[str]) -> list[_Change]:
    # Equal ends are taken off first: the matcher prefers the longest run, wherever it stands.
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    middle_old, middle_new = old[head : len(old) - tail], new[head : len(new) - tail]
    matcher = SequenceMatcher(None, middle_old, middle_new, autojunk=False)
    return [
        _Change(start=head + a, end=head + b, new=tuple(middle_new[c:d]))
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


def _touch(mine: _Change, other: _Change) -> bool:
    if mine.start == mine.end and other.start == other.end:
        return False  # two insertions at one place: both are taken
    if other.start == other.end:  # an insertion at either end of ours is no overlap
        return mine.start < other.start < mine.end
    if mine.start == mine.end:
        return other.start < mine.start < other.end
    return mine.start < other.end and other.start < mine.end
