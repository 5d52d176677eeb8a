"""A kernel command line as words with their places, so that an edit leaves every other byte alone.

Words are split as the kernel does (``next_arg`` in ``lib/cmdline.c``): white space outside double
quotes separates. What follows a bare ``--`` belongs to init and is never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

WHITE = " \t\n\v\f\r"


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word: its text and where it stands (``start`` to before ``end``)."""

    text: str
    start: int
    end: int
    first: bool = False
    """Nothing of the same list of words stands before it, so the gap before it is not its own."""

    @property
    def name(self) -> str:
        """The parameter's name with ``-`` as ``_``, which the kernel holds to be the same."""
        return self.text.replace('\\"', '"').lstrip('"').partition("=")[0].replace("-", "_")

    @property
    def value(self) -> str | None:
        """The value without its quotes; ``None`` where there is no ``=``."""
        _, equals, value = self.text.replace('\\"', '"').lstrip('"').partition("=")
        return value.strip('"') if equals else None


def split_words(line: str, *, start: int = 0, end: int | None = None) -> list[Word]:
    """The words of ``line[start:end]``, up to a bare ``--``."""
    found: list[Word] = []
    at, size = start, len(line) if end is None else end
    while at < size:
        if line[at] in WHITE:
            at += 1
            continue
        begin, quoted = at, False
        while at < size and (quoted or line[at] not in WHITE):
            quoted ^= line[at] == '"'
            at += 1
        if line[begin:at] == "--":
            break
        found.append(Word(text=line[begin:at], start=begin, end=at, first=not found))
    return found


def drop_words(
    text: str, split: Callable[[str], Sequence[Word]], doomed: Callable[[Word], bool]
) -> str:
    """``text`` without the words that are ``doomed``.

    A word goes with the white space before it; the first word of a line with the gap to the next.
    """
    while True:
        words = split(text)
        index = next((index for index, word in enumerate(words) if doomed(word)), None)
        if index is None:
            return text
        text = _without(text, words, index)


def _without(text: str, words: Sequence[Word], index: int) -> str:
    start, end = words[index].start, words[index].end
    if words[index].first:
        following = words[index + 1 : index + 2]
        if following and not following[0].first:
            end = following[0].start
    else:
        while start > 0 and text[start - 1] in WHITE:
            start -= 1
    return text[:start] + text[end:]


def set_words(
    text: str,
    split: Callable[[str], Sequence[Word]],
    wanted: Sequence[tuple[str, str]],
    drop: Collection[str],
) -> tuple[str, list[str]]:
    """Make each wanted parameter that occurs occur once, with its value, and the dropped ones not.

    The last occurrence is the one that the kernel obeys: it is changed in place, earlier ones go.
    Returns the new text and the ``name=value`` words that occur nowhere yet.
    """
    names = {name for name, _ in wanted}
    text = drop_words(text, split, lambda word: word.name in drop and word.name not in names)
    missing: list[str] = []
    for name, value in wanted:
        new = f"{name}={value}"
        while True:
            words = split(text)
            places = [index for index, word in enumerate(words) if word.name == name]
            if len(places) < 2:
                break
            text = _without(text, words, places[0])
        if places:
            last = words[places[0]]
            text = text[: last.start] + new + text[last.end :]
        else:
            missing.append(new)
    return text, missing


def rewrite(
    line: str,
    wanted: Sequence[tuple[str, str]],
    drop: Collection[str],
    *,
    start: int = 0,
) -> str:
    """``line`` with the wanted parameters exactly once; new ones come last, before a ``--``.

    ``start`` is where the words begin (behind a keyword). With no ``wanted`` it only drops.
    """

    def split(text: str) -> list[Word]:
        return split_words(text, start=start)

    line, missing = set_words(line, split, wanted, drop)
    if not missing:
        return line
    words = split(line)
    new = " ".join(missing)
    if words:
        return line[: words[-1].end] + " " + new + line[words[-1].end :]
    rest = line[start:]
    return line[:start] + new + (" " if rest.strip(WHITE) and rest[0] not in WHITE else "") + rest
