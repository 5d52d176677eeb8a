"""What can go wrong with an engine, and how its log and exit status tell.

The table :data:`NEEDLES` maps what llama.cpp, its backends and the drivers below them print to a
:class:`Kind`. Each needle is a literal that is cheap to look for in a whole block of output, and a
pattern that the line must match, so that a chat that merely speaks of a lost device does not count.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from llama_ai.supervisor.state import State


class Kind(StrEnum):
    """The kinds of failure that the restart policy tells apart."""

    PORT_IN_USE = "port-in-use"
    """The engine could not bind its address."""
    BAD_FLAG = "bad-flag"
    """The engine refused its command line."""
    ENGINE_BROKEN = "engine-broken"
    """The program cannot run here: missing, forbidden, a library lacks, a foreign CPU or GPU."""
    OUT_OF_MEMORY = "out-of-memory"
    """An allocation failed, on the device or on the host, or the kernel's OOM killer struck."""
    DEVICE_LOST = "device-lost"
    """The GPU was reset below the engine; it answers, but can compute nothing any more."""
    GPU_TIMEOUT = "gpu-timeout"
    """The driver gave up waiting for the GPU (ring timeout, GPU hang)."""
    GPU_FAULT = "gpu-fault"
    """Another error of the GPU's runtime (HSA, HIP, a memory access fault)."""
    BAD_MODEL = "bad-model"
    """The model's file is missing, damaged, or of an architecture that the engine does not know."""
    ASSERTION = "assertion"
    """The engine found a contradiction within itself and aborted."""
    HANG = "hang"
    """It lives, but does not answer, or works without getting on."""
    LOAD_TIMEOUT = "load-timeout"
    """It was not ready within the start timeout."""
    KILLED = "killed"
    """Somebody else sent SIGKILL or SIGTERM, and it was not the OOM killer."""
    CRASH = "crash"
    """Ended by another signal (SIGSEGV, SIGABRT) without a word that explains it."""
    EXIT = "exit"
    """Ended by itself with some status, without a word that explains it."""

    @property
    def curable(self) -> bool:
        """Whether a smaller ubatch, context or KV type may avoid it."""
        return self in {Kind.OUT_OF_MEMORY, Kind.DEVICE_LOST, Kind.GPU_TIMEOUT}

    @property
    def final(self) -> bool:
        """Whether starting again the same way can only fail again."""
        return self in {Kind.PORT_IN_USE, Kind.BAD_FLAG, Kind.ENGINE_BROKEN, Kind.BAD_MODEL}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One failure. ``line`` is the log line that tells it, ``returncode`` negative for a signal.

    ``state`` is what the instance was doing (loading, ready, degraded).
    """

    kind: Kind
    message: str
    state: State
    line: str | None = None
    returncode: int | None = None

    @property
    def identity(self) -> tuple[Kind, int | None]:
        """Two failures with the same identity count as the same failure again."""
        return self.kind, self.returncode


@dataclass(frozen=True, kw_only=True)
class Needle:
    """``literal`` occurs in the line and ``pattern`` matches in it."""

    kind: Kind
    literal: bytes
    pattern: re.Pattern[str]
    alive: bool = False
    """Whether it means that the engine is of no use any more even if its process lives on."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A needle found: the line without its end, decoded."""

    needle: Needle
    line: str


def _needle(kind: Kind, literal: str, pattern: str | None = None, *, alive: bool = False) -> Needle:
    expression = re.escape(literal) if pattern is None else pattern
    return Needle(kind=kind, literal=literal.encode(), pattern=re.compile(expression), alive=alive)


# The order is the precedence: when a run ends, the first of these kinds that it printed is taken as
# the cause. An allocation that fails while loading is followed by "failed to load model", a lost
# device often by an assertion. Texts: llama.cpp at the pin (common/arg.cpp, tools/server, src,
# ggml-alloc.c, ggml-vulkan, ggml-cuda), Mesa's RADV winsys, ROCr, glibc.
NEEDLES: tuple[Needle, ...] = (
    _needle(Kind.PORT_IN_USE, "couldn't bind HTTP server socket"),
    _needle(Kind.PORT_IN_USE, "couldn't start HTTP listener on "),
    _needle(
        Kind.BAD_FLAG, "error: invalid argument: ", r"^(?:\S+ [EI] )?error: invalid argument: "
    ),
    _needle(Kind.BAD_FLAG, "error while handling argument ", r"error while handling argument \""),
    _needle(Kind.ENGINE_BROKEN, "error while loading shared libraries: "),
    _needle(Kind.ENGINE_BROKEN, "symbol lookup error: "),
    _needle(
        Kind.ENGINE_BROKEN, " error: invalid device function", r"(?:ROCm|CUDA|MUSA) error: inv"
    ),
    _needle(Kind.ENGINE_BROKEN, " error: no kernel image", r"(?:ROCm|CUDA|MUSA) error: no kernel"),
    _needle(
        Kind.OUT_OF_MEMORY,
        "ErrorOutOf",
        r"^(?!.*allocate pinned memory).*\bvk::.*\bErrorOutOf(?:Device|Host|Pool)Memory\b",
    ),
    _needle(
        Kind.OUT_OF_MEMORY, "failed to allocate ", r"failed to allocate (?:\S+ )?buffer of size \d"
    ),
    _needle(Kind.OUT_OF_MEMORY, "failed to allocate buffer for "),
    _needle(
        Kind.OUT_OF_MEMORY, "failed to allocate compute ", r"allocate compute (?:\w+ )?buffers"
    ),
    _needle(Kind.OUT_OF_MEMORY, "unable to allocate ", r"unable to allocate \S+ buffer"),
    _needle(Kind.OUT_OF_MEMORY, "insufficient memory (attempted to allocate "),
    _needle(
        Kind.OUT_OF_MEMORY, "Malloc failed: out of memory", r"(?:cuda|hip)Malloc failed: out of"
    ),
    _needle(
        Kind.OUT_OF_MEMORY, " error: out of memory", r"(?:ROCm|CUDA|MUSA) error: out of memory"
    ),
    _needle(Kind.OUT_OF_MEMORY, "hipErrorOutOfMemory"),
    _needle(Kind.OUT_OF_MEMORY, "HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
    _needle(
        Kind.OUT_OF_MEMORY, "Not enough memory for command submission", r"amdgpu: Not enough mem"
    ),
    _needle(Kind.OUT_OF_MEMORY, "std::bad_alloc", r"(?:instance of '|what\(\): +)std::bad_alloc"),
    _needle(Kind.GPU_TIMEOUT, "GPU Hang", r"HW Exception by GPU .*reason ?: ?GPU Hang", alive=True),
    _needle(Kind.GPU_TIMEOUT, " timeout, ", r"\bring \S+ timeout, ", alive=True),
    _needle(
        Kind.GPU_TIMEOUT,
        "hard recovery",
        r"amdgpu: The CS has been (?:cancelled|rejected) .*hard recovery",
        alive=True,
    ),
    _needle(Kind.DEVICE_LOST, "device lost on ", r"\bggml_vulkan: device lost on \S+", alive=True),
    _needle(Kind.DEVICE_LOST, "ErrorDeviceLost", r"\bvk::\S+: ErrorDeviceLost\b", alive=True),
    _needle(Kind.DEVICE_LOST, "vk::DeviceLostError", r"instance of 'vk::DeviceLostError'"),
    _needle(
        Kind.DEVICE_LOST,
        "context is lost",
        r"amdgpu: The CS has been (?:cancelled|rejected) because the context is lost",
        alive=True,
    ),
    _needle(Kind.GPU_FAULT, "Memory access fault by GPU node-", alive=True),
    _needle(Kind.GPU_FAULT, "HSA_STATUS_ERROR", r"\bHSA_STATUS_ERROR\w*"),
    _needle(Kind.GPU_FAULT, " error: ", r"\b(?:ROCm|CUDA|MUSA) error: \S"),
    _needle(Kind.BAD_MODEL, "error loading model: "),
    _needle(Kind.BAD_MODEL, "failed to open GGUF file "),
    _needle(Kind.BAD_MODEL, "invalid magic characters: "),
    _needle(Kind.BAD_MODEL, "exiting due to model loading error"),
    _needle(Kind.ASSERTION, "GGML_ASSERT(", r"\.\w+:\d+: GGML_ASSERT\(.*\) failed"),
    _needle(Kind.ASSERTION, "terminate called after throwing an instance of '"),
)

_PRECEDENCE = {kind: index for index, kind in enumerate(dict.fromkeys(n.kind for n in NEEDLES))}


def scan(block: bytes) -> Iterator[Match]:
    """The needles in a block of whole lines. Nearly free when the block holds none."""
    present = [needle for needle in NEEDLES if needle.literal in block]
    if not present:
        return
    for raw in block.splitlines():
        line: str | None = None
        for needle in present:
            if needle.literal in raw:
                if line is None:
                    line = raw.decode("utf-8", "replace")
                if needle.pattern.search(line):
                    yield Match(needle=needle, line=line)
                    break


def cause(matches: Iterable[Match]) -> Match | None:
    """The match that tells the cause best: highest precedence, the earliest of that kind."""
    return min(matches, key=lambda match: _PRECEDENCE[match.needle.kind], default=None)


def classify_exit(
    returncode: int, matches: Sequence[Match], state: State, *, oom_killed: bool
) -> Failure:
    """Why the engine ended. ``returncode`` is negative for a signal; ``matches`` are what it said.

    ``oom_killed`` tells that the kernel's OOM killer was at work on this machine since the start.
    """
    how = _ended(returncode)
    if returncode == -signal.SIGKILL and oom_killed:
        return Failure(
            kind=Kind.OUT_OF_MEMORY,
            message="the engine was killed because the machine ran out of memory",
            state=state,
            returncode=returncode,
        )
    found = cause(matches)
    if found is not None and returncode not in (-signal.SIGKILL, -signal.SIGTERM):
        return from_match(found, state, returncode=returncode)
    if returncode in (-signal.SIGKILL, -signal.SIGTERM):
        kind = Kind.KILLED
    elif returncode == 0:
        # It ends well only when it is asked to (it handles SIGTERM), and we did not ask.
        kind = Kind.KILLED
        how += " because somebody else asked it to"
    elif returncode == -signal.SIGILL:
        kind = Kind.ENGINE_BROKEN
        how += ": it was built for another CPU"
    elif returncode < 0:
        kind = Kind.CRASH
    else:
        kind = Kind.EXIT
    return Failure(kind=kind, message=f"the engine {how}", state=state, returncode=returncode)


def from_match(match: Match, state: State, *, returncode: int | None = None) -> Failure:
    """The failure that a log line tells."""
    kind = match.needle.kind
    return Failure(
        kind=kind,
        message=f"{_TITLES[kind]}: {match.line.strip()[:300]}",
        state=state,
        line=match.line,
        returncode=returncode,
    )


_TITLES = {
    Kind.PORT_IN_USE: "the engine cannot use its port",
    Kind.BAD_FLAG: "the engine refused its command line",
    Kind.ENGINE_BROKEN: "the engine cannot run here",
    Kind.OUT_OF_MEMORY: "out of memory",
    Kind.DEVICE_LOST: "the GPU was lost",
    Kind.GPU_TIMEOUT: "the GPU did not finish in time",
    Kind.GPU_FAULT: "the GPU's runtime failed",
    Kind.BAD_MODEL: "the engine cannot load the model",
    Kind.ASSERTION: "the engine aborted",
}


def _ended(returncode: int) -> str:
    if returncode < 0:
        try:
            return f"was ended by {signal.Signals(-returncode).name}"
        except ValueError:
            return f"was ended by signal {-returncode}"
    return f"ended with status {returncode}"
