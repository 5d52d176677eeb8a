"""What the engine counted of a model's experts, for the forecast of speed.

The file is the engine's (``native/src/expert_stats.cpp``); here only the counts are looked at.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA: Final = "llama-ai.expert-stats/1"
_MOST_BYTES: Final = 64 << 20
_MOST_LAYERS: Final = 4096
_MOST_EXPERTS: Final = 65536
LEAST_USES: Final = 16
"""Uses an expert on average before counts say anything: the first few tokens use only a few
experts, which looks like a habit."""


def read_use(path: Path) -> tuple[tuple[float, ...], ...] | None:
    """For each layer the decayed counts of its experts, largest first; empty where too few are.

    ``None`` for a file that is not there or cannot be understood: the engine will say so, and set
    it aside.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        document = json.loads(path.read_bytes())
        if document["schema"] != _SCHEMA:
            return None
        n_layer, n_expert = document["n_layer"], document["n_expert"]
        if not 0 < n_layer <= _MOST_LAYERS or not 0 < n_expert <= _MOST_EXPERTS:
            return None
        use: list[tuple[float, ...]] = [()] * n_layer
        for entry in document["layers"]:
            counts = [float(count) for count in entry["recent"]]
            if len(counts) != n_expert or not all(0 <= count < math.inf for count in counts):
                return None
            if sum(counts) >= LEAST_USES * n_expert:
                use[entry["layer"]] = tuple(sorted(counts, reverse=True))
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return tuple(use)
