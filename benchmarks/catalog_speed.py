"""How long ``llama-ai models`` takes for many models: cold (no cache) and warm.

    .venv/bin/python benchmarks/catalog_speed.py HEADERS [--models 100] [--runs 3]

HEADERS is a directory of GGUF files of real models, whole or with a hole for their data. They are
linked under as many names as wanted, each with a header of its own size (a hole of one more block),
so that none counts as a duplicate of another. Prints one JSON object with its configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Lay out the models, run the command, print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("headers", type=Path)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    sources = [path for path in sorted(asked.headers.glob("*.gguf")) if "-of-" not in path.stem]
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch)
        store = home / "data" / "llama-ai" / "models"
        store.mkdir(parents=True, mode=0o700)
        for index in range(asked.models):
            copy_with_hole(sources[index % len(sources)], store / f"model-{index:03d}.gguf", index)
        env = {
            **os.environ,
            "HOME": scratch,
            **{f"XDG_{name}_HOME": f"{scratch}/{name.lower()}" for name in ("CACHE", "CONFIG")},
            "XDG_DATA_HOME": f"{scratch}/data",
        }
        cold: list[tuple[float, float]] = []
        warm: list[tuple[float, float]] = []
        for _ in range(asked.runs):
            subprocess.run(["rm", "-rf", f"{scratch}/cache"], check=True)
            cold.append(timed(env))
            warm.append(timed(env))
    load = os.getloadavg()[0]
    result = {
        "models": asked.models,
        "distinct_headers": len(sources),
        "cold_s": median(cold, 0),
        "cold_cpu_s": median(cold, 1),
        "warm_s": median(warm, 0),
        "warm_cpu_s": median(warm, 1),
        "cores": os.cpu_count(),
        "load_average_1m": round(load, 2),
        "python": platform.python_version(),
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


def copy_with_hole(source: Path, target: Path, extra: int) -> None:
    """A sparse copy of ``source``, ``extra`` pages longer."""
    size = source.stat().st_size
    with source.open("rb") as reader, target.open("wb") as writer:
        writer.write(reader.read(24 << 20))
        writer.truncate(size + 4096 * extra)


def median(times: list[tuple[float, float]], column: int) -> float:
    """Of the wall times (0) or the CPU times (1)."""
    return round(statistics.median(pair[column] for pair in times), 2)


def timed(env: dict[str, str]) -> tuple[float, float]:
    """Seconds that one run takes: by the clock, and of all its processes on a CPU."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "llama_ai", "models", "--json"],
        env=env,
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parent.parent,
    )
    wall_s = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s


if __name__ == "__main__":
    main()
