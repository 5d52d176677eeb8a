"""Facts, verdicts, routes and the hand-over to the helper."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai.errors import LlamaAiError, UsageError
from llama_ai.kernel_params import bundle
from llama_ai.kernel_params.cmdline import rewrite
from llama_ai.kernel_params.execute import command_allowed, execute
from llama_ai.kernel_params.facts import ParameterFacts, read_facts
from llama_ai.kernel_params.files import allowed
from llama_ai.kernel_params.parameters import GIB, PAGES_PER_GIB, Wanted, meant, number
from llama_ai.kernel_params.planning import plan_apply, plan_document, plan_revert
from llama_ai.kernel_params.routes.choose import ROUTES, boot_loader, choose_route
from llama_ai.kernel_params.routes.entries import entry_places
from llama_ai.kernel_params.routes.initramfs import initramfs_commands
from llama_ai.kernel_params.routes.shell_words import set_in_assignments
from llama_ai.kernel_params.state import Asked
from llama_ai.kernel_params.suggest import suggest_limit
from llama_ai.kernel_params.tree import Overlay, Tree
from llama_ai.kernel_params.verify import verify
from llama_ai.kernel_params.wanted import (
    Request,
    ceiling_gib,
    needs_gttsize,
    resolve_gib,
    wanted_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from llama_ai.kernel_params.planning import Plan
    from llama_ai.kernel_params.routes.base import Command

MEMINFO = "MemTotal:       131072000 kB\n"  # 125 GiB: a Strix Halo of 128 GB
HALO = {
    "proc/meminfo": MEMINFO,
    "sys/class/drm/card1/device/vendor": "0x1002\n",
    "etc/os-release": "ID=debian\n",
}
PAGES_104 = 104 * PAGES_PER_GIB


def lay_out(root: Path, files: Mapping[str, str]) -> Tree:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content, encoding="utf-8")
    return Tree(root)


def machine(
    root: Path,
    *,
    cmdline: str = "quiet",
    modprobe: str | None = None,
    pages: int | None = None,
    gtt: int | None = None,
    gttsize: str = "-1",
    module: str = "ttm",
    parameters: bool = True,
) -> ParameterFacts:
    """The facts of a machine after a boot."""
    files = dict(HALO)
    files["proc/cmdline"] = cmdline + "\n"
    files["proc/sys/kernel/osrelease"] = "6.16.3\n"
    if modprobe is not None:
        files["etc/modprobe.d/llama-ai.conf"] = modprobe
    if parameters:
        files[f"sys/module/{module}/parameters/page_pool_size"] = "16384000\n"
        if pages is not None:
            files[f"sys/module/{module}/parameters/pages_limit"] = f"{pages}\n"
    files["sys/module/amdgpu/parameters/gttsize"] = gttsize + "\n"
    if gtt is not None:
        files["sys/class/drm/card1/device/mem_info_gtt_total"] = f"{gtt}\n"
    return read_facts(lay_out(root, files))


def asked(route: str = "modprobe.d", boot_id: str | None = None) -> Asked:
    return Asked(
        gib=104, pages=PAGES_104, module="ttm", route=route, at="2026-01-01", boot_id=boot_id
    )


# ---- the limit ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ram_gib", "most"),
    [(125, 106), (64, 54), (62, 52), (32, 24), (30, 24), (15, 9), (7, 1), (5, 0)],
)
def test_ceiling(ram_gib: int, most: int) -> None:
    assert ceiling_gib(ram_gib * GIB) == most


def test_above_the_ceiling_only_with_a_reason() -> None:
    facts = ParameterFacts(ram_bytes=125 * GIB)
    assert resolve_gib(Request(gib=106), facts) == 106
    with pytest.raises(UsageError, match="106 GiB"):
        resolve_gib(Request(gib=107), facts)
    with pytest.raises(UsageError, match="--reason"):
        Request(gib=107, force=True)
    with pytest.raises(UsageError, match="--reason"):
        Request(gib=107, force=True, reason="  ")
    forced = Request(gib=110, force=True, reason="headless server")
    assert resolve_gib(forced, facts) == 110
    with pytest.raises(UsageError, match="in all"):
        resolve_gib(Request(gib=125, force=True, reason="why not"), facts)


def test_auto_is_the_ceiling_and_never_lowers_the_default() -> None:
    assert resolve_gib(Request(gib=None), ParameterFacts(ram_bytes=125 * GIB)) == 106
    with pytest.raises(LlamaAiError, match="as much as"):
        resolve_gib(Request(gib=None), ParameterFacts(ram_bytes=7 * GIB))
    with pytest.raises(LlamaAiError, match="not known"):
        resolve_gib(Request(gib=None), ParameterFacts())


@pytest.mark.parametrize("reason", ["a\nb", "x" * 201, "\x1b[31m"])
def test_a_reason_is_one_short_printable_line(reason: str) -> None:
    with pytest.raises(UsageError, match="--reason"):
        Request(gib=1, force=True, reason=reason)


def test_gttsize_is_written_only_where_it_is_needed_or_asked_for(tmp_path: Path) -> None:
    modern = machine(tmp_path / "a", pages=1)
    old = machine(tmp_path / "b", pages=None)
    assert not needs_gttsize(modern)
    assert needs_gttsize(old)
    assert not needs_gttsize(ParameterFacts())
    names = [name for name, _ in wanted_for(Request(gib=104), modern).parameters]
    assert names == ["ttm.pages_limit"]
    assert ("amdgpu.gttsize", "106496") in wanted_for(Request(gib=104), old).parameters
    explicit = wanted_for(Request(gib=104, gttsize=True), modern)
    assert ("amdgpu.gttsize", "106496") in explicit.parameters
    assert "amdgpu.gttsize" not in explicit.drop


def test_the_loaded_module_is_the_one_that_is_set(tmp_path: Path) -> None:
    facts = machine(tmp_path, module="amdttm", pages=1)
    wanted = wanted_for(Request(gib=104, page_pool=True), facts)
    assert wanted.parameters == (
        ("amdttm.pages_limit", str(PAGES_104)),
        ("amdttm.page_pool_size", str(PAGES_104)),
    )
    assert {"ttm.pages_limit", "ttm.page_pool_size", "amdgpu.gttsize"} <= wanted.drop


# ---- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("amdgpu.gtt_size", "amdgpu.gttsize"),
        ("amdgpu.gtt", "amdgpu.gttsize"),
        ("ttm.page_limit", "ttm.pages_limit"),
        ("ttm.pages_limits", "ttm.pages_limit"),
        ("amdttm.pagepool_size", "amdttm.page_pool_size"),
        ("pages_limit", "ttm.pages_limit"),
        ("ttm_pages_limit", "ttm.pages_limit"),
        ("tmm.pages_limit", "ttm.pages_limit"),
        ("amdgpu.pages_limit", "ttm.pages_limit"),
        ("ttm.pages_limit", None),
        ("ttm.dma32_pages_limit", None),
        ("amdgpu.gartsize", None),
        ("amdgpu.vm_size", None),
        ("quiet", None),
        ("", None),
    ],
)
def test_typos(name: str, right: str | None) -> None:
    assert meant(name) == right


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("104", 104),
        ("0x10", 16),
        ("010", 8),
        ("08", None),
        ("-1", None),
        ("104G", None),
        ("", None),
        ("٣", None),
        (None, None),
        ("0", 0),
    ],
)
def test_numbers_are_read_as_the_kernel_does(text: str | None, value: int | None) -> None:
    assert number(text) == value


def verdicts(facts: ParameterFacts) -> list[tuple[str, str]]:
    return [(found.name, found.verdict) for found in facts.found]


def test_words_are_judged(tmp_path: Path) -> None:
    facts = machine(
        tmp_path,
        pages=5,
        cmdline="ttm.pages_limit=1 amdgpu.gtt_size=2 ttm.pages-limit=3 amdttm.pages_limit=4 "
        "amdgpu.gttsize=5 ttm.page_pool_size=6G amdgpu.vis_vramlimit=1 -- ttm.pages_limit=9",
        modprobe="options ttm pages_limit=7\n",
    )
    assert verdicts(facts) == [
        ("ttm.pages_limit", "overridden"),
        ("ttm.pages_limit", "overridden"),
        ("amdgpu.gtt_size", "typo"),
        ("ttm.pages_limit", "in use"),
        ("amdttm.pages_limit", "other module"),
        ("amdgpu.gttsize", "deprecated"),
        ("ttm.page_pool_size", "no number"),
        ("amdgpu.vis_vramlimit", "testing only"),
    ]


def test_a_hidden_modprobe_file_does_not_count(tmp_path: Path) -> None:
    """A name in /etc hides the same name in /usr/lib, as for modprobe."""
    tree = lay_out(
        tmp_path,
        {
            "usr/lib/modprobe.d/gpu.conf": "options ttm pages_limit=1\n",
            "etc/modprobe.d/gpu.conf": "options ttm pages_limit=2\n",
            "etc/modprobe.d/no.txt": "options ttm pages_limit=3\n",
        },
    )
    assert [(f.where, f.value) for f in read_facts(tree).found] == [
        ("/etc/modprobe.d/gpu.conf", "2")
    ]


def test_unknown_is_none(tmp_path: Path) -> None:
    facts = read_facts(Tree(tmp_path))
    assert facts == ParameterFacts()
    assert facts.usable_bytes is None


def test_a_card_of_another_maker_is_not_read(tmp_path: Path) -> None:
    tree = lay_out(
        tmp_path,
        {
            "sys/class/drm/card0/device/vendor": "0x10de\n",
            "sys/class/drm/card0/device/mem_info_gtt_total": "1\n",
            "sys/class/drm/card1/device/vendor": "0x1002\n",
            "sys/class/drm/card1/device/mem_info_gtt_total": "2\n",
            "sys/class/drm/card1-DP-1/device/vendor": "0x1002\n",
        },
    )
    assert [card.name for card in read_facts(tree).cards] == ["card1"]


# ---- verify -------------------------------------------------------------------------------------


def causes(facts: ParameterFacts, by: Asked | None = None) -> str:
    verdict = verify(facts, asked=by or asked(), rebuild="update-initramfs -u -k all")
    assert verdict.ok is False
    return " / ".join(verdict.causes)


def test_in_force(tmp_path: Path) -> None:
    facts = machine(
        tmp_path,
        pages=PAGES_104,
        gtt=104 * GIB,
        modprobe=f"options ttm pages_limit={PAGES_104}\n",
    )
    verdict = verify(facts, asked=asked())
    assert verdict.ok
    assert verdict.usable_bytes == 104 * GIB
    assert verdict.causes == ()
    assert verify(facts, asked=None).ok, "without a record, what the files say is compared"
    assert not verify(facts, asked=asked(), gib=90).ok


def test_the_usable_bound_is_not_the_drivers_word(tmp_path: Path) -> None:
    """gttsize=120 GiB is echoed as GTT, while only the page limit can be used."""
    facts = machine(tmp_path, pages=62 * PAGES_PER_GIB, gtt=120 * GIB, gttsize="122880")
    verdict = verify(facts, asked=None, gib=120)
    assert verdict.ok is False
    assert verdict.usable_bytes == 62 * GIB
    over = machine(tmp_path / "b", pages=124 * PAGES_PER_GIB, gtt=124 * GIB)
    verdict = verify(over, asked=None, gib=124)
    assert verdict.usable_bytes == 117 * GIB, "RAM less the reserve"
    assert "above 106 GiB" in verdict.causes[0]


def test_cause_not_rebooted(tmp_path: Path) -> None:
    boot = "0b0b0b0b-1111-2222-3333-444444444444"
    tree = lay_out(tmp_path, {"proc/sys/kernel/random/boot_id": boot + "\n"})
    machine(tmp_path, pages=1, gtt=4096)
    assert "not been rebooted" in causes(read_facts(tree), asked(boot_id=boot))
    assert "not been rebooted" not in causes(read_facts(tree), asked(boot_id=boot[:-1] + "5"))


def test_cause_not_on_the_command_line(tmp_path: Path) -> None:
    text = causes(machine(tmp_path, pages=1), asked(route="grub"))
    assert "not on the kernel's command line" in text
    assert "route grub" in text


def test_cause_typo(tmp_path: Path) -> None:
    text = causes(machine(tmp_path, pages=1, cmdline="amdgpu.gtt_size=106496"))
    assert "amdgpu.gtt_size=106496" in text
    assert "amdgpu.gttsize is meant" in text


def test_cause_overridden_later(tmp_path: Path) -> None:
    line = f"ttm.pages_limit={PAGES_104} quiet ttm.pages_limit=5"
    text = causes(machine(tmp_path, pages=5, cmdline=line), asked(route="grub"))
    assert "overridden later: the command line says ttm.pages_limit=5" in text


def test_cause_the_command_line_wins_over_modprobe(tmp_path: Path) -> None:
    facts = machine(
        tmp_path,
        pages=5,
        cmdline="ttm.pages_limit=5",
        modprobe=f"options ttm pages_limit={PAGES_104}\n",
    )
    assert "overridden later: the command line says" in causes(facts)


def test_cause_old_kernel(tmp_path: Path) -> None:
    assert "too old" in causes(machine(tmp_path, pages=None))
    line = f"ttm.pages_limit={PAGES_104}"
    text = causes(machine(tmp_path / "b", pages=PAGES_104, gtt=3 * GIB, cmdline=line))
    assert "does not size GTT by the page limit" in text


def test_cause_old_initramfs(tmp_path: Path) -> None:
    facts = machine(tmp_path, pages=5, modprobe=f"options ttm pages_limit={PAGES_104}\n")
    text = causes(facts)
    assert "an old initramfs" in text
    assert "update-initramfs -u -k all" in text


def test_cause_written_at_run_time(tmp_path: Path) -> None:
    text = causes(machine(tmp_path, pages=PAGES_104, gtt=62 * GIB))
    assert "while the driver ran" in text


def test_cause_gttsize(tmp_path: Path) -> None:
    line = f"ttm.pages_limit={PAGES_104} amdgpu.gttsize=65536"
    facts = machine(tmp_path, pages=PAGES_104, gtt=64 * GIB, gttsize="65536", cmdline=line)
    assert "amdgpu.gttsize=65536 sets GTT to 64.0 GiB" in causes(facts)


def test_cause_other_module(tmp_path: Path) -> None:
    facts = machine(tmp_path, module="amdttm", pages=5, cmdline=f"ttm.pages_limit={PAGES_104}")
    assert "the loaded module is amdttm" in causes(facts)


def test_nothing_asked_and_nothing_loaded(tmp_path: Path) -> None:
    assert verify(machine(tmp_path, pages=5, gtt=1), asked=None).ok is None
    nothing = machine(tmp_path / "b", parameters=False)
    verdict = verify(nothing, asked=asked())
    assert verdict.ok is None
    assert "not loaded" in verdict.causes[0]


# ---- routes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "loader", "route"),
    [
        ({"etc/default/grub": ""}, "grub", "modprobe.d"),
        ({"boot/loader/entries/a.conf": "linux /v\n"}, "systemd-boot", "modprobe.d"),
        ({"etc/default/limine": ""}, "limine", "modprobe.d"),
        ({"etc/kernel/uki.conf": "", "etc/kernel/cmdline": "quiet\n"}, "uki", "modprobe.d"),
        ({"etc/os-release": "ID=fedora\n", "boot/grub2/grub.cfg": ""}, "grubby", "modprobe.d"),
        ({"etc/os-release": "ID=bazzite\nID_LIKE=fedora\n"}, None, "rpm-ostree"),
        ({"etc/os-release": "ID=fedora\nVARIANT_ID=silverblue\n"}, None, "rpm-ostree"),
        ({"proc/cmdline": "ostree=/ostree/boot.1/x/0\n"}, None, "rpm-ostree"),
        ({"etc/os-release": "ID=steamos\nID_LIKE=arch\n"}, None, "steamos"),
        ({"proc/cmdline": "ttm.pages_limit=1\n", "etc/default/grub": ""}, "grub", "grub"),
        (
            {"etc/default/grub": "GRUB_CMDLINE_LINUX='amdgpu.gttsize=5'\n"},
            "grub",
            "grub",
        ),
        (
            {
                "proc/sys/kernel/osrelease": "6.1\n",
                "lib/modules/6.1/modules.builtin": "kernel/drivers/gpu/drm/ttm/ttm.ko\n",
                "etc/default/grub": "",
            },
            "grub",
            "grub",
        ),
        ({}, None, "modprobe.d"),
    ],
)
def test_route(tmp_path: Path, files: dict[str, str], loader: str | None, route: str) -> None:
    tree = lay_out(tmp_path, {"etc/hostname": "x\n", **files})
    assert boot_loader(tree) == loader
    assert choose_route(tree).route.name == route


def test_the_firmware_variable_decides_between_two_loaders(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, {"etc/default/grub": "", "boot/loader/entries/a.conf": "linux /v\n"})
    assert boot_loader(tree) == "grub"
    variable = "sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-442b29bb8c4f"
    (tmp_path / variable).parent.mkdir(parents=True)
    (tmp_path / variable).write_bytes(b"\6\0\0\0" + "systemd-boot 257".encode("utf-16-le"))
    assert boot_loader(tree) == "systemd-boot"


def test_an_unknown_route_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"modprobe\.d, grub"):
        choose_route(Tree(tmp_path), "grub2")


def test_the_routes_are_those_of_the_contract() -> None:
    assert set(ROUTES) == {
        "modprobe.d",
        "grub",
        "grubby",
        "rpm-ostree",
        "systemd-boot",
        "uki",
        "limine",
        "steamos",
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"etc/initramfs-tools/x": ""}, ["update-initramfs -u -k all"]),
        ({"etc/os-release": "ID=ubuntu\nID_LIKE=debian\n"}, ["update-initramfs -u -k all"]),
        ({"usr/bin/dracut": ""}, ["dracut --force --regenerate-all"]),
        ({"etc/mkinitcpio.conf": "HOOKS=(base kms)\n"}, ["mkinitcpio -P"]),
        ({"etc/mkinitcpio.conf": 'MODULES="amdgpu"\nHOOKS="base"\n'}, ["mkinitcpio -P"]),
        ({"etc/mkinitcpio.conf": "MODULES=()\nHOOKS=(base udev block)\n#HOOKS=(kms)\n"}, []),
        (
            {
                "etc/mkinitcpio.conf": "HOOKS=(base)\n",
                "etc/mkinitcpio.conf.d/a": "MODULES+=(ttm)\n",
            },
            ["mkinitcpio -P"],
        ),
        ({"etc/mkinitcpio.conf": "HOOKS=(kms)\n", "etc/default/limine": ""}, ["limine-mkinitcpio"]),
        ({}, []),
    ],
)
def test_initramfs(tmp_path: Path, files: dict[str, str], expected: list[str]) -> None:
    assert [str(c) for c in initramfs_commands(lay_out(tmp_path, files))] == expected


def test_one_partition_that_is_reached_twice_counts_once(tmp_path: Path) -> None:
    tree = lay_out(
        tmp_path,
        {
            "boot/loader/entries/a.conf": "linux /v\n",
            "mnt/second/loader/entries/b.conf": "linux /v\n",
            "var/x/loader/entries/c.conf": "linux /v\n",
        },
    )
    (tmp_path / "efi").symlink_to("/boot")
    assert entry_places(tree) == ["/boot", "/mnt/second"]


def test_a_link_does_not_lead_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    lay_out(tmp_path, {"secret": "no\n", "root/secret": "yes\n"})
    (root / "link").symlink_to("../../../secret")
    (root / "absolute").symlink_to("/secret")
    (root / "loop").symlink_to("loop")
    tree = Tree(root)
    assert tree.read("/link") == tree.read("/absolute") == b"yes\n"
    with pytest.raises(LlamaAiError, match="links"):
        tree.read("/loop")


def test_an_overlay_hides_and_adds(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, {"etc/a": "1", "etc/b": "2"})
    over = Overlay(tree, {"/etc/a": None, "/etc/c": b"3"})
    assert over.names("/etc") == ["b", "c"]
    assert over.read("/etc/a") is None
    assert over.read("/etc/c") == b"3"
    assert not over.exists("/etc/a")


# ---- suggest ------------------------------------------------------------------------------------


def test_suggestion() -> None:
    found = suggest_limit(ram_bytes=125 * GIB, gtt_bytes=62 * GIB, over_by_bytes=20 * GIB + 1)
    assert found is not None
    assert found.gib == 83
    assert found.command == "llama-ai kernel-params apply --gib 83"
    assert found.command in found.text
    assert suggest_limit(ram_bytes=125 * GIB, gtt_bytes=62 * GIB, over_by_bytes=45 * GIB) is None
    assert suggest_limit(ram_bytes=None, gtt_bytes=1, over_by_bytes=1) is None
    assert suggest_limit(ram_bytes=125 * GIB, gtt_bytes=None, over_by_bytes=1) is None
    assert suggest_limit(ram_bytes=125 * GIB, gtt_bytes=62 * GIB, over_by_bytes=0) is None
    busy = suggest_limit(
        ram_bytes=125 * GIB, gtt_bytes=62 * GIB, over_by_bytes=40 * GIB, host_bytes=20 * GIB
    )
    assert busy is None, "GPU and host share one pool"


# ---- what may be written and run ----------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/etc/modprobe.d/llama-ai.conf",
        "/etc/default/grub",
        "/etc/default/grub.d/zz-llama-ai.cfg",
        "/etc/kernel/cmdline",
        "/etc/cmdline.d/gpu.conf",
        "/etc/default/limine",
        "/boot/limine.conf",
        "/boot/EFI/limine/limine.conf",
        "/boot/loader/entries/arch (fallback).conf",
        "/boot/efi/loader/entries/a.conf",
        "/run/llama-ai-esp/0a-1b/loader/entries/a.conf",
        "/var/lib/llama-ai/kernel-params/state.json",
    ],
)
def test_may_be_written(path: str) -> None:
    assert allowed(path)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc/modprobe.d/../passwd",
        "/etc/modprobe.d/x",
        "/etc/modprobe.d/.x.conf",
        "/etc/default/useradd",
        "/home/u/loader/entries/a.conf",
        "/tmp/loader/entries/a.conf",
        "/etc/loader/entries/a.conf",
        "/boot/loader/entries/../../x.conf",
        "/boot/vmlinuz",
        "/boot/loader/loader.conf",
        "/etc/modprobe.d/a/b.conf",
        "/etc/default/grub.d/x.cfg\n",
        "/var/lib/llama-ai/kernel-params/../../x",
        "/boot/grub/grub.cfg",
        "etc/default/grub",
        "/var/lib/llama-ai/kernel-params/backups/x/../../../y",
    ],
)
def test_may_not_be_written(path: str) -> None:
    assert not allowed(path)


@pytest.mark.parametrize(
    "line",
    [
        "reboot",
        "update-grub --foo",
        "/tmp/update-grub",
        "mkinitcpio -P -k x",
        "sh -c update-grub",
        "grub-mkconfig -o /etc/passwd",
        "kernel-install add ../x /lib/modules/../x/vmlinuz",
        "kernel-install add 6.1 /usr/lib/modules/6.2/vmlinuz",
        "grubby --update-kernel=ALL --args=init=/bin/sh",
        "grubby --update-kernel=ALL --args=ttm.pages_limit=1;x",
        "rpm-ostree kargs --append=init=/bin/sh",
        "rpm-ostree kargs",
        "",
    ],
)
def test_may_not_be_run(line: str) -> None:
    assert not command_allowed(tuple(line.split(" ")))


def test_no_plan_ever_reboots() -> None:
    helper = (Path(__file__).resolve().parents[2] / "scripts/kernel-params").read_text()
    strings = [
        node.value
        for node in ast.walk(ast.parse(helper))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert not [text for text in strings if text in {"reboot", "shutdown", "systemctl", "kexec"}]


# ---- the helper file ----------------------------------------------------------------------------


def test_the_helper_is_what_the_modules_give() -> None:
    helper = Path(__file__).resolve().parents[2] / "scripts" / "kernel-params"
    assert helper.read_text(encoding="utf-8") == bundle.bundle(), (
        "run python -m llama_ai.kernel_params.bundle"
    )
    assert os.access(helper, os.X_OK)


def test_the_helper_imports_the_standard_library_only() -> None:
    tree = ast.parse(bundle.bundle())
    modules = {
        (node.module or "").partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    } | {
        alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    assert modules <= set(sys.stdlib_module_names)


def test_the_helper_takes_nothing_from_beside_it_or_from_the_environment(tmp_path: Path) -> None:
    """A module of a user's making, named like one that we import, is never run."""
    helper = tmp_path / "kernel-params"
    helper.write_text(bundle.bundle(), encoding="utf-8")
    for name in ("argparse", "json", "fcntl", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from beside')\n")
    (tmp_path / "root").mkdir()
    ended = subprocess.run(
        [sys.executable, str(helper), "show", "--root", str(tmp_path / "root")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "nowhere"), "PATH": "/usr/bin:/bin"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "route" in ended.stdout


def test_the_plan_document_names_hashes_not_contents(tmp_path: Path) -> None:
    tree = lay_out(tmp_path, HALO)
    document = plan_document(plan_apply(tree, Request(gib=104), now="now"))
    assert document["edits"][0]["path"] == "/etc/modprobe.d/llama-ai.conf"
    assert document["edits"][0]["before_sha256"] is None
    assert len(document["edits"][0]["after_sha256"]) == 64
    assert document["request"]["gib"] == 104


def test_revert_without_apply_says_so(tmp_path: Path) -> None:
    with pytest.raises(LlamaAiError, match="nothing to revert"):
        plan_revert(Tree(tmp_path))


def test_damaged_state_is_explained(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"version": 2}', "null", '{"version": 1, "asked": null}'):
        tree = lay_out(tmp_path, {"var/lib/llama-ai/kernel-params/state.json": text})
        with pytest.raises(LlamaAiError, match="damaged"):
            plan_revert(tree)


def test_wanted_parameters_name_pages_not_bytes() -> None:
    assert Wanted(module="ttm", pages=26 * PAGES_PER_GIB).parameters == (
        ("ttm.pages_limit", "6815744"),
    )


def test_words_inside_quotes_are_not_parameters() -> None:
    line = 'dyndbg="file a.c ttm.pages_limit=5 +p" quiet'
    assert rewrite(line, [("ttm.pages_limit", "7")], {"amdgpu.gttsize"}) == (
        line + " ttm.pages_limit=7"
    )


@pytest.mark.parametrize("value", ['""', "''", '" "'])
def test_what_is_added_is_never_glued_to_what_stands_before(value: str) -> None:
    """`root=1` and `ttm…` joined to one word would be a machine that does not boot."""
    text = f'KERNEL_CMDLINE[default]="root=1"\nKERNEL_CMDLINE[default]+={value}\n'
    new = set_in_assignments(text, r"KERNEL_CMDLINE\[default\]", [("ttm.pages_limit", "7")], ())
    assert new is not None
    pieces = [line.partition("=")[2].strip("\"'") for line in new.splitlines()]
    assert "".join(pieces).split() == ["root=1", "ttm.pages_limit=7"]


# ---- tools that keep the arguments themselves ---------------------------------------------------

ENTRY = "title x\nlinux /v\noptions root=UUID=1 ro quiet{}\n"


def bls(root: Path, more: str, name: str = "a") -> Path:
    place = root / f"boot/loader/entries/{name}.conf"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(ENTRY.format(more))
    return place


def tool(root: Path) -> Callable[[Command], None]:
    """What grubby and rpm-ostree do to the arguments of every entry."""

    def run(command: Command) -> None:
        assert command_allowed(command.argv)
        for place in (root / "boot/loader/entries").glob("*.conf"):
            head, _, line = place.read_text().rstrip("\n").rpartition("\n")
            words = line.split(" ")
            for option in command.argv[1:]:
                flag, _, value = option.partition("=")
                if flag == "--remove-args":
                    words = [w for w in words if w.partition("=")[0] not in value.split(" ")]
                elif flag == "--args":
                    words += value.split(" ")
                elif flag == "--delete-if-present":
                    words = [w for w in words if w != value]
                elif flag == "--append-if-missing":
                    words += [] if value in words else [value]
            place.write_text(f"{head}\n{' '.join(words)}\n")

    return run


@pytest.mark.parametrize("route", ["grubby", "rpm-ostree"])
@pytest.mark.parametrize(
    "before", ["", " ttm.pages_limit=5", " amdgpu.gttsize=4 ttm.pages_limit=5"]
)
def test_tools(tmp_path: Path, route: str, before: str) -> None:
    """Apply, again, another value, revert: the words are those of the beginning, each once."""
    lay_out(tmp_path, HALO)
    entry = bls(tmp_path, before, "ostree-1")
    tree = Tree(tmp_path)
    tree.is_live = True

    def step(plan: Plan) -> Plan:
        execute(tree, plan, stamp="1", say=lambda _: None, run=tool(tmp_path))
        return plan

    step(plan_apply(tree, Request(gib=104, route=route), now="n"))
    assert entry.read_text() == ENTRY.format(f" ttm.pages_limit={PAGES_104}")
    assert not step(plan_apply(tree, Request(gib=104), now="n")).changes
    step(plan_apply(tree, Request(gib=90), now="n"))
    assert entry.read_text() == ENTRY.format(f" ttm.pages_limit={90 * PAGES_PER_GIB}")
    step(plan_revert(tree))
    assert entry.read_text() == ENTRY.format(before)


def test_a_change_of_route_takes_the_first_one_back(tmp_path: Path) -> None:
    lay_out(tmp_path, HALO)
    entry = bls(tmp_path, " ttm.pages_limit=5")
    tree = Tree(tmp_path)
    tree.is_live = True
    for route in ("grubby", "modprobe.d"):
        plan = plan_apply(tree, Request(gib=104, route=route), now="n")
        execute(tree, plan, stamp="1", say=lambda _: None, run=tool(tmp_path))
    assert entry.read_text() == ENTRY.format(" ttm.pages_limit=5")
    assert (tmp_path / "etc/modprobe.d/llama-ai.conf").exists()


def test_kernels_that_disagree_are_named(tmp_path: Path) -> None:
    lay_out(tmp_path, HALO)
    bls(tmp_path, " ttm.pages_limit=5")
    bls(tmp_path, "", "b")
    plan = plan_apply(Tree(tmp_path), Request(gib=104, route="grubby"), now="n")
    assert "disagree" in " ".join(plan.notes)
