"""What expert residency does for a model larger than memory, on the real engine.

    expert_residency.py disk  --model FILE [--readers 4]
    expert_residency.py small --engine LLAMA_AI_SERVER --model FILE [--runs stock,residency,…]
                              [--budget-mib 1000 …] [--cgroup-bytes 1500000000] [-- ENGINE WORDS]
    expert_residency.py ample --engine LLAMA_AI_SERVER --model FILE [--pairs 8]
    expert_residency.py same  --engine LLAMA_AI_SERVER --model FILE [--percent 5 10 25 50 100]

Each prints one JSON object (``--json FILE`` writes it too) with its configuration. Models come
from ``make_moe.py``. Nothing else should run; each takes a few minutes at most.

- ``disk``: bytes per second of reads of experts' slices at random places, past the page cache,
  for several numbers of threads.
- ``small``: one binary in a memory cgroup, the file out of the page cache before each start.
  ``stock`` is the mapped load without repacking, ``cpu-moe`` what ``--cpu-moe`` makes of it,
  ``default`` the load with no flag of ours, ``residency`` our pool at each budget, ``kernel`` the
  mode that leaves the choice to the kernel and only reads the chosen experts in parallel (budget
  0: our reproduction of the policy of ik_llama.cpp's ``--prefetch-experts``); ``free`` is stock
  with memory for everything. After a warm-up: generation, then a prefill of 1000 tokens; the disk
  is measured before and after. Same prompts and seeds, so every run generates the same tokens.
  The bound of a token is the time of its missed bytes at the disk's rate, or the time of the free
  run, whichever is longer.
- ``ample``: memory for everything. Servers of one binary side by side, asked in random order and
  never at once: residency with a budget for all, the mapped load without and with repacking.
- ``same``: greedy tokens and their log-probabilities with residency on beside residency off.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import math
import os
import platform
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.disk_reads import drop_page_cache, expert_slices, read_rate
from benchmarks.make_moe import read_moe
from benchmarks.memory_cgroup import MemoryCgroup

if TYPE_CHECKING:
    from types import TracebackType

Json = dict[str, Any]
STOCK = ("--load-mode", "mmap", "--no-repack")
# Without repacking too, so that the dense weights are computed alike: else tokens may differ.
OURS = ("--expert-residency", "--no-repack")
MIB = 1 << 20


class Server:
    """One engine in a cgroup of its own. A context manager: it is gone afterwards."""

    def __init__(
        self, place: Path, options: argparse.Namespace, words: list[str], limit_bytes: int | None
    ) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.log = place / f"log-{self.port}.txt"
        argv = [options.engine, "--model", str(options.model), "--port", str(self.port)]
        argv += ["--threads", str(options.threads), "--ctx-size", str(options.ctx_size)]
        argv += ["--device", "none", "-fit", "off", "--no-warmup", "--cache-ram", "0", "--metrics"]
        if "--parallel" not in words:
            argv += ["--parallel", "1"]
        self.group = MemoryCgroup(limit_bytes)
        self.top_bytes = 0
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        began_s = time.perf_counter()
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                self.group.argv([*argv, *words]),
                stdout=stream,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict(word.split("=", 1) for word in options.env)},
            )
        self._watcher.start()
        self.failure: str | None = None
        while self.failure is None:
            try:
                health = f"http://127.0.0.1:{self.port}/health"
                urllib.request.urlopen(health, timeout=5).close()
                break
            except OSError:
                if self.process.poll() is not None:
                    self.failure = f"ended with {self.process.returncode} while loading"
                elif time.perf_counter() - began_s > options.load_limit_s:
                    self.failure = f"not ready after {options.load_limit_s:.0f} s"
                time.sleep(0.02)
        self.load_s = time.perf_counter() - began_s

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            usage = self.group.usage()
            self.top_bytes = max(self.top_bytes, usage.anonymous_bytes + usage.page_cache_bytes)

    def read_bytes(self) -> int:
        """Bytes that the process has had read from the disk."""
        text = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(text.split("\nread_bytes: ")[1].split()[0])

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds used by this engine, and by everything else but this benchmark."""
        tick = os.sysconf("SC_CLK_TCK")
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        engine_s = (int(words[11]) + int(words[12])) / tick
        user, nice, system, _, _, irq, soft, *_ = Path("/proc/stat").read_text().split()[1:9]
        busy_s = sum(map(int, (user, nice, system, irq, soft))) / tick
        return engine_s, busy_s - engine_s - time.process_time()

    def counters(self) -> dict[str, float]:
        """Our metrics of residency; empty while it is off."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        lines = (line.split() for line in text.splitlines() if line.startswith("llama_ai:expert_"))
        return {name.removeprefix("llama_ai:expert_"): float(value) for name, value, *_ in lines}

    def post(self, body: Json) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3600)
        connection.request(
            "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != http.client.OK:
            sys.exit(f"status {answer.status}: {text[:500]}")
        return json.loads(text)

    def generate(self, prompt: list[int], count: int, limit_s: float, seed: int) -> Json:
        """Sampled tokens as they come, at most ``count``, at most for ``limit_s``: their numbers,
        and the seconds from the request to each."""
        body = {"prompt": prompt, "n_predict": count, "seed": seed, "ignore_eos": True}
        body |= {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        body |= {"stream": True, "return_tokens": True, "cache_prompt": False}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit_s + 60)
        began_s = time.perf_counter()
        connection.request(
            "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            sys.exit(f"status {answer.status}: {answer.read()[:500]!r}")
        tokens: list[int] = []
        came_s: list[float] = []
        for line in answer:
            if line.startswith(b"data: {"):
                piece = json.loads(line[6:])
                now_s = time.perf_counter() - began_s
                for token in piece.get("tokens", []):
                    tokens.append(token)
                    came_s.append(now_s)
                if len(tokens) >= count or now_s > limit_s:
                    break
        connection.close()
        return {"tokens": tokens, "came_s": came_s}

    def report(self) -> Json:
        usage = self.group.usage()
        return {
            "load_s": self.load_s,
            "failure": self.failure,
            "peak_bytes": usage.peak_bytes,
            "top_of_anonymous_and_cache_bytes": self.top_bytes,
            "limit_hits": usage.limit_hits,
            "oom_kills": usage.oom_kills,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._watcher.join()
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        self.group.close()
        self.process.wait()


def prompt_of(options: argparse.Namespace, count: int, seed: int) -> list[int]:
    """Random tokens of the synthetic vocabulary."""
    moe = read_moe(options.model)
    if moe is None:
        sys.exit(f"{options.model} was not made by make_moe.py")
    chance = random.Random(seed)  # noqa: S311
    return [chance.randrange(moe.vocabulary - 1) for _ in range(count)]


def disk(options: argparse.Namespace, _: Path) -> Json:
    slices = expert_slices(options.model)
    return {
        "slice_bytes": slices.spans[0][1],
        "bytes_s": {
            str(threads): read_rate(options.model, slices, threads, options.disk_s)
            for threads in (1, 2, 4, 8, 16, 32)
        },
    }


def measure(server: Server, options: argparse.Namespace) -> Json:
    """One run of ``small``: warm-up, generation, prefill."""
    warm = server.generate(prompt_of(options, 16, 1), options.warm_up, options.warm_up_s, 1)
    before, read_before = server.counters(), server.read_bytes()
    engine_before_s, others_before_s = server.cpu_s()
    # A prompt of one token, so that each token of the answer is one pass through the model.
    found = server.generate(prompt_of(options, 1, 2), options.tokens, options.generate_s, 2)
    after, read_after = server.counters(), server.read_bytes()
    engine_s, others_s = server.cpu_s()
    came_s = [0.0, *found["came_s"]]
    steps = [after_s - before_s for before_s, after_s in itertools.pairwise(came_s)]
    passes = len(steps)
    report: Json = {
        "warm_up_tokens": len(warm["tokens"]),
        "tokens": passes,
        "tokens_s": passes / came_s[-1],
        "median_tokens_s": 1 / statistics.median(steps),
        "slowest_token_s": max(steps),
        "read_bytes_per_token": (read_after - read_before) / passes,
        "cpus_of_engine": (engine_s - engine_before_s) / came_s[-1],
        # More than a tenth: something else was running, and the speeds mean nothing.
        "cpus_of_others": (others_s - others_before_s) / came_s[-1],
        "answer": found["tokens"],
    }
    if after:
        change = {name: value - before.get(name, 0.0) for name, value in after.items()}
        report["counters"] = {name: value / passes for name, value in change.items()}
        used = change["hits_total"] + change["misses_total"]
        report["hit_rate"] = change["hits_total"] / used if used else None
        report["misses_per_token"] = change["misses_total"] / passes
    if options.prefill:
        before, read_before = server.counters(), server.read_bytes()
        body = {"prompt": prompt_of(options, options.prefill, 3), "n_predict": 1}
        answer = server.post({**body, "cache_prompt": False, "seed": 3, "ignore_eos": True})
        after = server.counters()
        report["prefill_tokens_s"] = answer["timings"]["prompt_per_second"]
        report["prefill_read_bytes"] = server.read_bytes() - read_before
        report["prefill_counters"] = {
            name: value - before.get(name, 0.0) for name, value in after.items()
        }
    return report


def runs_of(options: argparse.Namespace) -> list[tuple[str, list[str], int | None]]:
    """Name, engine words and limit of each run asked for."""
    ours = [*OURS, "--expert-prefetch-threads", str(options.readers)]
    limit: int = options.cgroup_bytes
    known: dict[str, list[tuple[str, list[str], int | None]]] = {
        "free": [("free", list(STOCK), None)],
        "stock": [("stock", list(STOCK), limit)],
        "cpu-moe": [("cpu-moe", ["--load-mode", "mmap", "--cpu-moe"], limit)],
        "default": [("default", [], limit)],
        "kernel": [("kernel", [*ours, "--expert-budget-mib", "0"], limit)],
        "residency": [
            (f"residency {mib} MiB", [*ours, "--expert-budget-mib", str(mib)], limit)
            for mib in options.budget_mib
        ],
    }
    wanted = options.runs.split(",")
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"unknown runs {unknown}: choose among {', '.join(known)}")
    return [run for name in wanted for run in known[name]]


def small(options: argparse.Namespace, place: Path) -> Json:
    slices = expert_slices(options.model)
    runs: Json = {}
    rates = [read_rate(options.model, slices, options.readers, options.disk_s)]
    for name, words, limit_bytes in runs_of(options):
        drop_page_cache(options.model)
        with Server(place, options, [*words, *options.raw], limit_bytes) as server:
            found = measure(server, options) if server.failure is None else {}
            runs[name] = {"words": words, **found, **server.report()}
    rates.append(read_rate(options.model, slices, options.readers, options.disk_s))
    result: Json = {"disk_bytes_s": rates, "unit_bytes": slices.unit_bytes, "runs": runs}
    compare(result, statistics.mean(rates))
    for run in runs.values():
        run.pop("answer", None)
    return result


def compare(result: Json, disk_bytes_s: float) -> None:
    """What each run is beside stock, beside its bound and beside the tokens of the others."""
    runs = result["runs"]
    stock, free = runs.get("stock", {}), runs.get("free", {})
    for run in runs.values():
        if "tokens_s" not in run:
            continue
        if "tokens_s" in stock:
            run["times_stock"] = run["tokens_s"] / stock["tokens_s"]
            if stock_prefill := stock.get("prefill_tokens_s"):
                run["prefill_times_stock"] = run["prefill_tokens_s"] / stock_prefill
        if "tokens_s" in free and "misses_per_token" in run:
            missed_s = run["misses_per_token"] * result["unit_bytes"] / disk_bytes_s
            bound_s = max(missed_s, 1 / free["tokens_s"])
            run |= {"missed_s": missed_s, "bound_tokens_s": 1 / bound_s}
            run["share_of_bound"] = run["tokens_s"] * bound_s
        others = [other["answer"] for other in runs.values() if "answer" in other]
        shared = min(len(run["answer"]), *(len(other) for other in others))
        run["same_tokens"] = {
            "compared": shared,
            "same": all(run["answer"][:shared] == other[:shared] for other in others),
        }


def ample(options: argparse.Namespace, place: Path) -> Json:
    all_mib = math.ceil(expert_slices(options.model).total_bytes / MIB) + 64
    ours = [*OURS, "--expert-prefetch-threads", str(options.readers)]
    kinds = {
        "stock": list(STOCK),
        "repacked": ["--load-mode", "mmap", "--repack"],
        "residency": [*ours, "--expert-budget-mib", str(all_mib)],
    }
    kinds = {name: kinds[name] for name in options.kinds.split(",")}
    found: dict[str, list[Json]] = {name: [] for name in kinds}
    chance = random.Random(1)  # noqa: S311
    reports: Json = {}
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(Server(place, options, [*words, *options.raw], None))
            for name, words in kinds.items()
        }
        for name, server in servers.items():
            if server.failure is not None:
                sys.exit(f"{name}: {server.failure}\n{server.log.read_text()[-1500:]}")
            server.generate(prompt_of(options, 1024, 1), 64, 120, 1)
        for pair in range(options.pairs):
            for name in chance.sample(list(servers), len(servers)):
                answer = servers[name].generate(
                    prompt_of(options, 1, 10 + pair), options.tokens, 120, 10 + pair
                )
                body = {"prompt": prompt_of(options, options.prefill, 50 + pair)}
                timings = servers[name].post({**body, "n_predict": 1, "cache_prompt": False})
                found[name].append(
                    {
                        "tokens_s": len(answer["tokens"]) / answer["came_s"][-1],
                        "prefill_tokens_s": timings["timings"]["prompt_per_second"],
                        "tokens": answer["tokens"],
                    }
                )
        reports = {name: server.report() for name, server in servers.items()}
    result: Json = {"pairs": options.pairs, "reports": reports}
    for name, answers in found.items():
        for what in ("tokens_s", "prefill_tokens_s"):
            result[f"{name}_{what}"] = statistics.median(answer[what] for answer in answers)
            if name != "residency" and "residency" in found:
                ratios = [
                    ours[what] / theirs[what]
                    for ours, theirs in zip(found["residency"], answers, strict=True)
                ]
                result[f"residency_over_{name}_{what}"] = statistics.median(ratios)
        if name == "stock" and "residency" in found:
            result["same_tokens"] = all(
                ours["tokens"] == theirs["tokens"]
                for ours, theirs in zip(found["residency"], answers, strict=True)
            )
    return result


def answers_of(server: Server, options: argparse.Namespace, slots: int) -> list[Json]:
    """Greedy tokens with the log-probabilities of the best five; ``slots`` prompts at once."""
    body: Json = {
        "prompt": [
            prompt_of(options, options.prefill - 7 * slot, 20 + slot) for slot in range(slots)
        ]
    }
    body |= {"n_predict": options.tokens, "temperature": 0, "seed": 1, "ignore_eos": True}
    body |= {"n_probs": 5, "return_tokens": True, "cache_prompt": False}
    found = server.post(body)
    answers: list[Json] = found if isinstance(found, list) else [found]
    answers.sort(key=lambda answer: answer.get("index", 0))
    return [
        {
            "tokens": answer["tokens"],
            "probabilities": [
                [best["logprob"] for best in token["top_logprobs"]]
                for token in answer["completion_probabilities"]
            ],
        }
        for answer in answers
    ]


def same(options: argparse.Namespace, place: Path) -> Json:
    slices = expert_slices(options.model)
    ours = [*OURS, "--expert-prefetch-threads", str(options.readers)]
    kinds: dict[str, list[str]] = {"off again": list(STOCK)}
    for percent in options.percent:
        mib = max(1, round(slices.total_bytes * percent / 100 / MIB))
        kinds[f"{percent} %"] = [*ours, "--expert-budget-mib", str(mib)]
    if options.kernel:
        kinds["kernel"] = [*ours, "--expert-budget-mib", "0"]
    result: Json = {"slots": {}}
    for slots in options.slots:
        context = slots * (options.prefill + options.tokens + 64)
        parallel = ["--parallel", str(slots), "--ctx-size", str(context)]
        with Server(place, options, [*STOCK, *parallel, *options.raw], None) as server:
            wanted = answers_of(server, options, slots)
        differ: Json = {}
        for name, words in kinds.items():
            with Server(place, options, [*words, *parallel, *options.raw], None) as server:
                if server.failure is not None:
                    sys.exit(f"{name}: {server.failure}\n{server.log.read_text()[-1500:]}")
                rounds = [answers_of(server, options, slots) for _ in range(options.rounds)]
                counters = server.counters()
                differ[name] = {
                    "same": [found == wanted for found in rounds],
                    "hits": counters.get("hits_total"),
                    "misses": counters.get("misses_total"),
                    "evictions": counters.get("evictions_total"),
                }
        result["slots"][str(slots)] = {
            "tokens": sum(len(answer["tokens"]) for answer in wanted),
            "distinct_tokens": len({token for answer in wanted for token in answer["tokens"]}),
            "kinds": differ,
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("disk", "small", "ample", "same"))
    parser.add_argument("--engine", help="llama-ai-server")
    parser.add_argument("--model", required=True, type=Path)
    parser.add_argument("--json", type=Path, help="also write the result here")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--readers", type=int, default=4, help="threads that read experts")
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--disk-s", type=float, default=5.0)
    parser.add_argument("--load-limit-s", type=float, default=60.0)
    parser.add_argument("--cgroup-bytes", type=int, default=1_500_000_000)
    parser.add_argument("--runs", default="free,stock,kernel,residency")
    parser.add_argument("--budget-mib", type=int, nargs="+", default=[1000])
    parser.add_argument("--warm-up", type=int, default=200, help="tokens before the measurement")
    parser.add_argument("--warm-up-s", type=float, default=20.0, help="but no longer than this")
    parser.add_argument("--tokens", type=int, default=200, help="tokens measured or compared")
    parser.add_argument("--generate-s", type=float, default=40.0, help="but no longer than this")
    parser.add_argument("--prefill", type=int, default=1000, help="tokens of the prompt")
    parser.add_argument("--env", nargs="*", default=[], help="KEY=VALUE for every engine")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--kinds", default="stock,repacked,residency")
    parser.add_argument("--percent", type=float, nargs="+", default=[5, 10, 25, 50, 100])
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kernel", action=argparse.BooleanOptionalAction, default=True)
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.raw = words[cut + 1 :]  # for the engine
    if options.what != "disk" and options.engine is None:
        parser.error("--engine is needed")
    # A benchmark that is told to stop still removes its cgroups and servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    moe = read_moe(options.model)
    with tempfile.TemporaryDirectory() as place:
        load_before = os.getloadavg()[0]
        run = {"disk": disk, "small": small, "ample": ample, "same": same}[options.what]
        result = run(options, Path(place))
        report: Json = {
            "schema": "llama-ai.bench-experts/1",
            "what": options.what,
            "model": options.model.name,
            "moe": moe and asdict(moe),
            "engine": options.raw,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {options.threads} threads",
            "environment": options.env,
            "readers": options.readers,
            "cgroup_bytes": options.cgroup_bytes,
            "load_before": load_before,
            "load_after": os.getloadavg()[0],
            **result,
        }
    text = json.dumps(report, indent=1)
    if options.json is not None:
        options.json.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
