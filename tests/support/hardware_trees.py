"""Small made-up machines for the hardware tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from llama_ai.hardware.facts import (
    CpuFacts,
    GpuFacts,
    HardwareFacts,
    KernelFacts,
    MemoryFacts,
    PowerFacts,
    TtmFacts,
)
from llama_ai.hardware.kernel import parse_version
from llama_ai.hardware.root import Root

GIB = 1 << 30
MIB = 1 << 20


def tree(directory: Path, files: Mapping[str, str | bytes]) -> Root:
    """Write ``files`` below ``directory``; a name that ends in a slash makes a directory."""
    for name, content in files.items():
        path = directory / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Root(directory)


def card(number: int, vendor: str, device: str, **files: str) -> dict[str, str]:
    """The files of ``cardN``; ``files`` are further ones by name."""
    where = f"sys/class/drm/card{number}/device"
    named = {"vendor": f"0x{vendor}\n", "device": f"0x{device}\n", **files}
    return {f"{where}/{name}": content for name, content in named.items()}


def apu(
    *,
    vram: int | None = 512 * MIB,
    gtt: int | None = 64 * GIB,
    ram: int | None = 125 * GIB,
    gfx: str | None = "gfx1151",
    release: str | None = "6.18.5",
    pages: int | None = None,
    cgroup: int | None = None,
    visible: int | None = None,
    kfd_pool: int | None = None,
    nodes: int | None = 100,
    driver: str | None = "amdgpu",
    others: tuple[GpuFacts, ...] = (),
    gttsize: int | None = None,
    cmdline: tuple[str, ...] | None = None,
    on_ac: bool | None = True,
) -> HardwareFacts:
    """Facts of an APU, by default a Strix Halo with a small carve-out."""
    gpu = GpuFacts(
        card="card0",
        render_node="renderD128",
        vendor="1002",
        device="1586",
        revision="c1",
        driver=driver,
        kind="integrated",
        gfx=gfx,
        gfx_source="ip-discovery" if gfx else None,
        codename="Strix Halo",
        name="Radeon 8060S",
        vram_bytes=vram,
        vis_vram_bytes=visible,
        gtt_bytes=gtt,
        kfd_pool_bytes=kfd_pool,
        vk_nodes_per_submit=nodes,
        kfd_index=0,
    )
    return HardwareFacts(
        gpus=(gpu, *others),
        igpu=gpu,
        gpu=gpu,
        tier="halo",
        tier_reason="made up",
        cpu=CpuFacts(model="CPU", flags=frozenset({"avx2"}), cores_physical=16, cores_logical=32),
        memory=MemoryFacts(ram_bytes=ram, cgroup_limit_bytes=cgroup, cgroup_known=True),
        ttm=TtmFacts(
            module="ttm" if pages is not None else None, pages_limit=pages, gttsize_mib=gttsize
        ),
        kernel=KernelFacts(release=release, version=parse_version(release), cmdline=cmdline),
        power=PowerFacts(on_ac=on_ac),
    )


DISCRETE = GpuFacts(
    card="card1",
    vendor="1002",
    device="744c",
    driver="amdgpu",
    kind="discrete",
    vram_bytes=16 * GIB,
    gtt_bytes=60 * GIB,
    kfd_index=1,
)
