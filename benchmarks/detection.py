#!/usr/bin/env python3
"""How long detection takes: `python benchmarks/detection.py [--json FILE] [--runs N] [--root DIR]`.

Three figures, each the median of N runs with its quartiles: `first` is the first detection of a new
process, with the reading of the device tables; `again` is a later one in the same process; `import`
is the loading of our modules and the standard library's before it. The budgets are in all of them.
The result carries its configuration; the limit concerns `first`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

CHILD = """
import sys, time
marks = [time.perf_counter()]
from llama_ai.hardware.budgets import budgets
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
marks.append(time.perf_counter())
root = Root(sys.argv[1])
for _ in range(2):
    budgets(detect(root))
    marks.append(time.perf_counter())
print(*((after - before) * 1000 for before, after in zip(marks, marks[1:])))
"""

LIMIT_MS = 50


def spread(values_ms: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values_ms, n=4)
    return {"median_ms": round(middle, 3), "q1_ms": round(low, 3), "q3_ms": round(high, 3)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result here")
    parser.add_argument("--runs", type=int, default=30, help="runs of each kind (default 30)")
    parser.add_argument("--root", default="/", help="a recorded machine instead of this one")
    options = parser.parse_args()

    from llama_ai import __version__
    from llama_ai.hardware.detect import detect
    from llama_ai.hardware.root import Root

    root = Root(options.root)
    facts = detect(root)
    times_ms = [
        [
            float(word)
            for word in subprocess.run(
                [sys.executable, "-c", CHILD, options.root],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
        ]
        for _ in range(options.runs)
    ]
    imports, first, again = (list(column) for column in zip(*times_ms, strict=True))
    result = {
        "schema": "llama-ai.benchmark.detection/1",
        "config": {
            "version": __version__,
            "runs": options.runs,
            "root": "this machine" if options.root == "/" else Path(options.root).parent.name,
            "measured_on": {
                "cpu": detect().cpu.model,
                "cpus": os.cpu_count(),
                "kernel": platform.release(),
                "python": platform.python_version(),
                "load_average": round(os.getloadavg()[0], 1),
            },
            "detected": {"tier": facts.tier, "gpu": facts.gpu.label if facts.gpu else None},
        },
        "limit_ms": LIMIT_MS,
        "import": spread(imports),
        "first": spread(first),
        "again": spread(again),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
