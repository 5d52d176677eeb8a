"""Every recorded machine gives its expected facts, and budgets agree with what its drivers said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_ai.hardware.budgets import budgets
from llama_ai.hardware.detect import detect
from llama_ai.hardware.facts import HardwareFacts
from llama_ai.hardware.kernel import parse_version
from llama_ai.hardware.root import Root

MACHINES = Path(__file__).parents[1] / "machines"
SLUGS = sorted(path.parent.name for path in MACHINES.glob("*/expected.json"))

TOLERANCE = 0.02
"""Reports are rounded to a tenth of a GiB."""


def facts_of(slug: str) -> HardwareFacts:
    return detect(Root(MACHINES / slug / "root"))


def document_of(slug: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((MACHINES / slug / "expected.json").read_text())
    return document


def test_there_are_machines() -> None:
    assert len(SLUGS) >= 22
    for slug in SLUGS:
        assert (MACHINES / slug / "NOTES.md").is_file()


@pytest.mark.parametrize("slug", SLUGS)
def test_expected_facts(slug: str) -> None:
    expected = document_of(slug)["expected"]
    found = facts_of(slug).to_json()
    assert {key: found[key] for key in expected} == expected


@pytest.mark.parametrize("slug", SLUGS)
def test_budgets_agree_with_what_drivers_reported(slug: str) -> None:
    reported = document_of(slug)["reported"]
    facts = facts_of(slug)
    known = budgets(facts)
    gpu = facts.gpu
    if "vulkan_total_bytes" in reported:
        # The engine adds up all heaps, so its total is carve-out + GTT.
        assert known.backends["vulkan_unified"].bytes == pytest.approx(
            reported["vulkan_total_bytes"], rel=TOLERANCE
        )
    if "vulkan_device_local_bytes" in reported:
        assert known.backends["vulkan"].bytes == pytest.approx(
            reported["vulkan_device_local_bytes"], rel=TOLERANCE
        )
    if "rocm_pool_bytes" in reported:
        assert known.backends["rocm"].bytes == pytest.approx(
            reported["rocm_pool_bytes"], rel=TOLERANCE
        )
    for release, pool_bytes in reported.get("rocm_on_kernel", {}).items():
        # The same machine on another kernel, without that kernel's KFD report.
        assert gpu is not None
        other = replace(
            facts,
            gpu=replace(gpu, kfd_pool_bytes=None),
            kernel=replace(facts.kernel, release=release, version=parse_version(release)),
        )
        assert budgets(other).backends["rocm"].bytes == pytest.approx(pool_bytes, rel=TOLERANCE)


@pytest.mark.parametrize("slug", SLUGS)
def test_each_budget_is_explained_and_inside_the_pool(slug: str) -> None:
    known = budgets(facts_of(slug))
    for budget in known.backends.values():
        assert budget.steps
        if budget.bytes is not None and known.pool_bytes is not None:
            assert 0 <= budget.bytes <= known.pool_bytes


def test_reports_exist() -> None:
    """The comparison above compares something."""
    reports = [document_of(slug)["reported"] for slug in SLUGS]
    assert sum(len(report) for report in reports) >= 8
