"""How far the memory model is from the engine's own measurement.

    memory_accuracy.py measure --probe BIN --models DIR --truth DIR [--backend cpu|vulkan] [--full]
    memory_accuracy.py report --models DIR --truth DIR [--output FILE.md] [--worst N]
    memory_accuracy.py record --models DIR --truth DIR --output FILE.json

``measure`` asks the engine's ``memory_probe`` (no allocation) for every model of a directory and
every layout of the grid, and keeps the answers; ``report`` compares them with ``solver.memory``
and writes the table of errors; ``record`` packs headers and a part of the answers into the small
file that the unit tests read. On a machine without a GPU, preload the shim that lets Mesa's
software driver stand in for an APU (``--preload``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ai.gguf.facts import facts_of
from llama_ai.gguf.header import Header, read_header
from llama_ai.gguf.parse import Skipped
from llama_ai.gguf.solver_model import model_from_facts
from solver.memory import estimate
from solver.types import Components, Layout, Memory

if TYPE_CHECKING:
    from solver.model import Model

MIB = 1 << 20
KEYS = {
    "ctx_size": "ctx_size",
    "kv_type_k": "cache_type_k",
    "kv_type_v": "cache_type_v",
    "n_parallel": "parallel",
    "kv_unified": "kv_unified",
    "batch": "batch_size",
    "ubatch": "ubatch_size",
    "gpu_layers": "gpu_layers",
    "n_cpu_moe": "n_cpu_moe",
    "swa_full": "swa_full",
}


def grid(gpu: bool, full: bool) -> list[Layout]:
    """The layouts of the bar, and some that move parts to the host."""
    base: dict[str, Any] = {"gpu_layers": 999 if gpu else 0}
    slots = [(1, False), (4, True), (4, False)]
    contexts = [4096, 32768, 131072]
    types = ["f16", "q8_0", "q4_0"]
    ubatches = [512, 2048]
    if not full:
        axes = [
            (c, t, s, u)
            for c, t, s, u in itertools.product(contexts, types, slots, ubatches)
            if (t == "f16" or (u == 512 and s == (1, False)))
            and not (s == (4, False) and u == 2048)
        ]
    else:
        axes = list(itertools.product(contexts, types, slots, ubatches))
    layouts = [
        Layout(
            ctx_size=c, kv_type_k=t, kv_type_v=t, n_parallel=n, kv_unified=unified, ubatch=u, **base
        )
        for c, t, (n, unified), u in axes
    ]
    wide: dict[str, Any] = {**base, "ctx_size": 32768}
    layouts.append(Layout(**wide, kv_type_k="q8_0", kv_type_v="q4_0"))
    layouts.append(Layout(**wide, swa_full=True))
    layouts.append(Layout(**wide, flash_attn=False))
    layouts.append(Layout(**wide, mtp=True))
    if gpu:
        changes = ({"n_cpu_moe": 999}, {"n_cpu_moe": 1}, {"gpu_layers": 1}, {"gpu_layers": 2})
        layouts += [Layout(**{**wide, **change}) for change in changes]
    return layouts


def probe_layout(layout: Layout) -> dict[str, Any]:
    """A layout in the words of ``memory_probe``."""
    values = asdict(layout)
    found = {theirs: values[ours] for ours, theirs in KEYS.items()}
    found["flash_attn"] = "on" if layout.flash_attn else "off"
    found["n_cpu_moe"] = layout.n_cpu_moe or None
    if layout.mtp:
        found["spec_type"] = "draft-mtp"
        found["spec_draft_n_max"] = layout.mtp_n_max
    found["name"] = json.dumps(values)
    return found


def models_of(directory: Path) -> list[Path]:
    """Model files, of a split model the first part."""
    return sorted(
        path
        for path in directory.glob("*.gguf")
        if "-of-" not in path.name or "-00001-of-" in path.name
    )


def measure(options: argparse.Namespace) -> None:
    """Ask the engine and keep its answers."""
    gpu = options.backend == "vulkan"
    layouts = [probe_layout(layout) for layout in grid(gpu, options.full)]
    environment = dict(os.environ)
    if gpu:
        environment["GGML_VK_VISIBLE_DEVICES"] = "0"
        if options.preload:
            environment.update(LD_PRELOAD=options.preload, VKBIG_IGPU="1")
    else:
        layouts = [{**layout, "device": "none"} for layout in layouts]
    options.truth.mkdir(parents=True, exist_ok=True)
    for path in models_of(options.models):
        target = options.truth / f"{path.stem}.{options.backend}.json"
        if target.exists():
            continue
        run = subprocess.run(
            [options.probe, str(path)],
            input=json.dumps(layouts),
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        if run.returncode and not run.stdout:
            print(f"{path.name}: {run.returncode} {run.stderr[-200:]}", file=sys.stderr)
            continue
        target.write_text(run.stdout)


def compare(answer: dict[str, Any], memory: Memory) -> dict[str, int]:
    """Errors in bytes (ours less theirs), and their figures."""
    device = answer["devices"][0] if answer["devices"] else {}
    row: dict[str, int] = {}
    for side, theirs, ours in (("gpu", device, memory.gpu), ("host", answer["host"], memory.host)):
        draft = theirs.get("draft", {})
        row[f"{side}_weights"] = theirs.get("model_bytes", 0)
        row[f"{side}_weights_error"] = ours.weights_bytes - row[f"{side}_weights"]
        row[f"{side}_kv"] = theirs.get("context_bytes", 0)
        row[f"{side}_kv_error"] = ours.kv_bytes + ours.recurrent_bytes - row[f"{side}_kv"]
        row[f"{side}_compute"] = theirs.get("compute_bytes", 0)
        row[f"{side}_compute_error"] = ours.compute_bytes - row[f"{side}_compute"]
        row[f"{side}_draft"] = sum(draft.values())
        row[f"{side}_draft_error"] = ours.draft_bytes - row[f"{side}_draft"]
    parts = [(s, p) for s in ("gpu", "host") for p in ("weights", "kv", "compute", "draft")]
    row["sum"] = sum(row[f"{s}_{p}"] for s, p in parts)
    row["sum_error"] = sum(row[f"{s}_{p}_error"] for s, p in parts)
    return row


def misses(row: dict[str, int]) -> list[str]:
    """Which bars a row misses."""
    found = []
    for side in ("gpu", "host"):
        if row[f"{side}_weights_error"]:
            found.append(f"{side}_weights")
        for part, share, floor in (
            ("kv", 0.005, MIB),
            ("compute", 0.15, 64 * MIB),
            ("draft", 0.15, 64 * MIB),
        ):
            error = abs(row[f"{side}_{part}_error"])
            if error > max(share * row[f"{side}_{part}"], floor):
                found.append(f"{side}_{part}")
    if row["sum_error"] < -0.02 * row["sum"]:
        found.append("sum")
    return found


Answered = tuple[Path, Layout, dict[str, Any]]


def answers_of(models: Path, truth: Path) -> list[Answered]:
    """Every measured layout of every model."""
    return [
        (path, Layout(**json.loads(answer["name"])), answer)
        for path in models_of(models)
        for file in (truth / f"{path.stem}.{backend}.json" for backend in ("cpu", "vulkan"))
        if file.exists()
        for answer in json.loads(file.read_text())["layouts"]
        if "error" not in answer
    ]


def rows_of(models: Path, truth: Path) -> list[tuple[str, Layout, dict[str, int]]]:
    """Every measured layout beside our estimate."""
    solver_models: dict[Path, Model] = {}
    rows = []
    for path, layout, answer in answers_of(models, truth):
        if path not in solver_models:
            solver_models[path] = model_from_facts(facts_of(read_header(path)))
        row = compare(answer, estimate(solver_models[path], layout))
        rows.append((path.stem, layout, row))
    return rows


def record(options: argparse.Namespace) -> int:
    """Headers without their vocabularies, a tenth of the answers, all without flash attention."""
    recorded: dict[str, dict[str, Any]] = {}
    for number, (path, layout, answer) in enumerate(answers_of(options.models, options.truth)):
        if path.stem not in recorded:
            recorded[path.stem] = {**packed(read_header(path)), "truth": []}
        if number % options.every == 0 or not layout.flash_attn:
            row = compare(answer, Memory(gpu=Components(), host=Components()))
            kept = {key: value for key, value in row.items() if value and "error" not in key}
            changed = {
                key: value
                for key, value in asdict(layout).items()
                if value != getattr(Layout(ctx_size=0), key)
            }
            recorded[path.stem]["truth"].append([changed, kept])
    lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in recorded.items()]
    options.output.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


def packed(header: Header) -> dict[str, Any]:
    """A header in short: of each kind of tensor a row, with the blocks that have it."""
    kinds: dict[tuple[str, tuple[int, ...], int], list[int]] = {}
    for tensor in header.tensors:
        block, name = -1, tensor.name
        if match := re.fullmatch(r"blk\.(\d+)\.(.+)", tensor.name):
            block, name = int(match[1]), match[2]
        kinds.setdefault((name, tensor.shape, tensor.type), []).append(block)
    kv: dict[str, Any] = {}
    for key, value in header.kv.items():
        if isinstance(value, float):
            continue  # a norm's epsilon, a rope's base: no size depends on one
        if isinstance(value, Skipped):
            kv[key] = {"skipped": value}
        elif isinstance(value, tuple) and key.startswith("tokenizer."):
            kv[key] = {"skipped": Skipped("str", len(value))}
        elif isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
            kv[key] = {"alike": [value[0], len(value)]}
        elif "chat_template" not in key:
            kv[key] = value
    return {
        "size_bytes": header.size_bytes,
        "kv": kv,
        "tensors": [[*kind, ranges(blocks)] for kind, blocks in kinds.items()],
    }


def ranges(numbers: list[int]) -> list[list[int]]:
    """First and last of each run."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return runs


def describe(layout: Layout) -> str:
    """A layout in a few words."""
    side = "cpu" if not layout.gpu_layers else f"ngl{layout.gpu_layers}"
    words = [
        side,
        f"c{layout.ctx_size}",
        layout.kv_type_k,
        f"np{layout.n_parallel}",
        f"ub{layout.ubatch}",
    ]
    if layout.kv_unified:
        words.append("unified")
    if layout.kv_type_v != layout.kv_type_k:
        words.append(f"v={layout.kv_type_v}")
    words += [flag for flag in ("swa_full", "mtp") if getattr(layout, flag)]
    if not layout.flash_attn:
        words.append("nofa")
    if layout.n_cpu_moe:
        words.append(f"ncmoe{layout.n_cpu_moe}")
    return " ".join(words)


def kind_of(layout: Layout) -> str:
    """What a layout is for: the bars are set for the first kind."""
    if not layout.flash_attn:
        return "without flash attention"
    if layout.gpu_layers in (1, 2):
        return "1 or 2 layers on the device"
    return "planned"


def report(options: argparse.Namespace) -> int:
    """Write the tables; the exit status says whether every bar holds for what is planned with."""
    rows = rows_of(options.models, options.truth)
    kinds: dict[str, dict[str, list[tuple[Layout, dict[str, int]]]]] = {}
    for name, layout, row in rows:
        kinds.setdefault(kind_of(layout), {}).setdefault(name, []).append((layout, row))
    lines = [
        "Errors are ours less the engine's, in MiB, the worst of a model. `below`: the worst",
        "shortfall of the sum, in percent; `misses`: layouts outside a bar. Written by",
        "`benchmarks/memory_accuracy.py report`.",
    ]
    missed: dict[str, int] = {}
    for kind, by_model in kinds.items():
        count = sum(map(len, by_model.values()))
        misses_of = {
            name: [row for row in found if misses(row[1])] for name, found in by_model.items()
        }
        missed[kind] = sum(map(len, misses_of.values()))
        lines += [
            "",
            f"## Layouts {kind}: {missed[kind]} of {count} outside a bar",
            "",
            "| model | layouts | weights | KV | compute, device | host | draft | below | misses |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        shown = [name for name in sorted(by_model) if kind == "planned" or misses_of[name]]
        lines += [line_of(name, by_model[name], len(misses_of[name])) for name in shown]
        if kind == "planned" and missed[kind]:
            lines += ["", f"Outside a bar (at most {options.worst} a model):", ""]
            lines += [
                f"- {name}, {describe(layout)}: {outside(row)}"
                for name in shown
                for layout, row in misses_of[name][: options.worst]
            ]
    text = "\n".join(lines) + "\n"
    if options.output:
        options.output.write_text(text)
    print(", ".join(f"{kind}: {count} missed" for kind, count in missed.items()), file=sys.stderr)
    return 1 if missed.get("planned") else 0


def outside(row: dict[str, int]) -> str:
    """The figures that miss: the engine's, and by how much ours differ."""
    return ", ".join(
        f"{part} {row[part] / MIB:.0f}{row[f'{part}_error'] / MIB:+.0f}" for part in misses(row)
    )


def line_of(name: str, found: list[tuple[Layout, dict[str, int]]], missed: int) -> str:
    """A row of the table."""

    def worst(*keys: str) -> str:
        error = max((row[f"{key}_error"] for _, row in found for key in keys), key=abs)
        return f"{error / MIB:+.2f}"

    below = min(100 * row["sum_error"] / max(row["sum"], 1) for _, row in found)
    cells = [
        name,
        str(len(found)),
        worst("gpu_weights", "host_weights"),
        worst("gpu_kv", "host_kv"),
        worst("gpu_compute"),
        worst("host_compute"),
        worst("gpu_draft", "host_draft"),
        f"{min(below, 0):.2f}",
        str(missed or ""),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("measure", "report", "record"):
        command = commands.add_parser(name)
        command.add_argument("--models", type=Path, required=True)
        command.add_argument("--truth", type=Path, required=True)
        if name == "measure":
            command.add_argument("--probe", required=True)
            command.add_argument("--backend", choices=("cpu", "vulkan"), default="cpu")
            command.add_argument("--preload")
            command.add_argument("--full", action="store_true", help="the whole grid")
        elif name == "record":
            command.add_argument("--output", type=Path, required=True)
            command.add_argument("--every", type=int, default=10)
        else:
            command.add_argument("--output", type=Path)
            command.add_argument("--worst", type=int, default=4, help="layouts to list a model")
    options = parser.parse_args()
    if options.command == "measure":
        measure(options)
        return 0
    return record(options) if options.command == "record" else report(options)


if __name__ == "__main__":
    raise SystemExit(main())
