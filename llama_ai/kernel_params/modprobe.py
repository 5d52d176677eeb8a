"""``modprobe.d`` files: the ``options`` lines of a module, with their places."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.kernel_params.cmdline import Word

if TYPE_CHECKING:
    from collections.abc import Iterator

    from llama_ai.kernel_params.tree import Tree

MODPROBE_DIRECTORIES = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
"""In order of precedence: a name in an earlier directory hides the same name in a later one."""

# A word ends at white space; a backslash before a line's end is white space too.
_MODPROBE_WORD = re.compile(r'(?:"[^"\n]*"|[^\s\\"]|\\(?!\n)|")+')
_LOGICAL_LINE = re.compile(r"(?:[^\n\\]|\\.)*\\?(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class OptionsLine:
    """One ``options MODULE …`` line (with its continuations): where it stands, and its words."""

    module: str
    start: int
    end: int
    options: tuple[Word, ...]


def options_lines(text: str) -> list[OptionsLine]:
    """The ``options`` lines of a file. Each word's text reads ``module.name=value``."""
    found: list[OptionsLine] = []
    at = 0
    while at < len(text):
        match = _LOGICAL_LINE.match(text, at)
        end = match.end() if match and match.end() > at else len(text)
        words = list(_MODPROBE_WORD.finditer(text, at, end))
        if len(words) >= 2 and words[0][0] == "options":
            module = words[1][0].replace("-", "_")
            options = tuple(
                Word(text=f"{module}.{word[0]}", start=word.start(), end=word.end())
                for word in words[2:]
            )
            found.append(OptionsLine(module=module, start=at, end=end, options=options))
        at = end
    return found


def drop_options(text: str, names: frozenset[str]) -> str:
    """``text`` without the options called ``names``; a line that held nothing else goes whole."""
    while True:
        for line in options_lines(text):
            doomed = [word for word in line.options if word.name in names]
            if not doomed:
                continue
            if len(doomed) == len(line.options):
                text = text[: line.start] + text[line.end :]
            else:
                start = doomed[0].start
                while text[start - 1] in " \t" or text[start - 2 : start] == "\\\n":
                    start -= 1 if text[start - 1] in " \t" else 2
                text = text[:start] + text[doomed[0].end :]
            break
        else:
            return text


def modprobe_files(tree: Tree) -> Iterator[tuple[str, str]]:
    """Path and text of each file that modprobe reads, in the order in which it reads them.

    For one parameter the file that is read last wins.
    """
    seen: dict[str, str] = {}
    for directory in MODPROBE_DIRECTORIES:
        for name in tree.names(directory):
            if name.endswith(".conf"):
                seen.setdefault(name, f"{directory}/{name}")
    for name in sorted(seen):
        text = tree.text(seen[name])
        if text is not None:
            yield seen[name], text
