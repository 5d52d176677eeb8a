"""Assignments of a shell file (``/etc/default/grub``) whose values are kernel command lines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.cmdline import WHITE, Word, drop_words, set_words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_.,:/=-]+")
_CLOSING = {"{": "}", "(": ")"}


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """``NAME=value``: ``start`` to before ``end`` is the value with its quotes."""

    name: str
    start: int
    end: int
    quote: str
    """The last quote in the value: ``"``, ``'``, or empty."""
    words: tuple[Word, ...]
    glued: frozenset[str] = frozenset()
    """Names of words that are joined from differently quoted pieces: no text to cut out."""
    inside: frozenset[int] = frozenset()
    """Where words end between quotes, so that more can be written behind them."""
    adds: bool = False
    """Written with ``+=``."""


def assignments(text: str, names: str) -> list[Assignment]:
    """The assignments whose name matches the pattern ``names``, in order; comments are none."""
    pattern = re.compile(rf"^[ \t]*(?:export[ \t]+)?({names})(\+?=)", re.MULTILINE)
    found: list[Assignment] = []
    at = 0
    while match := pattern.search(text, at):
        start = match.end()
        scan = _Scanner(text, start)
        found.append(
            Assignment(
                name=match[1],
                start=start,
                end=scan.at,
                quote=scan.last_quote,
                words=tuple(scan.words),
                glued=frozenset(word.name for word in scan.glued),
                inside=frozenset(scan.inside),
                adds=match[2] == "+=",
            )
        )
        at = scan.at
    return found


class _Scanner:
    """Scans one shell word, the value of an assignment, into the command-line words inside.

    ``${…}`` and ``$(…)`` at a word's beginning are words of their own, so that what follows, as in
    ``${X:+$X }quiet``, is seen as the separate word that it becomes.
    """

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start
        self.quote = ""
        self.last_quote = ""
        self.words: list[Word] = []
        self.glued: list[Word] = []
        self.inside: set[int] = set()
        self._begin: int | None = None
        self._inner = False  # inside quotes that the kernel sees
        self._mixed = False  # the word in progress began under another quoting
        while self.at < len(text) and not self._step():
            pass
        self._close()

    def _step(self) -> bool:
        """Take the next character; true when the value ends there."""
        text, at = self.text, self.at
        char, following = text[at], text[at + 1 : at + 2]
        if self.quote != "'" and char == "\\" and following:
            self._inner ^= following == '"'
            self._open()
            self.at += 2
        elif char == self.quote or (not self.quote and char in "\"'"):
            self._toggle(char)
        elif self.quote != "'" and char == "$" and following in _CLOSING:
            end = _closing(text, at + 1)
            if self._begin is None:
                # It stands for words that we do not see: nothing behind it is the first.
                self.words.append(Word(text="$", start=at, end=end, first=not self.words))
                if self.quote:
                    self.inside.add(end)
            self.at = end
        elif char in WHITE and not self._inner:
            self._close()
            if not self.quote:
                return True
            self.at += 1
        elif not self.quote and char in ";#&|":
            return True
        else:
            self._inner ^= self.quote == "'" and char == '"'
            self._open()
            self.at += 1
        return False

    def _toggle(self, char: str) -> None:
        if self.quote:
            if self.text[self.at + 1 : self.at + 2] in ("", *WHITE, *";#&|"):
                self._close()
            self.last_quote, self.quote, self._inner = char, "", False
        else:
            self.quote = char
        self._mixed = self._begin is not None
        self.at += 1

    def _open(self) -> None:
        if self._begin is None:
            self._begin, self._mixed = self.at, False

    def _close(self) -> None:
        if self._begin is None:
            return
        word = Word(
            text=self.text[self._begin : self.at],
            start=self._begin,
            end=self.at,
            first=not self.words,
        )
        self.words.append(word)
        if self.quote:
            self.inside.add(word.end)
        if self._mixed:
            self.glued.append(word)
        self._begin, self._mixed = None, False


def _closing(text: str, at: int) -> int:
    """Behind the bracket that closes the one at ``at``."""
    opening, closing, depth = text[at], _CLOSING[text[at]], 0
    while at < len(text):
        depth += (text[at] == opening) - (text[at] == closing)
        at += 1
        if depth == 0:
            break
    return at


def drop_from_assignments(text: str, names: str, drop: Collection[str]) -> str:
    """``text`` without the dropped parameters in every matching assignment.

    Raises :class:`~llama_ai.errors.LlamaAiError` where one is put together by the shell.
    """
    _refuse_glued(text, names, set(drop))
    return drop_words(text, lambda t: _all_words(t, names), lambda word: word.name in drop)


def set_in_assignments(
    text: str, name: str, wanted: Sequence[tuple[str, str]], drop: Collection[str]
) -> str | None:
    """Put the wanted parameters, once each, into the assignments of ``name``.

    New ones are added to the last assignment. ``None`` when there is no assignment. Raises as
    :func:`drop_from_assignments`.
    """
    _refuse_glued(text, name, {*drop, *(parameter for parameter, _ in wanted)})
    if not assignments(text, name):
        return None
    text, missing = set_words(text, lambda t: _all_words(t, name), wanted, drop)
    if not missing:
        return text
    last = assignments(text, name)[-1]
    new = " ".join(missing)
    stop = next((word for word in last.words if word.text == "--"), None)
    before = [word for word in last.words if stop is None or word.start < stop.start]
    value = text[last.start : last.end]
    if before:
        at = before[-1].end
        new = f" {new}" if at in last.inside else f'" {new}"'
    elif stop is not None:
        at = stop.start
        new = f"{new} " if stop.end in last.inside else f'"{new} "'
    elif last.quote:
        # Only blanks, or nothing: behind them, and never glued to what `+=` adds to.
        begin = text.index(last.quote, last.start) + 1
        at = text.index(last.quote, begin)
        new = f" {new}" if last.adds and at == begin else new
    else:
        at, new = last.start, f'"{new}"'
    if before and _PLAIN.fullmatch(value):
        return f'{text[: last.start]}"{value}{new[1:]}{text[last.end :]}'
    return text[:at] + new + text[at:]


def _refuse_glued(text: str, names: str, touched: set[str]) -> None:
    for assignment in assignments(text, names):
        for name in sorted(assignment.glued & touched):
            raise LlamaAiError(
                f"{assignment.name} puts {name} together from several pieces",
                hint="take it out by hand, then run this again",
            )


def _all_words(text: str, names: str) -> list[Word]:
    found: list[Word] = []
    for assignment in assignments(text, names):
        for word in assignment.words:
            if word.text == "--":
                break
            found.append(word)
    return found


def assigned_words(text: str, names: str) -> list[Word]:
    """The command-line words of all matching assignments."""
    return [word for word in _all_words(text, names) if word.text != "$"]
