"""The facts about a machine, as frozen records. ``None`` means "not known", never "no" or 0."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

from llama_ai.errors import UsageError

Tier = Literal["halo", "standard", "handheld", "none"]
GpuKind = Literal["integrated", "discrete", "other"]
GfxSource = Literal["ip-discovery", "kfd", "table", "override"]
NameSource = Literal["device and revision", "CPU model string"]

VENDORS = {"1002": "AMD", "10de": "NVIDIA", "8086": "Intel"}
"""Makers of GPUs by PCI vendor id, for messages."""

PAGE_BYTES = 4096
"""TTM counts pages of this size on x86-64."""

_GFX = re.compile(r"gfx[0-9a-f]{3,5}", re.ASCII)
_DOTTED = re.compile(r"([0-9]{1,2})\.([0-9]{1,2})\.([0-9]{1,2})", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Carveout:
    """The firmware's choices of carve-out, where the kernel shows them (``device/uma/``)."""

    current: str | None
    options: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GpuFacts:
    """One GPU. Ids are lower-case hexadecimal without ``0x``; memory is in bytes."""

    card: str | None = None
    """The DRM card (``card1``); ``None`` for a GPU on the bus that no DRM driver holds."""
    render_node: str | None = None
    vendor: str | None = None
    device: str | None = None
    revision: str | None = None
    subsystem: str | None = None
    pci_slot: str | None = None
    pci_class: str | None = None
    driver: str | None = None
    kind: GpuKind = "other"
    """``integrated`` and ``discrete`` are said of AMD's only; the rest is ``other``."""
    gfx: str | None = None
    gfx_source: GfxSource | None = None
    codename: str | None = None
    name: str | None = None
    name_source: NameSource | None = None
    vram_bytes: int | None = None
    """The carve-out of an APU; a discrete card's own memory."""
    vram_used_bytes: int | None = None
    vis_vram_bytes: int | None = None
    gtt_bytes: int | None = None
    """The limit that the driver states; see ``budgets`` for how much of it can be true."""
    gtt_used_bytes: int | None = None
    kfd_pool_bytes: int | None = None
    """The device pool that KFD announces, from which ROCm allocates."""
    kfd_index: int | None = None
    """ROCm's number of this GPU."""
    vbios: str | None = None
    carveout: Carveout | None = None
    bandwidth_gb_s: float | None = None
    """From the device table: nominal memory bandwidth, 10^9 bytes a second."""
    prefill_tflops: float | None = None
    """From the device table: arithmetic that prompt reading reached, 10^12 operations a second."""
    vk_nodes_per_submit: int | None = None
    """From the device table: graph nodes a Vulkan submission may hold on this generation."""

    @property
    def in_use_bytes(self) -> int | None:
        """Device memory that somebody used at the moment of detection."""
        if self.vram_used_bytes is None or self.gtt_used_bytes is None:
            return None
        return self.vram_used_bytes + self.gtt_used_bytes

    @property
    def label(self) -> str:
        """A short name for messages: product, else codename, else the PCI id."""
        name = self.name or self.codename
        if name is None:
            maker = VENDORS.get(self.vendor or "", f"vendor {self.vendor or 'not known'}")
            name = f"{maker} GPU {self.device}" if self.device else f"{maker} GPU"
        return f"{name} ({self.card})" if self.card else name


@dataclass(frozen=True, kw_only=True)
class CpuFacts:
    """The processor. ``flags`` is ``None`` where the kernel's list was not readable."""

    model: str | None = None
    vendor: str | None = None
    flags: frozenset[str] | None = None
    isa: str | None = None
    """The x86-64 micro-architecture level, ``x86-64-v1`` to ``x86-64-v4``."""
    cores_physical: int | None = None
    cores_logical: int | None = None
    numa_nodes: int | None = None

    def has(self, flag: str) -> bool | None:
        """Whether the CPU has ``flag`` (the kernel's word); ``None`` when the list is unknown."""
        return None if self.flags is None else flag in self.flags

    @property
    def avx2(self) -> bool | None:
        """256-bit integer vectors (Zen and later)."""
        return self.has("avx2")

    @property
    def avx512(self) -> bool | None:
        """AVX-512 foundation (Zen 4 and later)."""
        return self.has("avx512f")

    @property
    def avx512_bf16(self) -> bool | None:
        """AVX-512 BF16 dot products."""
        return self.has("avx512_bf16")

    @property
    def avx512_vnni(self) -> bool | None:
        """AVX-512 VNNI integer dot products."""
        return self.has("avx512_vnni")

    @property
    def avx_vnni(self) -> bool | None:
        """VNNI in its 256-bit form (Zen 5)."""
        return self.has("avx_vnni")

    @property
    def smt(self) -> bool | None:
        """Whether cores run more than one thread."""
        if self.cores_logical is None or self.cores_physical is None:
            return None
        return self.cores_logical > self.cores_physical


@dataclass(frozen=True, kw_only=True)
class MemoryFacts:
    """System memory in bytes. ``ram_bytes`` is MemTotal: the carve-out is not in it."""

    ram_bytes: int | None = None
    ram_available_bytes: int | None = None
    swap_bytes: int | None = None
    cgroup_limit_bytes: int | None = None
    """The tightest memory limit of our control group; ``None`` when there is no limit."""
    cgroup_known: bool = False
    """Whether our control group could be looked at, so that ``None`` above means "no limit"."""


@dataclass(frozen=True, kw_only=True)
class TtmFacts:
    """Parameters that size GTT, as the loaded modules state them."""

    module: str | None = None
    """The module that amdgpu really uses: ``amdttm`` with AMD's DKMS driver, else ``ttm``."""
    pages_limit: int | None = None
    page_pool_size: int | None = None
    other_pages_limit: int | None = None
    """The limit of the module that has no effect (``ttm`` beside ``amdttm``), for ``doctor``."""
    gttsize_mib: int | None = None
    """``amdgpu.gttsize``; ``None`` when unset (the kernel shows -1)."""
    dkms_version: str | None = None
    """``/sys/module/amdgpu/version``, which only the DKMS driver has."""

    @property
    def limit_bytes(self) -> int | None:
        """The page limit in bytes; 0 pages means that TTM decides, so nothing is known."""
        return self.pages_limit * PAGE_BYTES if self.pages_limit else None


@dataclass(frozen=True, kw_only=True)
class ModuleOption:
    """One ``options MODULE key=value`` of a modprobe.d file."""

    module: str
    key: str
    value: str
    file: str


@dataclass(frozen=True, kw_only=True)
class KernelFacts:
    """Kernel, distribution, and how kernel parameters are set here."""

    release: str | None = None
    version: tuple[int, int, int] | None = None
    cmdline: tuple[str, ...] | None = None
    distro: str | None = None
    distro_id: str | None = None
    distro_like: tuple[str, ...] = ()
    boot_loader: str | None = None
    """``grub``, ``systemd-boot``, ``uki``, ``limine`` or ``steamos``."""
    boot_route: str | None = None
    """The word for ``kernel-params --route`` that suits this system best."""
    module_options: tuple[ModuleOption, ...] = ()
    """What ``/etc/modprobe.d`` says about ``ttm``, ``amdttm`` and ``amdgpu``."""


@dataclass(frozen=True, kw_only=True)
class PowerFacts:
    """Power source and what kind of box it is."""

    on_ac: bool | None = None
    battery_percent: int | None = None
    chassis_type: int | None = None
    """SMBIOS chassis type (3 desktop, 10 notebook, 11 handheld, 30 tablet …)."""
    vendor: str | None = None
    product: str | None = None


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What the user says about the machine; it wins over what was found."""

    tier: Tier | None = None
    is_strix_halo: bool | None = None
    gfx: str | None = None
    gpu: str | None = None
    """Which GPU to use: ``card0``, a PCI slot, a ``vendor:device`` id, or ``integrated``."""


@dataclass(frozen=True, kw_only=True)
class HardwareFacts:
    """Everything that was found out, once. See the members' own classes."""

    gpus: tuple[GpuFacts, ...] = ()
    igpu: GpuFacts | None = None
    """The AMD integrated GPU."""
    gpu: GpuFacts | None = None
    """The GPU that we use: the user's choice, else ``igpu``, else a discrete AMD card."""
    tier: Tier = "none"
    tier_reason: str = ""
    cpu: CpuFacts = field(default_factory=CpuFacts)
    memory: MemoryFacts = field(default_factory=MemoryFacts)
    ttm: TtmFacts = field(default_factory=TtmFacts)
    kernel: KernelFacts = field(default_factory=KernelFacts)
    power: PowerFacts = field(default_factory=PowerFacts)
    overrides: Overrides = field(default_factory=Overrides)
    notes: tuple[str, ...] = ()
    """Oddities that a user should see, one sentence each."""

    @property
    def is_amd_apu(self) -> bool:
        """Whether an AMD integrated GPU was found."""
        return self.igpu is not None

    def to_json(self) -> dict[str, object]:
        """``doctor --json``'s ``machine`` without its budgets; the keys are its contract."""
        gpu = self.igpu or GpuFacts()
        return {
            "is_amd_apu": self.is_amd_apu,
            "pci_device": gpu.device,
            "revision": gpu.revision,
            "gfx": gpu.gfx,
            "gfx_source": gpu.gfx_source,
            "codename": gpu.codename,
            "gpu_name": gpu.name,
            "gpu_name_source": gpu.name_source,
            "tier": self.tier,
            "tier_reason": self.tier_reason,
            "igpu_card": gpu.card,
            "vram_bytes": gpu.vram_bytes,
            "vis_vram_bytes": gpu.vis_vram_bytes,
            "gtt_bytes": gpu.gtt_bytes,
            "ttm_limit_bytes": self.ttm.limit_bytes,
            "ram_bytes": self.memory.ram_bytes,
            "ram_available_bytes": self.memory.ram_available_bytes,
            "cgroup_limit_bytes": self.memory.cgroup_limit_bytes,
            "cpu": self.cpu.model,
            "isa": self.cpu.isa,
            "cores_physical": self.cpu.cores_physical,
            "cores_logical": self.cpu.cores_logical,
            "numa_nodes": self.cpu.numa_nodes,
            "kernel": self.kernel.release,
            "distro": self.kernel.distro,
            "boot_loader": self.kernel.boot_loader,
            "boot_route": self.kernel.boot_route,
            "on_ac": self.power.on_ac,
            "gpu": None if self.gpu is None else self.gpu.card,
            "gpus": [
                {
                    "card": one.card,
                    "kind": one.kind,
                    "vendor": one.vendor,
                    "device": one.device,
                    "driver": one.driver,
                    "name": one.name,
                    "gfx": one.gfx,
                    "vram_bytes": one.vram_bytes,
                    "gtt_bytes": one.gtt_bytes,
                }
                for one in self.gpus
            ],
        }


def parse_overrides(
    *,
    hardware_tier: str | None = None,
    is_strix_halo: bool | str | None = None,
    gfx_version: str | None = None,
    gpu: str | None = None,
) -> Overrides:
    """Check the user's words (flags or the seed's variables) and give them their types.

    ``gfx_version`` is ``11.0.3`` (the seed's form) or ``gfx1103``. An empty string means "not
    said". Raises :class:`~llama_ai.errors.UsageError`.
    """
    return Overrides(
        tier=_tier(hardware_tier or None),
        is_strix_halo=_yes_or_no(is_strix_halo),
        gfx=_gfx(gfx_version or None),
        gpu=gpu or None,
    )


def _tier(word: str | None) -> Tier | None:
    if word is None:
        return None
    for tier in get_args(Tier):
        if word.lower() == tier:
            return tier  # type: ignore[no-any-return]
    raise UsageError(
        f"hardware tier '{word}' is not known", hint="use halo, standard, handheld or none"
    )


def _yes_or_no(word: bool | str | None) -> bool | None:
    if word is None or word == "" or isinstance(word, bool):
        return word if isinstance(word, bool) else None
    answers = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if word.lower() not in answers:
        raise UsageError(f"'{word}' does not say whether this is a Strix Halo", hint="use 1 or 0")
    return answers[word.lower()]


def _gfx(word: str | None) -> str | None:
    if word is None:
        return None
    if _GFX.fullmatch(word.lower()):
        return word.lower()
    dotted = _DOTTED.fullmatch(word)
    if dotted is None:
        raise UsageError(
            f"GPU version '{word}' is not known", hint="write it as 11.0.3 or as gfx1103"
        )
    major, minor, step = (int(part) for part in dotted.groups())
    return gfx_name(major, minor, step)


def gfx_name(major: int, minor: int, step: int) -> str | None:
    """LLVM's name of a target: decimal major, hexadecimal minor and stepping (9.0.12: gfx90c)."""
    if not (0 < major < 100 and 0 <= minor < 16 and 0 <= step < 16):
        return None
    return f"gfx{major}{minor:x}{step:x}"
