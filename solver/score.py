"""The seed's scoring: strategy first, then context, then KV type, then a draft model.

``score = strategy x 1000 + context x 10 + kv + draft``. 128 K scores above 196 K and 262 K on
purpose: past 128 K, memory is better spent elsewhere, and a model that was trained for it still
gets there when the smaller contexts are excluded by the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from solver.types import Strategy

STRATEGY_POINTS: dict[Strategy, int] = {
    "gpu": 300,
    "partial": 275,  # ours: better than no expert on the device, worse than all of them
    "cpu": 250,
    "residency": 200,
}
CONTEXT_POINTS: dict[int, int] = {131072: 100, 98304: 95, 196608: 90, 262144: 85, 65536: 80}
KV_POINTS: dict[str, int] = {"f16": 30, "q8_0": 20, "q4_0": 10}
DRAFT_POINTS = 5
SMALLEST_SCORED_CONTEXT = 65536


def context_points(ctx_size: int) -> int:
    """Points of a context; one that is not in the table counts by its size, below 64 K's 80."""
    if ctx_size in CONTEXT_POINTS:
        return CONTEXT_POINTS[ctx_size]
    if ctx_size < SMALLEST_SCORED_CONTEXT:
        return 80 * ctx_size // SMALLEST_SCORED_CONTEXT
    return max(points for size, points in CONTEXT_POINTS.items() if size <= ctx_size)


def kv_points(kv_type_k: str, kv_type_v: str) -> int:
    """Points of a pair of KV types: the mean of both; types outside the table count 0."""
    return (KV_POINTS.get(kv_type_k, 0) + KV_POINTS.get(kv_type_v, 0)) // 2


def score(
    strategy: Strategy, ctx_size: int, kv_type_k: str, kv_type_v: str, *, draft: bool = False
) -> int:
    """The seed's score of one candidate."""
    return (
        STRATEGY_POINTS[strategy] * 1000
        + context_points(ctx_size) * 10
        + kv_points(kv_type_k, kv_type_v)
        + (DRAFT_POINTS if draft else 0)
    )
