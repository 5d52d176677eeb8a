"""Laws of the kernel-parameter helper: what is not ours stays, ours is there once, undo undoes."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_ai.kernel_params.cmdline import WHITE, rewrite, split_words
from llama_ai.kernel_params.execute import execute
from llama_ai.kernel_params.merge import undo
from llama_ai.kernel_params.modprobe import drop_options, options_lines
from llama_ai.kernel_params.parameters import GIB, GTTSIZE, LIMITS, Wanted, meant
from llama_ai.kernel_params.planning import plan_apply, plan_revert
from llama_ai.kernel_params.routes.entries import option_words, set_in_entry
from llama_ai.kernel_params.routes.shell_words import set_in_assignments
from llama_ai.kernel_params.suggest import suggest_limit
from llama_ai.kernel_params.tree import Tree, decode, encode
from llama_ai.kernel_params.wanted import Request, ceiling_gib, reserve_bytes

WANTED = Wanted(module="ttm", pages=27262976)
OURS = frozenset({*LIMITS, GTTSIZE})
NEW = "ttm.pages_limit=27262976"

foreign_words = st.one_of(
    st.sampled_from(
        [
            "quiet",
            "rw",
            "root=UUID=1-2",
            "amdgpu.gartsize=512",
            "amd_iommu=on",
            "a.b-c.d=1,2:3",
            'dyndbg="file a.c +p"',
            '"x.y=1 2"',
            "ttm.page_pool_size=5",
            "amdgpu.gtt_size=9",
            "ttm.dma32_pages_limit=4",
            "rd.luks.uuid=luks-1",
            "=",
            "==1",
            "ttm.pages_limits=3",
        ]
    ),
    st.text(
        st.characters(codec="utf-8", exclude_characters=WHITE + "\"'`$\\#;&|\0\x85\xa0\u2028"),
        min_size=1,
        max_size=12,
    ),
).filter(lambda word: word != "--" and not set(names_of(word)) & OURS)
our_words = st.sampled_from(
    [
        "ttm.pages_limit=1",
        "ttm.pages-limit=2",
        'ttm.pages_limit="3"',
        "amdttm.pages_limit=4",
        "amdgpu.gttsize=5",
        '"ttm.pages_limit=6"',
        "ttm.pages_limit",
        "amdttm.pages-limit=x",
    ]
)
gaps = st.text(" \t", min_size=1, max_size=3)


def names_of(line: str) -> list[str]:
    return [word.name for word in split_words(line)]


def others(line: str) -> list[str]:
    return [word.text for word in split_words(line) if word.name not in OURS]


@st.composite
def command_lines(draw: st.DrawFn) -> str:
    words = draw(st.lists(st.one_of(foreign_words, our_words), max_size=8))
    line = draw(st.text(" \t", max_size=2))
    for index, word in enumerate(words):
        line += (draw(gaps) if index else "") + word
    if draw(st.booleans()):
        line += " -- init ttm.pages_limit=77"
    return line + draw(st.sampled_from(["", " ", "\n", " \n"]))


@given(command_lines())
def test_foreign_words_stay_and_ours_is_there_once(line: str) -> None:
    """Law: rewrite keeps every other word, in order; ours occurs exactly once; twice is once."""
    new = rewrite(line, WANTED.parameters, WANTED.drop)
    assert others(new) == others(line)
    assert [word.text for word in split_words(new) if word.name in OURS] == [NEW]
    assert rewrite(new, WANTED.parameters, WANTED.drop) == new
    tail = line.partition(" -- ")[1:]
    assert new.endswith("".join(tail)) or not any(tail), "init's words are not ours"
    less = Wanted(module="ttm", pages=5)
    again = rewrite(new, less.parameters, less.drop)
    assert again == new.replace(NEW, "ttm.pages_limit=5", 1)


@given(command_lines())
def test_without_ours_the_line_is_byte_identical_around_it(line: str) -> None:
    """Law: where nothing of ours stood, the new line is the old one with one word put in."""
    if set(names_of(line)) & OURS:
        line = rewrite(line, (), OURS)
    new = rewrite(line, WANTED.parameters, WANTED.drop)
    at = new.index(NEW)
    left, right = new[:at], new[at + len(NEW) :]
    assert line in (left + right, left.removesuffix(" ") + right, left + right.removeprefix(" "))


@given(st.lists(command_lines(), max_size=3), st.sampled_from(["title x\n", "", "# remark\n"]))
def test_entry(lines: list[str], head: str) -> None:
    """Law: over all options lines of an entry ours occurs once, and other lines do not change."""
    lines = [line.replace("\n", "").partition(" -- ")[0].strip() for line in lines]
    text = head + "linux /vmlinuz\n" + "".join(f"options {line}\n" for line in lines)
    new = set_in_entry(text, WANTED)
    words = option_words(new)
    assert [word.text for word in words if word.name in OURS] == [NEW]
    assert [word.text for word in words if word.name not in OURS] == [
        word.text for word in option_words(text) if word.name not in OURS
    ]
    assert new.startswith(head + "linux /vmlinuz\n")
    assert set_in_entry(new, WANTED) == new


@st.composite
def grub_values(draw: st.DrawFn) -> str:
    """A value as people write it: double, single or no quotes, variables, escaped quotes."""
    words = draw(
        st.lists(
            st.sampled_from(
                [
                    "quiet",
                    "splash",
                    "a.b-c=1",
                    "ttm.pages_limit=1",
                    "amdgpu.gttsize=5",
                    "$V",
                    "${V}",
                    "${V:+$V }x=1",
                    "$(echo e)",
                    "ttm.page_pool_size=3",
                ]
            ),
            max_size=5,
        )
    )
    style = draw(st.sampled_from(['"', "'", "", "escaped"]))
    if style == "":
        return words[0] if words else ""
    if style == "escaped":
        return '"' + "  ".join([*words, 'dyndbg=\\"file a.c +p\\"']) + '"'
    return style + draw(st.sampled_from([" ", "  "])).join(words) + style


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(grub_values(), st.sampled_from(["", " # remark", "\nOTHER=1"]))
def test_the_shell_sees_the_same_words(value: str, tail: str) -> None:
    """Law: after the edit a shell reads the same words of others, and ours once."""
    text = f"X=1\nGRUB_CMDLINE_LINUX_DEFAULT={value}{tail}\n"
    new = set_in_assignments(text, "GRUB_CMDLINE_LINUX_DEFAULT", WANTED.parameters, WANTED.drop)
    assert new is not None
    before, after = (shell_value(text), shell_value(new))
    assert others(after) == others(before)
    assert [word.text for word in split_words(after) if word.name in OURS] == [NEW]


def shell_value(text: str) -> str:
    script = f'V=vv\n{text}\nprintf %s "$GRUB_CMDLINE_LINUX_DEFAULT"'
    ended = subprocess.run(["sh", "-eu", "-c", script], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return ended.stdout


modprobe_lines = st.sampled_from(
    [
        "# remark ttm pages_limit=1",
        "options ttm pages_limit=1",
        "blacklist pcspkr",
        "",
        "options ttm page_pool_size=2 pages_limit=3",
        "options amdgpu gttsize=4 runpm=0",
        "options kvm nested=1",
        "options amdttm \\\n  pages_limit=9 \\\n  page_pool_size=9",
        "install foo /bin/true ttm pages_limit=1",
        "options  ttm\tpages_limit=7",
        "options ttm",
    ]
)


@given(st.lists(modprobe_lines, max_size=6), st.booleans())
def test_modprobe_files(lines: list[str], newline: bool) -> None:
    """Law: dropping options leaves every other option and every other line as it was."""
    text = "\n".join(lines) + ("\n" if newline and lines else "")
    new = drop_options(text, OURS)

    def rest(content: str) -> list[str]:
        return [
            word.text
            for line in options_lines(content)
            for word in line.options
            if word.name not in OURS
        ]

    assert rest(new) == rest(text)
    assert not [w for line in options_lines(new) for w in line.options if w.name in OURS]
    kept = [line for line in lines if not line.startswith("options")]
    assert [line for line in new.split("\n") if line in kept and line] == [k for k in kept if k]
    if drop_options(text, frozenset()) != text or not OURS & {
        w.name for line in options_lines(text) for w in line.options
    }:
        assert new == text


@given(
    command_lines(),
    st.lists(st.sampled_from(["fbcon=map:1", "audit=0", "single"]), min_size=1, max_size=2),
    st.integers(0, 8),
)
def test_undo_keeps_what_others_added(line: str, added: list[str], place: int) -> None:
    """Law: undo(apply(x) with another's words) = x with the other's words, and undo(apply(x)) = x.

    The other puts whole words between others' words, not into ours.
    """
    written = rewrite(line, WANTED.parameters, WANTED.drop)
    assert undo(base=encode(line), written=encode(written), current=encode(written)).content == (
        encode(line)
    )
    words = split_words(written)
    at = words[min(place, len(words) - 1)].start
    more = "".join(word + " " for word in added)
    current = written[:at] + more + written[at:]
    merged = undo(base=encode(line), written=encode(written), current=encode(current))
    assert merged.content is not None
    result = decode(merged.content)
    assert [word for word in shlex.split(result.replace('"', " ")) if word in added].count(
        added[0]
    ) >= 1
    if not merged.overlapped:
        kept = [word for word in names_of(result) if word not in {a.split("=")[0] for a in added}]
        assert kept == [n for n in names_of(line) if n not in {a.split("=")[0] for a in added}]


@settings(max_examples=40, deadline=None)
@given(
    command_lines().map(lambda line: line.replace("\n", "").replace('"', "")),
    st.sampled_from(["grub", "systemd-boot", "limine", "uki", "modprobe.d"]),
    st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=3),
)
def test_revert_after_any_applies_is_the_identity(
    line: str, route: str, steps: list[tuple[int, bool]]
) -> None:
    """Law: revert ∘ applyₙ ∘ … ∘ apply₁ is the identity on every file, names and modes included."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = {
            "etc/default/grub": f"GRUB_CMDLINE_LINUX_DEFAULT=\"{line}\"\nGRUB_CMDLINE_LINUX=''\n",
            "etc/default/limine": f'KERNEL_CMDLINE[default]="{line}"\n',
            "etc/kernel/cmdline": line + "\n",
            "boot/loader/entries/a.conf": f"title a\nlinux /v\noptions {line.strip()}\n",
            "efi/loader/entries/b.conf": f"title b\nlinux /v\noptions {line.strip()}",
            "etc/modprobe.d/x.conf": "options ttm pages_limit=5 page_pool_size=6",
            "proc/meminfo": "MemTotal: 131072000 kB\n",
        }
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(encode(content))
        (root / "etc/kernel/cmdline").chmod(0o600)
        before = snapshot(root)
        tree = Tree(root)
        for index, (gib, pool) in enumerate(steps):
            plan = plan_apply(tree, Request(gib=gib, route=route, page_pool=pool), now="now")
            execute(tree, plan, stamp=f"2026{index}", say=lambda _: None)
            again = plan_apply(tree, Request(gib=gib, route=route, page_pool=pool), now="later")
            assert not again.edits
        execute(tree, plan_revert(tree), stamp="2027", say=lambda _: None)
        assert snapshot(root) == before


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (
            path.stat().st_mode,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in root.rglob("*")
    }


@given(st.integers(1, 2048 * GIB))
def test_the_ceiling_leaves_enough(ram_bytes: int) -> None:
    """Law: at most 85 % of RAM, never less left than the reserve, and no safe GiB is given away."""
    most = ceiling_gib(ram_bytes)
    if most:
        assert most * GIB * 100 <= ram_bytes * 85
        assert ram_bytes - most * GIB >= reserve_bytes(ram_bytes)
    more = (most + 1) * GIB
    assert more * 100 > ram_bytes * 85 or ram_bytes - more < reserve_bytes(ram_bytes)


@given(
    st.integers(1, 512 * GIB),
    st.integers(0, 512 * GIB),
    st.integers(-GIB, 200 * GIB),
    st.sampled_from([Fraction(1), Fraction(2, 3)]),
)
def test_a_suggestion_is_safe_and_enough(ram: int, gtt: int, over: int, share: Fraction) -> None:
    """Law: what is suggested is under the ceiling and gains what was missing; else None."""
    found = suggest_limit(ram_bytes=ram, gtt_bytes=gtt, over_by_bytes=over, gtt_share=share)
    if found is None:
        return
    assert over > 0
    assert found.gib <= ceiling_gib(ram)
    assert (found.gib * GIB - gtt) * share >= over
    assert ((found.gib - 1) * GIB - gtt) * share < over


@given(st.text(max_size=30))
def test_no_word_is_both_right_and_a_typo(name: str) -> None:
    """Law: a typo is never one of our own names, and what it stands for always is."""
    right = meant(name.replace("-", "_"))
    assert right is None or right in {
        *LIMITS,
        GTTSIZE,
        "ttm.page_pool_size",
        "amdttm.page_pool_size",
    }
    assert right != name
