"""The check of the disk that models are on: whether experts can be read from it while serving."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llama_ai.hardware.checks import Check

if TYPE_CHECKING:
    from llama_ai.hardware.disk_speed import ModelDisk

GOOD_BYTES_S = 0.3e9
"""Below it (rotating disks, cards, slow USB) a large model takes minutes to load as well."""

EXPECTED = "slices of experts read at 0.3 GB/s or more"


def model_disk(disk: ModelDisk | None, *, why_not: str = "no model file is here yet") -> Check:
    """``None``: there was nothing to measure, for the reason ``why_not``."""
    if disk is None:
        return Check(id="model-disk", status="UNKNOWN", expected=EXPECTED, observed=why_not)
    where = f"{disk.directory} ({disk.device or 'device not known'})"
    if disk.speed is None:
        return Check(
            id="model-disk",
            status="UNKNOWN",
            expected=EXPECTED,
            observed=f"{where}: {disk.problem}",
        )
    speed = disk.speed
    observed = (
        f"{where}: {_rate(speed.sequential_bytes_s)} in order, {_rate(speed.slices_bytes_s)} in "
        "slices of 1 MiB"
        + (", measured before" if disk.before else "")
        + ("" if speed.direct else "; through the page cache, so it may be slower")
    )
    if speed.slices_bytes_s >= GOOD_BYTES_S:
        return Check(id="model-disk", status="PASS", expected=EXPECTED, observed=observed)
    return Check(
        id="model-disk",
        status="WARN",
        expected=EXPECTED,
        observed=observed,
        hint="models larger than memory are slow from it, and others load slowly: keep models on "
        "an SSD in the machine, NVMe if there is one",
    )


def _rate(bytes_s: float) -> str:
    return f"{bytes_s / 1e9:.2f} GB/s"
