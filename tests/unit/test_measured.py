"""Measurements of an earlier time: the same answer, and never one of something else."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from llama_ai import paths
from llama_ai.cli.measured import recall, remember
from llama_ai.engine.capabilities import EngineInfo
from llama_ai.engine.probe import Measured, Side
from llama_ai.planning import Profile
from tests.support.models import write_model
from tests.unit.test_router import profile, settings

ENGINE = cast("EngineInfo", SimpleNamespace(key="one"))
ANSWER = Measured(
    host=Side(
        name="host",
        total_bytes=None,
        free_bytes=None,
        model_bytes=3,
        context_bytes=2,
        compute_bytes=1,
    ),
    devices=(),
)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    """A profile whose measurement is remembered."""
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")
    found = profile(write_model(tmp_path / "m.gguf"), settings())
    assert recall(ENGINE, found, None) is None
    remember(ENGINE, found, None, ANSWER)
    return found


def test_the_same_answer_comes_back(known: Profile) -> None:
    assert recall(ENGINE, known, None) == ANSWER


def test_another_engine_layout_or_file_has_no_answer(known: Profile, tmp_path: Path) -> None:
    assert recall(cast("EngineInfo", SimpleNamespace(key="two")), known, None) is None
    other = replace(known.plan.layout, ctx_size=512)
    assert recall(ENGINE, replace(known, plan=replace(known.plan, layout=other)), None) is None
    os.utime(tmp_path / "m.gguf", ns=(1, 1))
    assert recall(ENGINE, profile(tmp_path / "m.gguf", settings()), None) is None


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"host": 1, "devices": []}', b"[" * 100_000])
def test_a_damaged_entry_is_none(known: Profile, tmp_path: Path, damage: bytes) -> None:
    [entry] = (tmp_path / "cache" / "measured").iterdir()
    entry.write_bytes(damage)
    assert recall(ENGINE, known, None) is None


def test_old_ones_are_measured_again(known: Profile, tmp_path: Path) -> None:
    [entry] = (tmp_path / "cache" / "measured").iterdir()
    os.utime(entry, (1, 1))
    assert recall(ENGINE, known, None) is None


def test_a_failure_is_not_kept(known: Profile) -> None:
    other = replace(
        known, plan=replace(known.plan, layout=replace(known.plan.layout, ctx_size=512))
    )
    remember(ENGINE, other, None, Measured(error="no"))
    assert recall(ENGINE, other, None) is None
