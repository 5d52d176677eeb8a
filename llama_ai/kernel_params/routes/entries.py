"""Boot loader entries (``loader/entries/*.conf``) on every partition that has them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.kernel_params.cmdline import Word, drop_words, rewrite, split_words
from llama_ai.kernel_params.parameters import SIZING
from llama_ai.kernel_params.tree import NeedsRootError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from llama_ai.kernel_params.parameters import Wanted
    from llama_ai.kernel_params.tree import Tree

USUAL_PLACES = ("/boot", "/efi", "/boot/efi", "/esp")
MOUNTED_BY_US = "/run/llama-ai-esp"
"""Where the helper mounts partitions that nobody mounted."""

_SYSTEM = ("dev", "etc", "lib", "lib64", "nix", "proc", "sys", "tmp", "usr", "var")
_NO_PLACES = frozenset({*_SYSTEM, "home", "opt", "root", "srv"})
_OPTIONS_LINE = re.compile(r"^options(?=[ \t]|$)[ \t]*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry that boots a Linux kernel."""

    path: str
    text: str


def entry_places(tree: Tree) -> list[str]:
    """Directories that hold ``loader/entries``: the usual ones, and every other that is mounted.

    On the running machine those are the FAT file systems in use (never removable media below
    ``/run/media``); in a recording, whatever lies at most four levels deep. One partition that is
    mounted twice counts once.
    """
    places = [*USUAL_PLACES]
    if tree.is_live:
        places += sorted(_fat_mounts(tree))
        places += [f"{MOUNTED_BY_US}/{name}" for name in tree.names(MOUNTED_BY_US)]
    else:
        places += _deep(tree, "", 4)
    found: list[str] = []
    seen: set[object] = set()
    for place in places:
        directory = f"{place}/loader/entries"
        # Asked first, because is_dir cannot tell "absent" from "not allowed to look".
        names = tree.names(directory)
        identity = tree.identity(directory)
        if names and identity not in seen:
            seen.add(identity)
            found.append(tree.resolve(place))
    return found


def _deep(tree: Tree, place: str, levels: int) -> list[str]:
    found: list[str] = []
    for name in tree.names(place or "/"):
        here = f"{place}/{name}"
        if (not place and name in _NO_PLACES) or not tree.is_dir(here) or name == "loader":
            continue
        found.append(here)
        if levels > 1:
            found += _deep(tree, here, levels - 1)
    return found


def _fat_mounts(tree: Tree) -> set[str]:
    found: set[str] = set()
    for line in (tree.fact("/proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")[0]
        if kind != "vfat" or len(fields) < 5:
            continue
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        if not place.startswith(("/run/media/", "/media/")):
            found.add(place)
    return found


def read_entries(tree: Tree) -> Iterator[Entry]:
    """The entries of this system that boot a Linux kernel, on every place.

    An entry that names another ``machine-id`` belongs to another system on the same disk.
    """
    machine = tree.fact("/etc/machine-id")
    for place in entry_places(tree):
        for name in tree.names(f"{place}/loader/entries"):
            path = f"{place}/loader/entries/{name}"
            if not name.endswith(".conf"):
                continue
            text = tree.text(path)
            if text is None or not re.search(r"^linux[ \t]", text, re.MULTILINE):
                continue
            other = re.search(r"^machine-id[ \t]+([0-9a-f]{32})[ \t]*$", text, re.MULTILINE)
            if other and machine and re.fullmatch("[0-9a-f]{32}", machine) and other[1] != machine:
                continue
            yield Entry(path=tree.resolve(path), text=text)


def set_in_entry(text: str, wanted: Wanted) -> str:
    """An entry with the parameters exactly once over all its ``options`` lines."""
    names = {name for name, _ in wanted.parameters}
    last = list(_OPTIONS_LINE.finditer(text))
    if not last:
        gap = "" if text.endswith("\n") or not text else "\n"
        words = " ".join(f"{name}={value}" for name, value in wanted.parameters)
        return f"{text}{gap}options {words}\n"
    # All but the last line lose ours: the kernel sees one line, and it must be there once.
    head, tail = text[: last[-1].start()], text[last[-1].start() :]
    head = drop_words(head, option_words, lambda word: word.name in names | set(wanted.drop))
    line, newline, rest = tail.partition("\n")
    keyword = _OPTIONS_LINE.match(line)
    start = keyword.end() if keyword else 0
    if start == len("options"):
        line, start = line + " ", start + 1
    return head + rewrite(line, wanted.parameters, wanted.drop, start=start) + newline + rest


def option_words(text: str) -> list[Word]:
    """The words of every ``options`` line."""
    found: list[Word] = []
    for match in _OPTIONS_LINE.finditer(text):
        newline = text.find("\n", match.end())
        found += split_words(text, start=match.end(), end=len(text) if newline < 0 else newline)
    return found


def entry_values(entries: Sequence[Entry]) -> tuple[str, ...]:
    """The sizing words in these entries."""
    return tuple(
        word.text for entry in entries for word in option_words(entry.text) if word.name in SIZING
    )


def readable_entries(tree: Tree) -> list[Entry]:
    """:func:`read_entries`, or none where only root may look."""
    try:
        return list(read_entries(tree))
    except NeedsRootError:
        return []
