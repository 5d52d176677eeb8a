"""Doctor's checks: each status of each check, from facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llama_ai.hardware.access import RenderAccess
from llama_ai.hardware.budgets import GIB, MIB, budgets
from llama_ai.hardware.checks import Check, gpu, kernel, memory, system
from llama_ai.hardware.childenv import child_env
from llama_ai.hardware.doctor import machine_checks
from llama_ai.hardware.facts import (
    Carveout,
    CpuFacts,
    GpuFacts,
    HardwareFacts,
    KernelFacts,
    MemoryFacts,
    ModuleOption,
    PowerFacts,
    TtmFacts,
)
from llama_ai.hardware.software import SoftwareFacts
from llama_ai.hardware.trouble import Trouble, known_trouble
from tests.support.hardware_trees import DISCRETE, apu

NO_GPU = HardwareFacts()
GOOD_ACCESS = RenderAccess(
    path="/dev/dri/renderD128", exists=True, usable=True, mode=0o660, group="render"
)
GOOD_SOFTWARE = SoftwareFacts(
    has_icd_directory=True,
    icds=("lvp_icd.json", "radeon_icd.x86_64.json"),
    vulkan_version="1.4.305",
    mesa=(25, 1, 0),
    firmware_date=20251111,
)
NO_SOFTWARE = SoftwareFacts(
    has_icd_directory=False, icds=(), vulkan_version=None, mesa=None, firmware_date=None
)


def status(check: Check | None) -> str | None:
    return None if check is None else check.status


def test_gpu() -> None:
    good = gpu.gpu_found(apu())
    assert good.status == "PASS"
    for word in ("Radeon 8060S", "Strix Halo", "gfx1151", "ip-discovery", "1002:1586", "c1"):
        assert word in good.observed
    assert gpu.gpu_found(apu(gfx=None)).status == "UNKNOWN"
    none = gpu.gpu_found(HardwareFacts(gpus=(GpuFacts(vendor="8086", device="9a49", driver="xe"),)))
    assert none.status == "WARN"
    assert "Intel GPU 9a49, driver xe" in none.observed
    assert "discrete" in gpu.gpu_found(HardwareFacts(gpus=(DISCRETE,), gpu=DISCRETE)).observed


def test_second_gpu_is_always_named() -> None:
    check = gpu.second_gpu(apu(others=(DISCRETE, GpuFacts(card="card2", vendor="10de"))))
    assert check.status == "PASS"
    assert "AMD GPU 744c" in check.observed
    assert "NVIDIA GPU (card2)" in check.observed
    assert "only" in gpu.second_gpu(apu()).observed


def test_a_desktops_small_gpu_beside_a_card_is_a_warning() -> None:
    assert gpu.second_gpu(apu(gfx="gfx1036", others=(DISCRETE,))).status == "WARN"
    assert gpu.second_gpu(apu(gfx="gfx1036")).status == "PASS"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (apu(), "PASS"),
        (apu(driver="vfio-pci"), "FAIL"),
        (apu(driver=None), "PASS"),
        (apu(driver=None, vram=None, gtt=None), "UNKNOWN"),
        (NO_GPU, None),
    ],
)
def test_driver(facts: HardwareFacts, expected: str | None) -> None:
    assert status(gpu.driver(facts)) == expected


def test_a_gpu_without_a_card_is_a_failure() -> None:
    facts = apu()
    assert facts.gpu is not None
    check = gpu.driver(replace(facts, gpu=replace(facts.gpu, card=None, driver=None)))
    assert check is not None
    assert check.status == "FAIL"
    assert "no driver" in check.observed


def test_render_node() -> None:
    assert status(gpu.render_node(apu(), GOOD_ACCESS)) == "PASS"
    assert status(gpu.render_node(apu(), None)) == "UNKNOWN"
    assert status(gpu.render_node(NO_GPU, None)) is None
    missing = gpu.render_node(apu(), replace(GOOD_ACCESS, exists=False, usable=False))
    assert status(missing) == "FAIL"
    closed = gpu.render_node(apu(), replace(GOOD_ACCESS, usable=False))
    assert closed is not None
    assert closed.status == "FAIL"
    assert closed.hint is not None
    assert "usermod -aG render" in closed.hint
    root = gpu.render_node(apu(), replace(GOOD_ACCESS, usable=False, group="root", mode=0o600))
    assert root is not None
    assert "0600" in root.observed
    assert root.hint is not None
    assert "udev" in root.hint


def test_vulkan_driver_and_mesa() -> None:
    assert status(gpu.vulkan_driver(apu(), GOOD_SOFTWARE, live=True)) == "PASS"
    assert status(gpu.vulkan_driver(apu(), NO_SOFTWARE, live=True)) == "FAIL"
    assert status(gpu.vulkan_driver(apu(), NO_SOFTWARE, live=False)) == "UNKNOWN"
    other = replace(GOOD_SOFTWARE, icds=("intel_icd.json",))
    assert status(gpu.vulkan_driver(apu(), other, live=False)) == "FAIL"
    assert status(gpu.vulkan_driver(NO_GPU, GOOD_SOFTWARE, live=True)) is None
    assert status(gpu.mesa(apu(), GOOD_SOFTWARE, live=True)) == "PASS"
    assert status(gpu.mesa(apu(), NO_SOFTWARE, live=True)) == "UNKNOWN"
    assert status(gpu.mesa(apu(), replace(GOOD_SOFTWARE, mesa=(22, 3, 5)), live=True)) == "WARN"
    assert status(gpu.mesa(apu(), replace(GOOD_SOFTWARE, mesa=(22, 3, 6)), live=True)) == "PASS"


def test_unified_heap() -> None:
    def check(user_env: dict[str, str]) -> Check | None:
        return gpu.unified_heap(apu(), child_env(apu(), backend="vulkan", user_env=user_env))

    assert status(check({})) == "PASS"
    off = check({"radv_enable_unified_heap_on_apu": "false"})
    assert off is not None
    assert off.status == "WARN"
    assert "yours" in off.observed


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ("6.18.4", "PASS"),
        ("7.0.0", "PASS"),
        ("6.18.3", "WARN"),
        ("6.17.0-19-generic", "PASS"),
        ("6.17.0-14-generic", "WARN"),
        ("6.17.0-19.fc43.x86_64", "WARN"),
        ("6.14.0-1018-oem", "PASS"),
        ("6.14.0-1017-oem", "WARN"),
        ("6.14.0-1018-generic", "WARN"),
        (None, "UNKNOWN"),
    ],
)
def test_rocm_kernel(release: str | None, expected: str) -> None:
    assert status(gpu.rocm_kernel(apu(release=release))) == expected
    assert status(gpu.rocm_kernel(apu(release=release, gfx="gfx1103"))) is None


def test_known_trouble() -> None:
    row = Trouble(
        id="t",
        gfx=frozenset({"gfx1151"}),
        backend="rocm",
        kernel_from=None,
        kernel_below=None,
        firmware_dates=frozenset({20251125}),
        what="hangs",
        hint="update",
        source="issue 1",
    )
    bad = replace(GOOD_SOFTWARE, firmware_date=20251125)
    assert [check.status for check in gpu.known_trouble(apu(), bad, [row])] == ["WARN"]
    assert [check.status for check in gpu.known_trouble(apu(), NO_SOFTWARE, [row])] == ["UNKNOWN"]
    good = gpu.known_trouble(apu(), GOOD_SOFTWARE, [row])
    assert [(check.id, check.status) for check in good] == [("trouble", "PASS")]
    assert gpu.known_trouble(NO_GPU, bad, [row]) == []
    shipped = gpu.known_trouble(apu(gfx="gfx90c"), NO_SOFTWARE, known_trouble())
    assert [check.id for check in shipped] == ["trouble-long-context"]


def test_targets_agree() -> None:
    assert gpu.targets_agree(apu()) is None
    assert status(gpu.targets_agree(replace(apu(), notes=("it differs",)))) == "WARN"


def test_ram() -> None:
    facts = apu()
    assert memory.ram(facts, budgets(facts)).status == "PASS"
    busy = replace(facts, memory=replace(facts.memory, ram_available_bytes=10 * GIB))
    assert memory.ram(busy, budgets(busy)).status == "WARN"
    free = replace(facts, memory=replace(facts.memory, ram_available_bytes=100 * GIB))
    assert memory.ram(free, budgets(free)).status == "PASS"
    assert memory.ram(NO_GPU, budgets(NO_GPU)).status == "UNKNOWN"


def test_gpu_budget() -> None:
    facts = apu()
    assert status(memory.gpu_budget(facts, budgets(facts))) == "PASS"
    unknown = apu(gtt=None)
    assert status(memory.gpu_budget(unknown, budgets(unknown))) == "UNKNOWN"
    assert memory.gpu_budget(NO_GPU, budgets(NO_GPU)) is None


@pytest.mark.parametrize(
    ("facts", "expected", "says"),
    [
        (apu(gtt=62 * GIB), "WARN", "kernel-params apply --gib 106"),
        (apu(gtt=104 * GIB), "PASS", "104.0 GiB"),
        (apu(gtt=110 * GIB), "WARN", "leaves the system 15.0 GiB"),
        (apu(gtt=200 * GIB), "WARN", "more than all of RAM"),
        (apu(gtt=3 * GIB), "WARN", "fixed by an old kernel"),
        (apu(gtt=104 * GIB, pages=15 * GIB // 4096), "WARN", "15.0 GiB"),
        (apu(vram=96 * GIB, gtt=15 * GIB, ram=31 * GIB), "PASS", "beside the large carve-out"),
        (apu(gtt=None), "UNKNOWN", "GTT limit"),
        (apu(ram=None), "UNKNOWN", "RAM"),
        (NO_GPU, None, ""),
    ],
)
def test_gtt_size(facts: HardwareFacts, expected: str | None, says: str) -> None:
    check = memory.gtt_size(facts)
    assert status(check) == expected
    if check is not None:
        assert says in f"{check.observed} {check.hint}"


def test_gtt_bound() -> None:
    assert status(memory.gtt_bound(apu(gtt=64 * GIB, pages=64 * GIB // 4096))) == "PASS"
    assert status(memory.gtt_bound(apu(gtt=64 * GIB, pages=62 * GIB // 4096))) == "WARN"
    assert status(memory.gtt_bound(apu(gtt=64 * GIB))) == "UNKNOWN"
    assert memory.gtt_bound(apu(gtt=None)) is None


def test_carveout() -> None:
    assert status(memory.carveout(apu())) == "PASS"
    assert status(memory.carveout(apu(vram=96 * GIB, ram=31 * GIB))) == "WARN"
    assert status(memory.carveout(apu(vram=None))) == "UNKNOWN"
    assert memory.carveout(NO_GPU) is None
    facts = apu()
    assert facts.gpu is not None
    choices = replace(facts.gpu, carveout=Carveout(current="1", options=("512 MB", "96 GB")))
    check = memory.carveout(replace(facts, gpu=choices))
    assert check is not None
    assert "512 MB, 96 GB" in check.observed


def test_container() -> None:
    assert memory.container(apu()).status == "PASS"
    assert memory.container(apu(cgroup=8 * GIB)).status == "WARN"
    assert memory.container(apu(cgroup=200 * GIB)).status == "PASS"
    assert memory.container(HardwareFacts(memory=MemoryFacts())).status == "UNKNOWN"


def with_options(*options: ModuleOption, cmdline: tuple[str, ...] | None = ()) -> HardwareFacts:
    facts = apu(gtt=64 * GIB, pages=16_777_216)
    return replace(facts, kernel=KernelFacts(cmdline=cmdline, module_options=options))


def option(module: str, key: str, value: str) -> ModuleOption:
    return ModuleOption(module=module, key=key, value=value, file="/etc/modprobe.d/x.conf")


@pytest.mark.parametrize(
    ("cmdline", "says"),
    [
        ("amdgpu.gtt_size=65536", "amdgpu.gttsize is meant"),
        ("ttm.page_limit=16777216", "ttm.pages_limit is meant"),
        ("ttm.pages-limit=1", "1 stands in the kernel command line, but 16777216 is in force"),
        ("amdttm.pages_limit=16777216", "amdttm.pages_limit has no effect: amdgpu uses ttm"),
        ("ttm.pages_limit=64G", "is no number"),
        ("amdgpu.vis_vramlimit=1", "testing parameter"),
        ("amd_iommu=off", "NPU"),
    ],
)
def test_kernel_parameters_that_are_wrong(cmdline: str, says: str) -> None:
    check = kernel.kernel_parameters(with_options(cmdline=(cmdline,)))
    assert check is not None
    assert check.status == "WARN"
    assert says in check.observed


@pytest.mark.parametrize(
    "cmdline",
    [
        (),
        ("quiet", "ttm.pages_limit=16777216", "amdgpu.runpm=0"),
        ("ttm.pages_limit=1", "ttm.pages_limit=0x1000000"),
        ("amdttm.pages_limit=5", "ttm.pages_limit=16777216"),
    ],
)
def test_kernel_parameters_that_are_right(cmdline: tuple[str, ...]) -> None:
    check = kernel.kernel_parameters(with_options(cmdline=cmdline))
    assert check is not None
    assert check.status == "PASS", check.observed


def test_options_in_modprobe_d() -> None:
    wrong = kernel.kernel_parameters(with_options(option("ttm", "pages_limit", "5"), cmdline=None))
    assert wrong is not None
    assert wrong.status == "WARN"
    assert "/etc/modprobe.d/x.conf" in wrong.observed
    # The command line wins.
    right = kernel.kernel_parameters(
        with_options(option("ttm", "pages_limit", "5"), cmdline=("ttm.pages_limit=16777216",))
    )
    assert right is not None
    assert right.status == "PASS"


def test_gttsize() -> None:
    both = kernel.kernel_parameters(
        apu(gttsize=65536, pages=1, cmdline=("ttm.pages_limit=1", "amdgpu.gttsize=65536"))
    )
    assert both is not None
    assert "both set" in both.observed
    alone = kernel.kernel_parameters(apu(gttsize=65536))
    assert alone is not None
    assert "deprecated" in alone.observed
    # amdgpu reads amdttm here, so ttm's parameter is for nobody.
    dkms = replace(
        apu(cmdline=("ttm.pages_limit=16777216",)),
        ttm=TtmFacts(module="amdttm", pages_limit=3_074_543),
    )
    check = kernel.kernel_parameters(dkms)
    assert check is not None
    assert "ttm.pages_limit has no effect: amdgpu uses amdttm here" in check.observed


def test_unknown_kernel_parameters() -> None:
    assert status(kernel.kernel_parameters(apu())) == "UNKNOWN"
    assert kernel.kernel_parameters(NO_GPU) is None


def test_cpu() -> None:
    assert system.cpu(apu()).status == "PASS"
    assert system.cpu(HardwareFacts(cpu=CpuFacts(flags=frozenset({"sse2"})))).status == "WARN"
    assert system.cpu(NO_GPU).status == "UNKNOWN"


def test_power() -> None:
    assert system.power(apu()).status == "PASS"
    battery = HardwareFacts(power=PowerFacts(on_ac=False, battery_percent=40))
    assert system.power(battery).status == "WARN"
    assert "40 %" in system.power(battery).observed
    assert system.power(apu(on_ac=None)).status == "UNKNOWN"


def test_a_machine_in_order_has_no_failure() -> None:
    facts = apu(gtt=104 * GIB, pages=104 * GIB // 4096, cmdline=(), vram=512 * MIB)
    checks = machine_checks(
        facts,
        budgets=budgets(facts),
        env=child_env(facts, backend="vulkan", user_env={}),
        software=GOOD_SOFTWARE,
        access=GOOD_ACCESS,
        live=True,
    )
    assert len({check.id for check in checks}) == len(checks)
    wrong = [check for check in checks if check.status != "PASS"]
    assert [check.id for check in wrong] == ["trouble-ring-timeout"]


def test_what_is_wrong_has_a_next_step() -> None:
    facts = apu(driver="vfio-pci", gtt=None, cgroup=GIB)
    checks = machine_checks(
        facts,
        budgets=budgets(facts),
        env=child_env(
            facts, backend="vulkan", user_env={"radv_enable_unified_heap_on_apu": "false"}
        ),
        software=NO_SOFTWARE,
        access=replace(GOOD_ACCESS, usable=False),
        live=True,
    )
    for check in checks:
        assert check.hint or check.status in ("PASS", "UNKNOWN"), check
        assert set(check.to_json()) == {"id", "status", "expected", "observed", "hint"}
