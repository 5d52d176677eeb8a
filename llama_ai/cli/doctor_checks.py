"""``doctor``'s checks of everything that is not the machine: engine, paths, disk, port (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.cli.output import bytes_text
from llama_ai.hardware.checks import Check
from solver.types import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.hardware.access import DiskFacts
    from llama_ai.hardware.facts import HardwareFacts

KV_DISK_BYTES = 20 * GIB
"""What the KV tiers may fill by default."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A directory that we use."""

    use: str
    path: str
    writable: bool
    """Whether it, or the nearest parent that exists, can be written."""


def engine(info: EngineInfo | None, facts: HardwareFacts) -> Check:
    """An engine is built, and it has the backend that this machine needs."""
    backend = "vulkan" if facts.gpu is not None else "cpu"
    expected = f"an engine with the {backend} backend"
    if info is None:
        return Check(
            id="engine",
            status="WARN",
            expected=expected,
            observed="none is built yet",
            hint="`llama-ai build` builds it now; `serve` does when it is first needed",
        )
    kind = "stock" if info.stock else f"{len(info.patches)} patches"
    observed = (
        f"{info.version or 'version not known'}, {', '.join(info.backends)}, {kind}: "
        f"{info.directory}"
    )
    if backend not in info.backends:
        return Check(
            id="engine",
            status="FAIL",
            expected=expected,
            observed=observed,
            hint=f"`llama-ai build --backend {backend}`; `scripts/install-deps` brings its tools",
        )
    return Check(id="engine", status="PASS", expected=expected, observed=observed)


def places(used: Sequence[Place]) -> list[Check]:
    """The directories in use, so that a service and a shell can be compared."""
    return [
        Check(
            id=f"path-{place.use}",
            status="PASS" if place.writable else "FAIL",
            expected="a directory that this user can write",
            observed=place.path if place.writable else f"{place.path} cannot be written",
            hint=None if place.writable else f"give {place.path} to this user (mode 0700)",
        )
        for place in used
    ]


def disk(facts: DiskFacts) -> Check:
    """Room and speed for the KV tiers."""
    expected = f"{bytes_text(KV_DISK_BYTES)} free on an SSD for saved KV state"
    if facts.free_bytes is None:
        return Check(id="disk", status="UNKNOWN", expected=expected, observed=facts.directory)
    kind = {True: "a rotating disk", False: "an SSD", None: "a disk of unknown kind"}
    device = f" ({facts.device})" if facts.device else ""
    observed = (
        f"{bytes_text(facts.free_bytes)} free on {kind[facts.rotational]}{device} "
        f"at {facts.directory}"
    )
    if facts.free_bytes < KV_DISK_BYTES:
        hint = "free some space, or lower --set kv_max_gib"
        return Check(id="disk", status="WARN", expected=expected, observed=observed, hint=hint)
    if facts.rotational:
        hint = "a rotating disk is too slow for it: use --no-ssd-cache, or another --set kv_dir"
        return Check(id="disk", status="WARN", expected=expected, observed=observed, hint=hint)
    status = "UNKNOWN" if facts.rotational is None else "PASS"
    return Check(
        id="disk",
        status=status,  # type: ignore[arg-type]
        expected=expected,
        observed=observed,
    )


def port(number: int, *, holder: str | None, ours: bool, hint: str | None) -> Check:
    """The port is free, or held by our own server. ``holder`` says who holds it."""
    expected = f"port {number} is free"
    if holder is None:
        return Check(id="port", status="PASS", expected=expected, observed="free")
    return Check(
        id="port",
        status="PASS" if ours else "WARN",
        expected=expected,
        observed=holder,
        hint=None if ours else hint,
    )
