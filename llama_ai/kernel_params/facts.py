"""What is in force and what is asked for: sysfs, the command line, modprobe's files."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError
from llama_ai.kernel_params.cmdline import Word, split_words
from llama_ai.kernel_params.modprobe import modprobe_files, options_lines
from llama_ai.kernel_params.parameters import (
    GTTSIZE,
    PAGE_BYTES,
    SIZING,
    meant,
    number,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.kernel_params.tree import Tree

CMDLINE = "/proc/cmdline"
UNSAFE = "amdgpu.vis_vramlimit"
_CARD = re.compile(r"card[0-9]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Card:
    """An AMD graphics card's memory in bytes, as its driver states it."""

    name: str
    gtt_bytes: int | None
    vram_bytes: int | None
    carveout: str | None = None
    """The firmware's choices of carve-out for the next boot, where the kernel shows them."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """A word that says something about GTT, where it stands, and what to think of it."""

    where: str
    name: str
    value: str | None
    verdict: str
    """``in use``, or why it is not: ``typo``, ``overridden``, ``no number``, ``other module``;
    ``deprecated`` is in use too."""
    note: str | None = None


@dataclass(frozen=True, kw_only=True)
class ParameterFacts:
    """Everything that ``show`` prints and ``verify`` judges. ``None`` means not known."""

    ram_bytes: int | None = None
    """MemTotal: the carve-out is not in it."""
    release: str | None = None
    distro: str | None = None
    boot_id: str | None = None
    module: str | None = None
    """The loaded module that sizes GTT: ``amdttm`` beside AMD's DKMS driver, else ``ttm``."""
    pages_limit: int | None = None
    page_pool_size: int | None = None
    gttsize_mib: int | None = None
    cards: tuple[Card, ...] = ()
    cmdline: str | None = None
    found: tuple[Found, ...] = field(default=())

    @property
    def gtt_bytes(self) -> int | None:
        """What the driver states; the smallest where cards differ."""
        sizes = [card.gtt_bytes for card in self.cards if card.gtt_bytes is not None]
        return min(sizes) if sizes else None

    @property
    def limit_bytes(self) -> int | None:
        """The loaded module's limit."""
        return self.pages_limit * PAGE_BYTES if self.pages_limit else None

    @property
    def usable_bytes(self) -> int | None:
        """The bound that holds: the driver's figure alone may merely echo a parameter."""
        known = [size for size in (self.gtt_bytes, self.limit_bytes) if size is not None]
        return min(known) if known else None


def read_facts(tree: Tree) -> ParameterFacts:
    """Read everything; a file that cannot be read gives ``None``."""
    modules = [name for name in ("amdttm", "ttm") if tree.is_dir(f"/sys/module/{name}/parameters")]
    module = modules[0] if modules else None
    where = f"/sys/module/{module}/parameters"
    cmdline = tree.fact(CMDLINE)
    boot_id = tree.fact("/proc/sys/kernel/random/boot_id")
    return ParameterFacts(
        ram_bytes=_ram_bytes(tree),
        release=tree.fact("/proc/sys/kernel/osrelease"),
        distro=os_release(tree).get("PRETTY_NAME") or os_release(tree).get("NAME"),
        boot_id=boot_id if boot_id and re.fullmatch(r"[0-9a-f-]{36}", boot_id) else None,
        module=module,
        pages_limit=number(tree.fact(f"{where}/pages_limit")) if module else None,
        page_pool_size=number(tree.fact(f"{where}/page_pool_size")) if module else None,
        # Unset is shown as -1, which is no number here: unset and unknown are one thing.
        gttsize_mib=number(tree.fact("/sys/module/amdgpu/parameters/gttsize")),
        cards=_cards(tree),
        cmdline=cmdline,
        found=_found_words(tree, cmdline, module),
    )


def os_release(tree: Tree) -> dict[str, str]:
    """``/etc/os-release`` (or the one in ``/usr/lib``) as keys and values."""
    text = tree.fact("/etc/os-release") or tree.fact("/usr/lib/os-release") or ""
    result: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        value = value.strip().strip("\"'")
        if equals and not key.startswith("#") and value and value.isprintable():
            result[key.strip()] = value
    return result


def distro_ids(tree: Tree) -> tuple[str, ...]:
    """``ID`` and ``ID_LIKE`` in lower case, the most specific first."""
    system = os_release(tree)
    return tuple(f"{system.get('ID', '')} {system.get('ID_LIKE', '')}".lower().split())


def judge(words: Sequence[tuple[str, Word]], module: str | None) -> list[Found]:
    """Say of each word (with its place, in the order in which they are obeyed) what it does."""
    last = {word.name: index for index, (_, word) in enumerate(words) if word.name in SIZING}
    found: list[Found] = []
    for index, (where, word) in enumerate(words):
        verdict, note = _word_verdict(word, module)
        if verdict is None:
            continue
        if verdict in ("in use", "deprecated") and last[word.name] != index:
            verdict, note = "overridden", f"{words[last[word.name]][0]} sets it again, later"
        found.append(
            Found(where=where, name=word.name, value=word.value, verdict=verdict, note=note)
        )
    return found


def _word_verdict(word: Word, module: str | None) -> tuple[str | None, str | None]:
    if word.name == UNSAFE:
        return "testing only", "it shrinks the memory that the CPU can reach: remove it"
    if word.name not in SIZING:
        right = meant(word.name)
        if right is None or word.value is None:
            return None, None
        return "typo", f"the kernel ignores it without a word; {right} is meant"
    if number(word.value) is None and not (word.name == GTTSIZE and word.value == "-1"):
        return "no number", "the kernel refuses the value: it takes a plain number"
    owner = word.name.partition(".")[0]
    if owner in ("ttm", "amdttm") and module is not None and owner != module:
        return "other module", f"the loaded module is {module}"
    if word.name == GTTSIZE:
        return "deprecated", "it overrides the page limit and can promise more than there is"
    return "in use", None


def _found_words(tree: Tree, cmdline: str | None, module: str | None) -> tuple[Found, ...]:
    words: list[tuple[str, Word]] = []
    try:
        for path, text in modprobe_files(tree):
            for line in options_lines(text):
                words += [(path, word) for word in line.options]
    except LlamaAiError:
        words = []  # an unreadable file: better to say nothing than half of it
    # modprobe adds the kernel's command line behind its own files, so that wins.
    words += [(CMDLINE, word) for word in split_words(cmdline or "")]
    return tuple(judge(words, module))


def _ram_bytes(tree: Tree) -> int | None:
    text = tree.fact("/proc/meminfo") or ""
    match = re.search(r"^MemTotal:\s*([0-9]{1,15}) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match and int(match[1]) else None


def _cards(tree: Tree) -> tuple[Card, ...]:
    cards: list[Card] = []
    try:
        names = tree.names("/sys/class/drm")
    except LlamaAiError:
        return ()
    for name in names:
        device = f"/sys/class/drm/{name}/device"
        if not _CARD.fullmatch(name) or tree.fact(f"{device}/vendor") != "0x1002":
            continue
        cards.append(
            Card(
                name=name,
                gtt_bytes=number(tree.fact(f"{device}/mem_info_gtt_total")),
                vram_bytes=number(tree.fact(f"{device}/mem_info_vram_total")),
                carveout=tree.fact(f"{device}/uma/carveout_options"),
            )
        )
    return tuple(cards)
