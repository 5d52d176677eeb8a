"""Which GPU is ours, how it was recognised, and which tier the machine is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from llama_ai.errors import UsageError
from llama_ai.hardware.detect import detect
from llama_ai.hardware.facts import Overrides, parse_overrides
from llama_ai.hardware.root import Root
from tests.support.hardware_trees import card, tree

GC_11_0_1 = {"11/0/major": "11\n", "11/0/minor": "0\n", "11/0/revision": "1\n"}


def discovery(files: dict[str, str]) -> dict[str, str]:
    return {f"ip_discovery/die/0/{name}": content for name, content in files.items()}


def test_ip_discovery_wins_over_kfd_and_table(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            **card(0, "1002", "1586", **discovery(GC_11_0_1)),
            "sys/class/kfd/kfd/topology/nodes/1/properties": (
                "vendor_id 4098\ndevice_id 5510\ngfx_target_version 110501\n"
            ),
        },
    )
    facts = detect(root)
    assert facts.igpu is not None
    assert (facts.igpu.gfx, facts.igpu.gfx_source) == ("gfx1103", "ip-discovery")
    assert facts.notes, "a contradiction with the table is said"


@pytest.mark.parametrize("name", ["GC", "11"])
def test_ip_discovery_by_name_or_number(tmp_path: Path, name: str) -> None:
    files = {f"{name}/0/major": "11", f"{name}/0/minor": "5", f"{name}/0/revision": "2"}
    facts = detect(tree(tmp_path, card(0, "1002", "1114", **discovery(files))))
    assert facts.igpu is not None
    assert (facts.igpu.gfx, facts.igpu.gfx_source) == ("gfx1152", "ip-discovery")


def test_an_apu_that_the_table_lacks_is_known_by_its_target(tmp_path: Path) -> None:
    files = {"11/0/major": "11", "11/0/minor": "5", "11/0/revision": "4"}
    facts = detect(tree(tmp_path, card(0, "1002", "beef", **discovery(files))))
    assert facts.igpu is not None
    assert (facts.igpu.gfx, facts.igpu.codename) == ("gfx1154", None)
    assert facts.tier == "standard"


def test_kfd_target_in_hexadecimal_digits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            **card(0, "1002", "1638", uevent="PCI_SLOT_NAME=0000:04:00.0\n"),
            "sys/class/kfd/kfd/topology/nodes/1/properties": (
                "gfx_target_version 90012\nvendor_id 4098\ndevice_id 5688\n"
                "location_id 1024\ndomain 0\ndrm_render_minor 128\n"
            ),
            "sys/class/kfd/kfd/topology/nodes/1/mem_banks/0/properties": (
                "heap_type 1\nsize_in_bytes 4096\n"
            ),
        },
    )
    gpu = detect(root).igpu
    assert gpu is not None
    assert (gpu.gfx, gpu.gfx_source) == ("gfx90c", "kfd")
    assert (gpu.render_node, gpu.kfd_pool_bytes, gpu.kfd_index) == ("renderD128", 4096, 0)


def test_kfd_nodes_are_told_apart_by_their_place(tmp_path: Path) -> None:
    node = "sys/class/kfd/kfd/topology/nodes"
    root = tree(
        tmp_path,
        {
            **card(0, "1002", "744c", uevent="PCI_SLOT_NAME=0000:03:00.0\n"),
            **card(1, "1002", "164e", uevent="PCI_SLOT_NAME=0000:12:00.0\n"),
            f"{node}/1/properties": (
                "gfx_target_version 110000\nvendor_id 4098\ndevice_id 29772\nlocation_id 768\n"
            ),
            f"{node}/2/properties": (
                "gfx_target_version 100306\nvendor_id 4098\ndevice_id 5710\nlocation_id 4608\n"
            ),
        },
    )
    facts = detect(root)
    assert [(gpu.card, gpu.gfx, gpu.kind, gpu.kfd_index) for gpu in facts.gpus] == [
        ("card0", "gfx1100", "discrete", 0),
        ("card1", "gfx1036", "integrated", 1),
    ]
    assert facts.gpu == facts.igpu == facts.gpus[1]


def test_card10_behind_a_frame_buffer_and_other_cards(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/class/drm/card0/device/uevent": "DRIVER=simple-framebuffer\n",
            **card(2, "10de", "2507"),
            **card(10, "1002", "15bf", revision="0xc4\n", **{"class": "0x038000\n"}),
            "sys/class/drm/card10-eDP-1/status": "connected\n",
            "sys/class/drm/version": "drm 1.1.0\n",
        },
    )
    facts = detect(root)
    assert [gpu.card for gpu in facts.gpus] == ["card2", "card10"]
    assert facts.igpu is not None
    assert (facts.igpu.card, facts.igpu.name) == ("card10", "Radeon 780M")


def test_the_uevent_gives_the_id_where_the_files_are_missing(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/class/drm/card1/device/uevent": (
                "DRIVER=amdgpu\nPCI_ID=1002:150E\nPCI_SLOT_NAME=0000:C4:00.0\n"
            )
        },
    )
    gpu = detect(root).igpu
    assert gpu is not None
    assert (gpu.device, gpu.driver, gpu.pci_slot) == ("150e", "amdgpu", "0000:c4:00.0")


def test_links_as_in_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "sys/devices/pci0000:00/0000:c4:00.0"
    (device / "drm/renderD130").mkdir(parents=True)
    (device / "vendor").write_text("0x1002\n")
    (device / "device").write_text("0x150e\n")
    (tmp_path / "sys/bus/pci/drivers/amdgpu").mkdir(parents=True)
    (device / "driver").symlink_to("../../../bus/pci/drivers/amdgpu")
    drm = tmp_path / "sys/class/drm/card1"
    drm.mkdir(parents=True)
    (drm / "device").symlink_to("../../../devices/pci0000:00/0000:c4:00.0")
    gpu = detect(Root(tmp_path)).igpu
    assert gpu is not None
    assert (gpu.driver, gpu.pci_slot, gpu.render_node) == ("amdgpu", "0000:c4:00.0", "renderD130")


def test_a_gpu_on_the_bus_is_not_counted_twice(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            **card(0, "1002", "1586", uevent="PCI_SLOT_NAME=0000:c3:00.0\n"),
            "sys/bus/pci/devices/0000:c3:00.0/class": "0x038000\n",
            "sys/bus/pci/devices/0000:c3:00.0/vendor": "0x1002\n",
            "sys/bus/pci/devices/0000:c3:00.0/device": "0x1586\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:01:00.0/device": "0x2507\n",
            "sys/bus/pci/devices/0000:c3:00.1/class": "0x040300\n",
            "sys/bus/pci/devices/0000:c3:00.1/vendor": "0x1002\n",
        },
    )
    assert [(gpu.card, gpu.device) for gpu in detect(root).gpus] == [
        ("card0", "1586"),
        (None, "2507"),
    ]


def test_a_card_without_a_slot_is_recognised_by_its_id(tmp_path: Path) -> None:
    bus = "sys/bus/pci/devices/0000:c3:00.0"
    root = tree(
        tmp_path,
        {
            **card(0, "1002", "1586"),
            f"{bus}/class": "0x038000\n",
            f"{bus}/vendor": "0x1002\n",
            f"{bus}/device": "0x1586\n",
        },
    )
    assert [gpu.card for gpu in detect(root).gpus] == ["card0"]


def test_two_equal_gpus_of_which_one_has_no_card(tmp_path: Path) -> None:
    bus = "sys/bus/pci/devices/0000:04:00.0"
    root = tree(
        tmp_path,
        {
            **card(0, "1002", "744c", uevent="PCI_SLOT_NAME=0000:03:00.0\n"),
            f"{bus}/class": "0x030000\n",
            f"{bus}/vendor": "0x1002\n",
            f"{bus}/device": "0x744c\n",
            f"{bus}/uevent": "DRIVER=vfio-pci\n",
        },
    )
    assert [(gpu.card, gpu.driver) for gpu in detect(root).gpus] == [
        ("card0", None),
        (None, "vfio-pci"),
    ]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("AMD RYZEN AI MAX+ 395 w/ Radeon 8060S", "Radeon 8060S"),
        ("AMD Ryzen 7 7840U w/ Radeon  780M Graphics", "Radeon 780M"),
        ("AMD Ryzen 5 5600U with Radeon Graphics", None),
        ("AMD Ryzen 5 3500U with Radeon Vega Mobile Gfx", None),
        ("AMD Ryzen 3 3200G with Radeon Vega 8 Graphics", "Radeon Vega 8"),
        ("AMD Ryzen Z1 Extreme", None),
    ],
)
def test_the_cpus_name_may_name_the_gpu(tmp_path: Path, model: str, name: str | None) -> None:
    cpuinfo = f"processor\t: 0\nmodel name\t: {model}\n"
    gpu = detect(tree(tmp_path, {**card(0, "1002", "1586"), "proc/cpuinfo": cpuinfo})).igpu
    assert gpu is not None
    assert (gpu.name, gpu.name_source) == (name, "CPU model string" if name else None)


def test_the_revision_wins_over_the_cpus_name(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: AMD w/ Radeon 8060S\n"
    files = {**card(0, "1002", "1586", revision="0xd5\n"), "proc/cpuinfo": cpuinfo}
    gpu = detect(tree(tmp_path, files)).igpu
    assert gpu is not None
    assert (gpu.name, gpu.name_source) == ("Radeon 8040S", "device and revision")


def dmi(vendor: str, product: str, chassis: int) -> dict[str, str]:
    where = "sys/class/dmi/id"
    return {
        f"{where}/sys_vendor": vendor,
        f"{where}/product_name": product,
        f"{where}/chassis_type": str(chassis),
    }


@pytest.mark.parametrize(
    ("device", "box", "tier"),
    [
        ("1586", ("ASUSTeK COMPUTER INC.", "ROG Flow Z13", 30), "halo"),
        ("15bf", ("ASUSTeK COMPUTER INC.", "ROG Ally RC71L_RC71L", 10), "handheld"),
        ("15bf", ("AYANEO", "FLIP KB", 10), "handheld"),
        ("15bf", ("Somebody", "Tablet", 30), "handheld"),
        ("15bf", ("Somebody", "Handheld", 11), "handheld"),
        ("15bf", ("LENOVO", "21ME", 10), "standard"),
        ("1435", ("Valve", "Galileo", 3), "handheld"),
        ("163f", ("Unknown", "Unknown", 10), "handheld"),
        ("1638", ("Minisforum", "UM580", 35), "standard"),
        ("744c", ("Somebody", "Tower", 3), "none"),
    ],
)
def test_tiers(tmp_path: Path, device: str, box: tuple[str, str, int], tier: str) -> None:
    facts = detect(tree(tmp_path, {**card(0, "1002", device), **dmi(*box)}))
    assert facts.tier == tier
    assert facts.tier_reason


def test_large_memory_makes_no_strix_halo(tmp_path: Path) -> None:
    meminfo = "MemTotal:       131155886 kB\n"
    facts = detect(tree(tmp_path, {**card(0, "1002", "150e"), "proc/meminfo": meminfo}))
    assert facts.tier == "standard"


def test_the_user_decides(tmp_path: Path) -> None:
    root = tree(tmp_path, card(0, "1002", "1586"))
    assert detect(root, Overrides(tier="handheld", is_strix_halo=True)).tier == "handheld"
    assert detect(root, Overrides(is_strix_halo=False)).tier == "standard"
    other = tree(tmp_path / "other", card(0, "1002", "15bf"))
    assert detect(other, Overrides(is_strix_halo=True)).tier == "halo"
    gpu = detect(other, parse_overrides(gfx_version="11.0.0")).gpu
    assert gpu is not None
    assert (gpu.gfx, gpu.gfx_source) == ("gfx1100", "override")


def test_overrides_as_words() -> None:
    assert parse_overrides() == Overrides()
    assert parse_overrides(hardware_tier="", is_strix_halo="", gfx_version="") == Overrides()
    assert parse_overrides(is_strix_halo="1").is_strix_halo is True
    assert parse_overrides(is_strix_halo="0").is_strix_halo is False
    assert parse_overrides(gfx_version="9.0.12").gfx == "gfx90c"
    assert parse_overrides(gfx_version="GFX1103").gfx == "gfx1103"
    for bad in (
        {"hardware_tier": "mainframe"},
        {"is_strix_halo": "maybe"},
        {"gfx_version": "eleven"},
    ):
        with pytest.raises(UsageError):
            parse_overrides(**bad)


def test_the_integrated_gpu_is_ours_and_the_user_can_choose(tmp_path: Path) -> None:
    files = {
        **card(0, "1002", "744c", uevent="PCI_SLOT_NAME=0000:03:00.0\n", mem_info_vram_total="99"),
        **card(1, "1002", "164e"),
    }
    root = tree(tmp_path, files)
    assert detect(root).gpu == detect(root).igpu
    for wish in ("card0", "0000:03:00.0", "1002:744c", "discrete", "Discrete"):
        facts = detect(root, Overrides(gpu=wish))
        assert facts.gpu is not None
        assert facts.gpu.card == "card0"
        assert facts.is_amd_apu
    with pytest.raises(UsageError, match="card7"):
        detect(root, Overrides(gpu="card7"))


def test_a_discrete_card_alone_is_used_when_its_memory_is_known(tmp_path: Path) -> None:
    files = card(0, "1002", "744c", mem_info_vram_total="17163091968")
    facts = detect(tree(tmp_path, files))
    assert facts.gpu is not None
    assert (facts.igpu, facts.gpu.kind, facts.tier) == (None, "discrete", "none")
    assert detect(tree(tmp_path / "b", card(0, "10de", "2507"))).gpu is None


class Vanishing(Root):
    """A root in which the card is pulled after so many reads."""

    left = 0

    def read_bytes(self, *parts: str, limit: int = 1 << 20) -> bytes | None:
        self.left -= 1
        if self.left < 0:
            shutil.rmtree(self.directory / "sys/class/drm", ignore_errors=True)
        return super().read_bytes(*parts, limit=limit)


@pytest.mark.parametrize("reads", range(0, 40, 3))
def test_a_card_that_vanishes_between_two_reads(tmp_path: Path, reads: int) -> None:
    files = card(0, "1002", "1586", mem_info_vram_total="1", mem_info_gtt_total="2")
    tree(tmp_path, {**files, "proc/meminfo": "MemTotal: 1024 kB\n"})
    root = Vanishing(tmp_path)
    root.left = reads
    facts = detect(root)
    assert facts.igpu is None or facts.igpu.vram_bytes in (None, 1)
    assert facts.memory.ram_bytes == 1 << 20


class Refusing(Root):
    """A root whose files answer EBUSY, as a suspended discrete GPU's do."""

    def read_bytes(self, *parts: str, limit: int = 1 << 20) -> bytes | None:
        return None


def test_unreadable_files_everywhere(tmp_path: Path) -> None:
    tree(tmp_path, card(0, "1002", "1586"))
    facts = detect(Refusing(tmp_path))
    assert facts.gpus == ()
    assert facts.memory.ram_bytes is None
