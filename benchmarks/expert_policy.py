"""Residency policies compared on routing of known kind, with ``expert_simulator``.

    expert_policy.py --simulator BUILD/bin/expert_simulator [--trace FILE]... [--json FILE]

Four questions, all answered by replaying routing (no model, no disk; seconds are the simulator's):

- ``policies``: hit rate and tokens/s of each policy, and of the optimum, by workload and budget;
- ``half_lives``: our score with one fixed half-life, against letting the workload choose;
- ``prefill``: a prompt of 512 tokens and 128 tokens of reply, in turn;
- ``foresight``: what reading ahead of the next layer's router is worth, by how often it is right.

``topic`` workloads are burst-like, as measured on real models: with 128 experts, top 8, 43 % of a
token's experts were those of the token before and 79 % were used within eight tokens (published for
Qwen3-30B-A3B: 45 % and 80 %); with 512 experts, top 10, an LRU of 93 to 372 slots a layer hits 44 %
to 74 % (published for Qwen3-Next: 44 % to 79 %). ``--trace`` adds recorded routing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

SHARES = (0.05, 0.1, 0.25, 0.5)
POLICIES = ("ours", "lru", "lfu", "clock", "static", "pr2101", "mmap", "belady")
HALF_LIVES = (4, 8, 16, 32, 64, 128, 256, 1024)
TOKENS, SKIP = 3000, 1000

# name: workload, layers x experts x used, MiB of a unit (Q4_K_M of models of this shape)
WORKLOADS = {
    "zipf 0.6": ("zipf:0.6", "24x64x4", 4.0),
    "zipf 1.0": ("zipf:1.0", "24x64x4", 4.0),
    "zipf 1.2": ("zipf:1.2", "24x64x4", 4.0),
    "uniform": ("zipf:0", "24x64x4", 4.0),
    "zipf 1.0, slow drift": ("zipf:1.0,swap:4", "24x64x4", 4.0),
    "zipf 1.0, new ranks each 300 tokens": ("zipf:1.0,shift:300", "24x64x4", 4.0),
    "bursts, 128 experts": ("zipf:0.2,topic:2.5/70", "24x128x8", 2.6),
    "bursts and skew, 128 experts": ("zipf:0.8,topic:2/35", "24x128x8", 2.6),
    "bursts, 512 experts": ("zipf:0.2,topic:1.5/10", "12x512x10", 1.7),
    "bursts, 4 users": ("zipf:0.2,topic:2.5/70,streams:4", "24x128x8", 2.6),
}
TIME_MODEL = {
    "--disk-mb-s": 3000,
    "--fault-mb-s": 226,
    "--disk-latency-us": 100,
    "--layer-us": 200,
    "--layer-token-us": 20,
    "--expert-us": 60,
    "--expert-token-us": 10,
}


class Simulator:
    """Runs ``expert_simulator``; remembers each command."""

    def __init__(self, program: Path) -> None:
        self.program = program

    def runs(self, source: list[str], *words: str | float) -> list[dict[str, Any]]:
        model = [str(word) for item in TIME_MODEL.items() for word in item]
        command = [str(self.program), *source, *model, *map(str, words)]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result: list[dict[str, Any]] = json.loads(output)["runs"]
        return result

    def info(self, source: list[str]) -> dict[str, Any]:
        command = [str(self.program), *source, "--info"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result: dict[str, Any] = json.loads(output)
        return result


def source_of(workload: str, shape: str, tokens: int = TOKENS) -> list[str]:
    return ["--generate", workload, "--shape", shape, "--tokens", str(tokens), "--seed", "1"]


def budgets_of(shape: str, shares: tuple[float, ...] = SHARES) -> dict[int, float]:
    layers, experts, _ = map(int, shape.split("x"))
    return {round(share * layers * experts): share for share in shares}


def brief(run: dict[str, Any], share: float, part: str = "decode") -> dict[str, Any]:
    one = run[part]
    return {
        "budget_share": share,
        "policy": run["policy"],
        "hit_rate": one["hit_rate"],
        "tokens_per_s": one["tokens_per_s"],
        "stall_share": one["stall_seconds"] / one["seconds"],
        "half_life_tokens": run["half_life_tokens"],
    }


def policies(simulator: Simulator, traces: list[Path]) -> dict[str, list[dict[str, Any]]]:
    result = {}
    sources = {
        name: (source_of(workload, shape), budgets_of(shape), unit_mib, SKIP)
        for name, (workload, shape, unit_mib) in WORKLOADS.items()
    }
    for path in traces:
        info = simulator.info([str(path)])
        shares = {round(share * info["units"]): share for share in SHARES}
        sources[path.stem] = ([str(path)], shares, 4.0, info["tokens"] // 4)
    for name, (source, shares, unit_mib, skip) in sources.items():
        runs = simulator.runs(
            source, "--policy", ",".join(POLICIES), "--budget-units", ",".join(map(str, shares)),
            "--unit-mib", unit_mib, "--skip-tokens", skip,
        )  # fmt: skip
        result[name] = [brief(run, shares[run["budget_units"]]) for run in runs]
        print(f"policies: {name}", file=sys.stderr)
    return result


def half_lives(simulator: Simulator) -> list[dict[str, Any]]:
    rows = []
    for name, (workload, shape, _) in WORKLOADS.items():
        shares = budgets_of(shape)
        for half_life in (*HALF_LIVES, None):
            words = [] if half_life is None else ["--half-lives", str(half_life)]
            runs = simulator.runs(
                source_of(workload, shape), "--budget-units", ",".join(map(str, shares)),
                "--skip-tokens", SKIP, *words,
            )  # fmt: skip
            rows += [
                {
                    "workload": name,
                    "budget_share": shares[run["budget_units"]],
                    "half_life_tokens": half_life,
                    "hit_rate": run["decode"]["hit_rate"],
                }
                for run in runs
            ]
        print(f"half-lives: {name}", file=sys.stderr)
    return rows


def regret(rows: list[dict[str, Any]]) -> dict[str, float]:
    """By half-life, how much the hit rate falls behind the best half-life's, in the worst case."""
    worst: dict[str, float] = {}
    best: dict[tuple[str, float], float] = {}
    for row in rows:
        key = (row["workload"], row["budget_share"])
        best[key] = max(best.get(key, 0.0), row["hit_rate"])
    for row in rows:
        name = str(row["half_life_tokens"] or "chosen by itself")
        behind = best[row["workload"], row["budget_share"]] - row["hit_rate"]
        worst[name] = max(worst.get(name, 0.0), behind)
    return worst


def prefill(simulator: Simulator) -> list[dict[str, Any]]:
    shape = "24x128x8"
    shares = budgets_of(shape, (0.1, 0.25, 0.5))
    runs = simulator.runs(
        source_of("zipf:0.2,topic:2.5/70,prompt:512/128/512", shape, 6400),
        "--policy", ",".join(POLICIES), "--budget-units", ",".join(map(str, shares)),
        "--unit-mib", 2.6, "--skip-tokens", 640,
    )  # fmt: skip
    return [
        {
            "budget_share": shares[run["budget_units"]],
            "policy": run["policy"],
            "prefill_tokens_per_s": run["prefill"]["tokens_per_s"],
            "decode_tokens_per_s": run["decode"]["tokens_per_s"],
            "decode_hit_rate": run["decode"]["hit_rate"],
        }
        for run in runs
    ]


def foresight(simulator: Simulator) -> list[dict[str, Any]]:
    rows = []
    for name in ("zipf 1.0", "bursts, 128 experts"):
        workload, shape, unit_mib = WORKLOADS[name]
        shares = budgets_of(shape, (0.1, 0.25, 0.5))
        for disk_mb_s in (1500, 3000, 6000):
            for how, words in {
                "none": (),
                "co-activation": ("--foresee", 8, "--foresee-share", 0.3),
                "recall 0.5": ("--foresee", 8, "--foresee-share", 0, "--foresee-recall", 0.5),
                "recall 0.75": ("--foresee", 8, "--foresee-share", 0, "--foresee-recall", 0.75),
                "recall 0.9": ("--foresee", 8, "--foresee-share", 0, "--foresee-recall", 0.9),
                "perfect": ("--foresee", 8, "--foresee-share", 0, "--foresee-recall", 1),
            }.items():
                runs = simulator.runs(
                    source_of(workload, shape), "--budget-units", ",".join(map(str, shares)),
                    "--unit-mib", unit_mib, "--skip-tokens", SKIP, *words,
                    "--disk-mb-s", disk_mb_s,
                )  # fmt: skip
                rows += [
                    {
                        "workload": name,
                        "disk_mb_s": disk_mb_s,
                        "budget_share": shares[run["budget_units"]],
                        "foresight": how,
                        "tokens_per_s": run["decode"]["tokens_per_s"],
                        "right_of_all": run["guessed_right"] / max(1, run["guessed"]),
                        "right_of_absent": run["absent_right"] / max(1, run["absent_guessed"]),
                    }
                    for run in runs
                ]
        print(f"foresight: {name}", file=sys.stderr)
    return rows


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def markdown(document: dict[str, Any]) -> str:
    text = []
    names = [name for name in POLICIES if name != "mmap"]
    for what, form in (("hit_rate", "{:.1%}"), ("tokens_per_s", "{:.1f}")):
        rows = []
        for name, runs in document["policies"].items():
            for share in (0.1, 0.25, 0.5):
                by = {run["policy"]: run[what] for run in runs if run["budget_share"] == share}
                chosen = names if what == "hit_rate" else list(POLICIES)
                rows.append([name, f"{share:.0%}", *(form.format(by[policy]) for policy in chosen)])
        chosen = names if what == "hit_rate" else list(POLICIES)
        text.append(f"{what}\n\n" + table(["workload", "budget", *chosen], rows))
    rows = [[name, f"{100 * value:.1f}"] for name, value in document["regret"].items()]
    text.append(table(["half-life, tokens", "hits behind the best, worst case, points"], rows))
    rows = [
        [f"{row['budget_share']:.0%}", row["policy"], f"{row['prefill_tokens_per_s']:.0f}",
         f"{row['decode_tokens_per_s']:.1f}", f"{row['decode_hit_rate']:.1%}"]
        for row in document["prefill"]
    ]  # fmt: skip
    text.append(table(["budget", "policy", "prefill t/s", "reply t/s", "reply hits"], rows))
    rows = [
        [row["workload"], str(row["disk_mb_s"]), f"{row['budget_share']:.0%}", row["foresight"],
         f"{row['tokens_per_s']:.1f}", f"{row['right_of_all']:.0%}",
         f"{row['right_of_absent']:.0%}"]
        for row in document["foresight"]
    ]  # fmt: skip
    head = ["workload", "MB/s", "budget", "foresight", "t/s", "right", "right where absent"]
    text.append(table(head, rows))
    return "\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--simulator", type=Path, required=True)
    parser.add_argument("--trace", type=Path, action="append", default=[])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    simulator = Simulator(options.simulator)
    rows = half_lives(simulator)
    document = {
        "schema": "llama-ai.bench-expert-policy/1",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "tokens": TOKENS,
        "skip_tokens": SKIP,
        "workloads": WORKLOADS,
        "time_model": TIME_MODEL,
        "policies": policies(simulator, options.trace),
        "half_lives": rows,
        "regret": regret(rows),
        "prefill": prefill(simulator),
        "foresight": foresight(simulator),
    }
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    print(markdown(document))


if __name__ == "__main__":
    main()
