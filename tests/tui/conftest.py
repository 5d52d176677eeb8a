"""Recordings that the screens are shown with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai.hardware.drm import read_gpus
from llama_ai.hardware.root import Root
from llama_ai.monitor.host import GpuReader
from llama_ai.monitor.recording import read_recording

if TYPE_CHECKING:
    from llama_ai.monitor.sample import Slot
    from llama_ai.monitor.sampler import Look

HERE = Path(__file__).parent
MACHINES = HERE.parent / "machines"


@pytest.fixture
def generating() -> list[Look]:
    """The recording of the real engine."""
    return read_recording(HERE / "recordings" / "generating.jsonl")[1]


@pytest.fixture
def apu(generating: list[Look]) -> list[Look]:
    """The same with the GPU of a recorded Phoenix APU, users, drafts, a disk tier and a miss."""
    root = Root(MACHINES / "phoenix-64-4g" / "root")
    (card,) = read_gpus(root)
    gpu = GpuReader(root, card.gpu, budget_bytes=27 << 30).read()

    def dress(look: Look) -> Look:
        engine = look.sample.engine
        slots = tuple(_dress(slot, index) for index, slot in enumerate(engine.slots))
        engine = replace(
            engine,
            slots=slots,
            draft_acceptance=0.713,
            kv_disk_bytes=3 << 30,
            kv_disk_limit_bytes=20 << 30,
            kv_hits_hot=12,
            kv_hits_warm=3,
            kv_hits_cold=2,
            kv_misses=1,
        )
        cpu = replace(look.sample.cpu, temp_c=71.0)
        missing = tuple(
            item for item in look.sample.missing if item.what not in ("gpu", "kv disk tier")
        )
        sample = replace(look.sample, engine=engine, gpu=gpu, cpu=cpu, missing=missing)
        return replace(look, sample=sample)

    return [dress(look) for look in generating]


def _dress(slot: Slot, index: int) -> Slot:
    miss = "first difference at token 118 of 309" if index == 1 else None
    return replace(
        slot,
        user=("alice", "bob", "carol-with-a-long-name")[index],
        draft_acceptance=(0.71, None, 0.4)[index],
        cache_tier=("hot", "miss", "cold")[index],
        miss_reason=miss,
    )
