"""What the solver is told and what it answers.

Every dataclass is frozen and keyword-only; bytes are integers named ``*_bytes``; unknown is
``None``. ``Layout`` is everything that decides memory, ``Memory`` is what a layout needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Tier = Literal["halo", "standard", "handheld", "none"]
"""Hardware class: ``halo`` is Strix Halo, ``none`` is a machine without an AMD APU."""

Backend = Literal["vulkan", "rocm", "metal", "cpu"]

Strategy = Literal["gpu", "partial", "cpu", "residency"]
"""Where the experts of a MoE model live: device memory, the first layers' in system memory, all in
system memory, or mapped from disk.

For a dense model ``gpu`` means layers on the device and ``cpu`` means none.
"""

Place = Literal["gpu", "host", "pool"]
"""A budget: the device's, system memory's, or the one that both share on an APU."""

LoadMode = Literal["none", "mmap"]

DraftPlace = Literal["mtp", "file"]
"""Where a draft comes from: the model's own NextN layers, or a file of its own."""

KV_TYPES: tuple[str, ...] = (
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q5_1",
    "q5_0",
    "q4_1",
    "q4_0",
    "iq4_nl",
)
"""KV cache types that the engine accepts, largest first."""


@dataclass(frozen=True, kw_only=True)
class Disk:
    """How fast the disk that holds the model is read."""

    sequential_bytes_s: float
    """Large reads, one after the other."""
    slices_bytes_s: float
    """Reads of the size of one expert's matrix, several at a time."""
    measured: bool
    """Measured here, not assumed from the kind of the disk."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Budgets and counts that the solver plans with. One machine, one backend."""

    tier: Tier
    backend: Backend
    device: str | None
    """The engine's name of the device, ``Vulkan0``; ``None`` on the CPU backend."""
    gpu_budget_bytes: int | None
    """What may be placed in device memory; ``None`` without a device."""
    host_budget_bytes: int
    """RAM less the OS reserve (less a container's limit)."""
    pool_budget_bytes: int | None
    """On an APU device and host share one pool: their sum stays below this. ``None`` if apart."""
    ram_bytes: int
    os_reserve_bytes: int
    cores_physical: int
    cores_logical: int
    on_ac: bool | None
    bandwidth_bytes_s: float | None = None
    """Nominal memory bandwidth; for the estimate of speed only."""
    prefill_flops: float | None = None
    """Arithmetic operations a second that prompt reading reaches; likewise."""
    no_residency: str | None = "this engine cannot do it; our own build can"
    """Why the engine cannot keep a part of the experts in memory and read the others from disk;
    ``None`` if it can."""
    disk: Disk | None = None
    """The disk that the model is on."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """The user's constraints. ``None`` leaves the choice to the solver."""

    ctx_size: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    gpu_layers: int | None = None
    moe_strategy: Strategy | None = None
    residency: bool = True
    """``False``: never choose residency unless ``moe_strategy`` names it."""
    expert_budget_mib: int | None = None
    """With residency: the experts' share of memory; 0 leaves it to the kernel's page cache."""
    ubatch: int | None = None
    batch: int | None = None
    threads: int | None = None
    threads_batch: int | None = None
    n_parallel: int | None = None
    cache_ram_mib: int | None = None
    disk_tier_bytes: int = 0
    """Host memory that the KV cache on disk takes for its copies; 0 without one."""
    draft: DraftPlace | None = None
    """What could draft for this model; used where it fits. ``None``: nothing, or not wanted."""
    draft_n_max: int = 3
    draft_needed: bool = False
    """The user asked for the draft: a plan without it is none."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Every choice that decides how much memory the engine takes, and where."""

    ctx_size: int
    """Tokens in total; each of ``n_parallel`` sequences gets its share if not unified."""
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    n_parallel: int = 1
    kv_unified: bool = False
    batch: int = 2048
    ubatch: int = 512
    gpu_layers: int = 0
    """Layers on the device, counted from the last; ``n_layer + 1`` includes the output layer."""
    n_cpu_moe: int = 0
    """The first N layers keep their experts in system memory (``--n-cpu-moe``)."""
    flash_attn: bool = True
    swa_full: bool = False
    mtp: bool = False
    """Load the model's own next-token-prediction layers as a draft."""
    mtp_n_max: int = 3
    """Tokens that a draft may run ahead; recurrent state is kept once more for each."""
    draft_file: bool = False
    """Load the draft file (``Model.draft_model``) and a context for it."""
    load_mode: LoadMode = "none"
    repack: bool = True
    """The CPU backend may rearrange weights for speed (a copy; off for mapped weights)."""
    expert_budget_bytes: int | None = None
    """Residency: experts stay on disk but for a pool of this size; 0: but for the kernel's page
    cache. ``None``: all experts are loaded."""

    @property
    def op_offload(self) -> bool:
        """The device may borrow weights from the host to read a prompt.

        With residency it may not: it would copy all experts of a layer.
        """
        return self.expert_budget_bytes is None


PART_LABELS: Final = (
    ("weights", "weights_bytes"),
    ("KV cache", "kv_bytes"),
    ("recurrent state", "recurrent_bytes"),
    ("compute buffers", "compute_bytes"),
    ("draft", "draft_bytes"),
    ("projector", "projector_bytes"),
    ("prompt cache", "prompt_cache_bytes"),
    ("KV on disk", "disk_tier_bytes"),
    ("experts from disk", "experts_bytes"),
    ("overhead", "overhead_bytes"),
)
"""The parts of :class:`Components` as people read them, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Components:
    """Bytes that one side (device or host) holds, by purpose."""

    weights_bytes: int = 0
    kv_bytes: int = 0
    recurrent_bytes: int = 0
    compute_bytes: int = 0
    draft_bytes: int = 0
    projector_bytes: int = 0
    prompt_cache_bytes: int = 0
    disk_tier_bytes: int = 0
    """Copies on their way to the disk."""
    experts_bytes: int = 0
    """The pool of experts that were read from disk."""
    overhead_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        return (
            self.weights_bytes
            + self.kv_bytes
            + self.recurrent_bytes
            + self.compute_bytes
            + self.draft_bytes
            + self.projector_bytes
            + self.prompt_cache_bytes
            + self.disk_tier_bytes
            + self.experts_bytes
            + self.overhead_bytes
        )


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a layout needs on the device and on the host."""

    gpu: Components = field(default_factory=Components)
    host: Components = field(default_factory=Components)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """An estimate in tokens a second, shown and never scored; ``None`` where nothing is known."""

    decode_tokens_s: float | None
    """At most: bytes that a token needs over nominal memory bandwidth, the context empty."""
    decode_full_tokens_s: float | None
    """The same with the context full."""
    prefill_tokens_s: float | None
    experts: ExpertReads | None = None
    """With residency: what the estimate assumes of experts and disk."""


@dataclass(frozen=True, kw_only=True)
class ExpertReads:
    """What a token costs in reads from disk, as far as it can be foreseen."""

    hit_ratio: float
    """Of the experts that a token needs, those that are in memory already."""
    hit_ratio_learned: bool
    """From what was counted for this model here, not assumed."""
    read_bytes_per_token: float
    disk: Disk


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Why one setting has its value."""

    setting: str
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A candidate that scored at least as high as the plan but does not fit."""

    description: str
    score: int
    where: Place
    over_by_bytes: int
    host_bytes: int = 0
    """What it needs of system memory, the prompt cache left out."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A configuration that fits, with its reasons."""

    layout: Layout
    strategy: Strategy
    threads: int
    threads_batch: int
    cache_ram_mib: int
    score: int
    memory: Memory
    speed: Speed
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True, kw_only=True)
class Infeasible:
    """Nothing fits. ``nearest`` missed by least; ``cures`` says what would help."""

    message: str
    nearest: Rejected | None
    cures: tuple[str, ...]
