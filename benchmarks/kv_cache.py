"""What the KV cache on disk does and costs, on the real engine.

    kv_cache.py fast    --engine LLAMA_AI_SERVER --model FILE [--tokens 6000]
    kv_cache.py free    --engine LLAMA_AI_SERVER --model FILE [--pairs 10]
    kv_cache.py load    --engine LLAMA_AI_SERVER --model FILE [--pairs 3]
    kv_cache.py small   --engine LLAMA_AI_SERVER --model FILE [--turns 20]
    kv_cache.py correct --engine LLAMA_AI_SERVER --model FILE [--turns 6] [-- ENGINE WORDS]
    kv_cache.py edits   --engine LLAMA_AI_SERVER --model FILE [--edits 40] [-- ENGINE WORDS]
    kv_cache.py safe    --engine LLAMA_AI_SERVER --model FILE [--kills 200] [-- ENGINE WORDS]

Each prints one JSON object (``--json FILE`` writes it too) with its configuration.

- ``fast``: time to the first token of a long conversation plus one turn of several lengths, cold
  (nothing stored; the shortest turn) and after a restart (files dropped from the page cache, then
  warm); the restore's own rate beside the disk's sequential rate and memory's copying rate.
- ``free``: two servers of one binary, one with the tier and one without, asked in random order and
  never at the same time; the ratio of their speeds, pair by pair. A pair during which others took
  more of the processors than ``--others`` (0.03) is repeated.
- ``load``: the same with four slots: three generate while the prompts of a fourth come and go. Also
  the longest gaps between two tokens, and the longest copy, which is all that the tier adds to one.
- ``small``: bytes written over bytes of new state in an agent's conversation: all cells that were
  computed, and the state that is not made of cells once.
- ``correct``: a conversation whose server is ended with TERM and KILL between the turns beside one
  that is never ended: tokens and states must be the same.
- ``edits``: a conversation that is edited at random, with restarts: each answer must be that of a
  server that keeps nothing. Micro-batches of one token, as for ``safe``.
- ``safe``: a server is killed at a random moment, again and again, under a small cap; every answer
  and every state must be those of a server that keeps nothing, and no file may be bad. For small
  models: micro-batches of one token make states independent of how a prompt was split.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import itertools
import json
import os
import platform
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

CHECKOUT = Path(__file__).resolve().parents[1]


class Server:
    """One engine; ``words`` are added to its command line."""

    def __init__(self, place: Path, options: argparse.Namespace, *words: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = place / f"log-{port}.txt"
        self.saved = place / "saved"
        self.saved.mkdir(exist_ok=True)
        self.numbers: bool = options.numbers
        argv = [options.engine, "--model", options.model, "--port", str(port)]
        argv += ["--threads", str(options.threads), "--slot-save-path", str(self.saved)]
        argv += ["--ctx-size", str(options.ctx_size), *words, *options.raw]
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(argv, stdout=stream, stderr=subprocess.STDOUT)
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()  # noqa: S310
                break
            except OSError:
                if self.process.poll() is not None:
                    sys.exit(self.log.read_text(errors="replace")[-2000:])
                time.sleep(0.05)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310
            self.url + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=3600) as response:  # noqa: S310
            return json.load(response)

    def answer(self, prompt: list[int], count: int) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask(
            "/completion",
            {
                "prompt": prompt,
                "n_predict": count,
                "temperature": 0,
                "seed": 1,
                "ignore_eos": True,
                "return_tokens": True,
            },
        )
        return answer

    def stream(
        self, prompt: list[int], count: int, started: threading.Event | None = None
    ) -> list[float]:
        """When each token came, in seconds since the request; ``started`` is set with the first."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "stream": True}
        request = urllib.request.Request(  # noqa: S310
            self.url + "/completion",
            json.dumps({**body, "ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        began_s = time.perf_counter()
        came = []
        with urllib.request.urlopen(request, timeout=3600) as response:  # noqa: S310
            for line in response:
                if line.startswith(b"data: "):
                    came.append(time.perf_counter() - began_s)
                    if started:
                        started.set()
        return came

    def written(self) -> dict[str, Any]:
        while (state := self.ask("/kv-cache"))["queued_files"]:
            time.sleep(0.02)
        counters: dict[str, Any] = state
        return counters

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(120)


def busy_s() -> float:
    """Processor seconds that the whole machine has worked since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def used_s(server: Server) -> float:
    """Processor seconds of one server, and of this process."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = os.times()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + own.user + own.system


class Others:
    """How much of the processors something else took while the ``with`` lasted."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.share = 0.0

    def __enter__(self) -> Self:
        self.began = time.perf_counter(), busy_s(), used_s(self.server)
        return self

    def __exit__(self, *_: object) -> None:
        wall_s = time.perf_counter() - self.began[0]
        others_s = busy_s() - self.began[1] - (used_s(self.server) - self.began[2])
        self.share = others_s / wall_s / (os.cpu_count() or 1)


def text_tokens(server: Server, count: int) -> list[int]:
    """Real text of this project, over and over; numbers for models that have no real vocabulary."""
    if server.numbers:
        return [1 + byte % 98 for byte in hashlib.shake_256(b"text").digest(count)]
    text = "".join(
        path.read_text() for name in ("*.md", "docs/*.md") for path in sorted(CHECKOUT.glob(name))
    )
    tokens: list[int] = server.ask("/tokenize", {"content": text})["tokens"]
    if not tokens:
        sys.exit(f"no text in {CHECKOUT}")
    while len(tokens) < count:
        tokens += tokens
    return tokens[:count]


def drop_page_cache(directory: Path) -> int:
    """The stored files leave the page cache; returns their bytes."""
    size = 0
    for path in directory.glob("*.kv"):
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size += path.stat().st_size
    return size


def read_rate(directory: Path) -> float:
    """Bytes per second of reading the stored files in order, from a cold page cache."""
    size = drop_page_cache(directory)
    buffer = bytearray(8 << 20)
    began_s = time.perf_counter()
    for path in sorted(directory.glob("*.kv")):
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass
    return size / (time.perf_counter() - began_s)


def copy_rate() -> float:
    """Bytes per second of copying between two buffers whose pages are there."""
    source, target = bytearray(os.urandom(1 << 20) * 200), bytearray(200 << 20)
    best = 0.0
    for _ in range(5):
        began_s = time.perf_counter()
        memoryview(target)[:] = source
        best = max(best, len(source) / (time.perf_counter() - began_s))
    return best


RESTORED = re.compile(
    r"cold, (\d+) of (\d+) tokens restored from (\d+) files, ([\d.]+) MB in ([\d.]+)"
)


def cold_first_token(
    options: argparse.Namespace, place: Path, prompt: list[int], runs: int
) -> list[float]:
    """Seconds to the first token where nothing is stored."""
    found = []
    for _ in range(runs):
        server = Server(place, options, "--parallel", "1")
        with Others(server) as others:
            first_s = server.stream(prompt, 1)[0]
        server.stop()
        if others.share <= options.others:
            found.append(first_s)
    if not found:
        sys.exit("something else kept the machine busy")
    return found


def fast(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    kv = place / "kv"
    disk = ("--kv-dir", str(kv), "--parallel", "1")
    turns: list[int] = options.turn
    server = Server(place, options, *disk)
    pool = text_tokens(server, options.tokens + sum(turns) * (2 * options.runs + 1))
    kept = pool[: options.tokens]
    server.answer(kept, 1)
    server.written()
    server.stop()
    cold_s = min(cold_first_token(options, place, pool[: options.tokens + min(turns)], 2))
    memory_rate = copy_rate()
    disk_rate = statistics.median(read_rate(kv) for _ in range(3))
    runs: list[dict[str, Any]] = []
    at = options.tokens + min(turns)
    for _, turn, source in itertools.product(range(options.runs), turns, ("disk", "memory")):
        server = Server(place, options, *disk)
        time.sleep(0.5)  # its start is over
        size = drop_page_cache(kv)
        if source == "memory":
            for path in kv.glob("*.kv"):
                path.read_bytes()
        # Another turn each time: the last one may be stored by now.
        words = pool[at : at + turn]
        at += turn
        with Others(server) as others:
            first_s = server.stream([*kept, *words], 1)[0]
        match = RESTORED.search(server.log.read_text(errors="replace"))
        if match is None:
            sys.exit("nothing was restored: " + server.log.read_text(errors="replace")[-800:])
        if int(match[1]) < options.tokens or size == 0:
            sys.exit(f"only {match[1]} tokens were restored")
        rate = float(match[4]) * 1e6 / (float(match[5]) / 1e3)
        runs.append(
            {
                "turn": turn,
                "from": source,
                "others": round(others.share, 3),
                "first_token_ms": first_s * 1e3,
                "restore_ms": float(match[5]),
                "share_of_rate": rate / (disk_rate if source == "disk" else memory_rate),
                "times_faster": cold_s / first_s,
            }
        )
        server.stop(signal.SIGKILL)
    groups: dict[str, Any] = {}
    for source in ("disk", "memory"):
        ours = [run for run in runs if run["from"] == source]
        groups[source] = {
            "restore_ms": statistics.median(run["restore_ms"] for run in ours),
            "share_of_rate": statistics.median(run["share_of_rate"] for run in ours),
            "turns": {
                str(turn): {
                    key: statistics.median(run[key] for run in ours if run["turn"] == turn)
                    for key in ("first_token_ms", "times_faster")
                }
                for turn in turns
            },
        }
    return {
        "tokens": options.tokens,
        "cold_first_token_s": cold_s,
        "disk_read_bytes_s": disk_rate,
        "memory_copy_bytes_s": memory_rate,
        **groups,
        "runs": runs,
    }


def free(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    chance = random.Random(1)  # noqa: S311
    ratios: dict[str, list[float]] = {"prompt": [], "generation": [], "wall": []}
    done = repeated = 0
    last: dict[str, Any] = {}
    while done < options.pairs:
        # New processes now and then, in another order: where memory lands makes a difference.
        which = ["on", "off"]
        chance.shuffle(which)
        servers = {}
        for name in which:
            kv = ("--kv-dir", str(place / f"kv{done}")) if name == "on" else ()
            servers[name] = Server(place, options, "--parallel", "1", *kv)
        pool = text_tokens(servers["off"], 40000)
        for _ in range(5):
            at = chance.randrange(len(pool) - options.tokens)
            prompt = [*pool[at : at + options.tokens]]
            order = ["on", "off"]
            chance.shuffle(order)
            figures = {}
            worst = 0.0
            for name in order:
                began_s = time.perf_counter()
                with Others(servers[name]) as others:
                    timings = servers[name].answer(prompt, options.generate)["timings"]
                wall_s = time.perf_counter() - began_s
                worst = max(worst, others.share)
                if timings["cache_n"] > 200:
                    sys.exit("the prompt was known already")
                figures[name] = (
                    timings["prompt_per_second"],
                    timings["predicted_per_second"],
                    wall_s,
                )
                time.sleep(0.2)
            if worst > options.others:
                repeated += 1
                continue
            ratios["prompt"].append(figures["on"][0] / figures["off"][0])
            ratios["generation"].append(figures["on"][1] / figures["off"][1])
            ratios["wall"].append(figures["off"][2] / figures["on"][2])
            done += 1
            if done == options.pairs:
                break
        last = servers["on"].written()
        for server in servers.values():
            server.stop()
    return {
        "tokens": options.tokens,
        "generated": options.generate,
        "pairs": options.pairs,
        "repeated_as_others_worked": repeated,
        "writer_cpu_ms_per_100_mb": last["writer_cpu_ms"] / (last["written_bytes"] / 1e8),
        "copy_ms_per_100_mb": last["copied_ms"] / (last["copied_bytes"] / 1e8),
        **{f"{name}_on_over_off": summary(values) for name, values in ratios.items()},
    }


def summary(values: list[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "lowest": min(values),
        "highest": max(values),
        "all": [round(value, 4) for value in values],
    }


def load(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    chance = random.Random(2)  # noqa: S311
    found: dict[str, list[dict[str, float]]] = {"on": [], "off": []}
    for number in range(options.pairs):
        order = ["on", "off"]
        chance.shuffle(order)
        for name in order:
            found[name].append(_loaded(options, place, number, name == "on"))
    on, off = (
        {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        for runs in (found["on"], found["off"])
    )
    return {
        "pairs": options.pairs,
        "on": on,
        "off": off,
        "speed_on_over_off": summary(
            [
                one["tokens_per_second"] / other["tokens_per_second"]
                for one, other in zip(found["on"], found["off"], strict=True)
            ]
        ),
        "longest_gap_added_ms": on["longest_gap_ms"] - off["longest_gap_ms"],
        "longest_copy_ms": max(run["longest_copy_ms"] for run in found["on"]),
    }


def _loaded(options: argparse.Namespace, place: Path, number: int, on: bool) -> dict[str, float]:
    """Three slots generate while the fourth's conversations come and go."""
    kv = ("--kv-dir", str(place / f"load{number}")) if on else ()
    server = Server(place, options, "--parallel", "4", *kv)
    pool = text_tokens(server, 30000)[number * 97 :]
    gaps: list[float] = []
    counts: list[int] = []
    started = [threading.Event() for _ in range(3)]

    def generate(index: int) -> None:
        came = server.stream(
            pool[index * 700 : index * 700 + 300], options.generate * 2, started[index]
        )
        gaps.extend(late - early for early, late in itertools.pairwise(came))
        counts.append(len(came))

    threads = [threading.Thread(target=generate, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for event in started:
        event.wait()
    began_s = time.perf_counter()
    for turn in range(3):
        at = 5000 + 2500 * turn
        server.answer(pool[at : at + 900], 16)
    for thread in threads:
        thread.join()
    took_s = time.perf_counter() - began_s
    result = {
        "tokens_per_second": sum(counts) / took_s,
        "median_gap_ms": statistics.median(gaps) * 1e3,
        "longest_gap_ms": max(gaps) * 1e3,
    }
    if on:
        counters = server.written()
        result["copied_mb"] = counters["copied_bytes"] / 1e6
        result["copied_ms"] = counters["copied_ms"]
        result["longest_copy_ms"] = counters["longest_copy_ms"]
    server.stop()
    return result


def small(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    server = Server(place, options, "--kv-dir", str(place / "kv"), "--parallel", "1")
    pool = text_tokens(server, 40000)
    prompt: list[int] = []
    at = 0
    for turn in range(options.turns):
        count = 2000 if turn == 0 else 250
        prompt += pool[at : at + count]
        at += count
        prompt += server.answer(prompt, 40)["tokens"]
    counters = server.written()
    server.stop()
    # All cells that were computed, those too that have left a sliding window since: what one token
    # more adds as long as no window is full, and what there is without any.
    server = Server(place, options, "--parallel", "1")
    saved = []
    for count in (200, 400):
        server.answer(pool[:count], 1)
        server.ask("/slots/0?action=save", {"filename": "state.bin"})
        saved.append((server.saved / "state.bin").stat().st_size)
    server.stop()
    token_bytes = (saved[1] - saved[0]) / 200
    state_bytes = token_bytes * len(prompt) + saved[0] - 200 * token_bytes
    return {
        "turns": options.turns,
        "tokens": len(prompt),
        "computed_bytes": round(state_bytes),
        "written_bytes": counters["written_bytes"],
        "files": counters["files"],
        "write_amplification": counters["written_bytes"] / state_bytes,
    }


def correct(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    probe = Server(place, options, "--parallel", "1")
    pool = text_tokens(probe, 8000)
    probe.stop()
    outcomes = []
    for restarts in (True, False):
        words = ("--parallel", "1", *(("--kv-dir", str(place / "kv")) if restarts else ()))
        server = Server(place, options, *words)
        prompt: list[int] = []
        answers, states, reused = [], [], []
        at = 0
        for turn in range(options.turns):
            count = 1500 if turn == 0 else 60 + 37 * turn
            prompt += pool[at : at + count]
            at += count
            answer = server.answer(prompt, 32)
            prompt += answer["tokens"]
            answers.append(answer["tokens"])
            reused.append(answer["timings"]["cache_n"])
            server.ask("/slots/0?action=save", {"filename": "state.bin"})
            states.append(hashlib.sha256((server.saved / "state.bin").read_bytes()).hexdigest())
            if restarts and turn + 1 < options.turns:
                server.written()
                server.stop(signal.SIGKILL if turn % 2 else signal.SIGTERM)
                server = Server(place, options, *words)
        server.stop()
        outcomes.append((answers, states, reused))
    return {
        "turns": options.turns,
        "tokens_equal": outcomes[0][0] == outcomes[1][0],
        "states_equal": outcomes[0][1] == outcomes[1][1],
        "reused_tokens": outcomes[0][2],
        "reused_tokens_without_restarts": outcomes[1][2],
    }


def edits(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Answers after random edits beside those of a server that keeps nothing."""
    chance = random.Random(4)  # noqa: S311
    words = ("--parallel", "1", "--ubatch-size", "1")
    disk = ("--kv-dir", str(place / "kv"))
    fresh = Server(place, options, *words, "--cache-ram", "0")
    server = Server(place, options, *words, *disk)
    pool = text_tokens(fresh, 20000)
    prompt = pool[:300]
    counts = {"edits": 0, "reused": 0, "restarts": 0, "different": 0}
    kinds: dict[str, int] = {}
    for _ in range(options.edits):
        place_in = chance.randrange(len(prompt) // 2, len(prompt))
        kind = chance.choice(["append", "edit", "truncate", "swap"])
        kind = "append" if len(prompt) < 280 else kind
        if kind == "append":
            at = chance.randrange(10000)
            prompt = prompt + pool[at : at + chance.randrange(1, 40)]
        elif kind == "edit":
            prompt = [*prompt[:place_in], pool[chance.randrange(20000)], *prompt[place_in + 1 :]]
        elif kind == "truncate":
            prompt = prompt[:place_in]
        else:
            prompt = [*prompt[:place_in], *reversed(prompt[place_in:])]
        said = server.answer(prompt, 12)
        fresh.ask("/slots/0?action=erase", {})
        expected = fresh.answer(prompt, 12)
        if expected["timings"]["cache_n"]:
            sys.exit("the other server remembered something")
        kinds[kind] = kinds.get(kind, 0) + 1
        counts["edits"] += 1
        counts["reused"] += said["timings"]["cache_n"] > 0
        counts["different"] += said["tokens"] != expected["tokens"]
        if chance.random() < 0.4:
            server.written()
            server.stop(chance.choice([signal.SIGTERM, signal.SIGKILL]))
            server = Server(place, options, *words, *disk)
            counts["restarts"] += 1
    server.stop()
    fresh.stop()
    return {**counts, "kinds": kinds}


def safe(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    chance = random.Random(3)  # noqa: S311
    kv = place / "kv"
    words = ("--parallel", "1", "--ubatch-size", "1")
    cap_bytes = 3 << 20
    disk = ("--kv-dir", str(kv), "--kv-max-gib", f"{cap_bytes / 2**30:.6f}")
    prompts = []
    for number in range(12):
        shared = [1 + (7 * i) % 97 for i in range(300 if number % 2 else 0)]
        prompts.append(shared + [1 + (i * i + number * 13 * i) % 97 for i in range(400)])

    def asked(server: Server, prompt: list[int]) -> tuple[list[int], str, int]:
        answer = server.answer(prompt, 4)
        server.ask("/slots/0?action=save", {"filename": "state.bin"})
        state = hashlib.sha256((server.saved / "state.bin").read_bytes()).hexdigest()
        return answer["tokens"], state, answer["timings"]["cache_n"]

    reference = Server(place, options, *words, "--cache-ram", "0")
    expected = []
    for prompt in prompts:
        reference.ask("/slots/0?action=erase", {})
        expected.append(asked(reference, prompt)[:2])
    reference.stop()
    counts = {"kills": 0, "answers": 0, "reused": 0, "wrong": 0, "bad_files": 0, "over_cap": 0}
    while counts["kills"] < options.kills:
        server = Server(place, options, *words, *disk)
        timer = threading.Timer(chance.uniform(0.02, 1.2), server.process.kill)
        timer.start()
        try:
            while True:
                number = chance.randrange(len(prompts))
                tokens, state, reused = asked(server, prompts[number])
                counts["answers"] += 1
                counts["reused"] += reused > 0
                counts["wrong"] += (tokens, state) != expected[number]
        except (OSError, http.client.HTTPException):
            pass
        timer.join()
        if server.process.wait(60) != -signal.SIGKILL:
            sys.exit("it ended by itself: " + server.log.read_text(errors="replace")[-2000:])
        server.log.unlink()
        counts["kills"] += 1
        counts["bad_files"] += len(list(kv.glob("*.bad")))
        stored = sum(path.stat().st_size for path in kv.iterdir())
        counts["over_cap"] += stored > cap_bytes
    return counts


BENCHMARKS = {
    "fast": fast,
    "free": free,
    "load": load,
    "small": small,
    "correct": correct,
    "edits": edits,
    "safe": safe,
}


def engine_version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"version: .*", done.stdout + done.stderr)
    return found[0] if found else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=tuple(BENCHMARKS))
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ctx-size", type=int, default=16384)
    parser.add_argument("--tokens", type=int, help="of the prompt (fast 6000, free 2000)")
    parser.add_argument(
        "--turn", type=int, nargs="+", default=[24, 41, 128], help="tokens of the new turn (fast)"
    )
    parser.add_argument("--runs", type=int, default=3, help="restarts (fast)")
    parser.add_argument("--pairs", type=int, help="of runs (free 10, load 3)")
    parser.add_argument(
        "--generate", type=int, default=128, help="tokens of an answer (free, load)"
    )
    parser.add_argument("--others", type=float, default=0.03, help="share that others may take")
    parser.add_argument("--edits", type=int, default=40)
    parser.add_argument("--numbers", action="store_true", help="the model has no real vocabulary")
    parser.add_argument("--turns", type=int, help="of the conversation (small 20, correct 6)")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--dir", type=Path, help="where to store (default: a temporary directory)")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.raw = words[cut + 1 :]  # for the engine
    options.tokens = options.tokens or (6000 if options.what == "fast" else 2000)
    options.pairs = options.pairs or (3 if options.what == "load" else 10)
    options.turns = options.turns or (20 if options.what == "small" else 6)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.dir, ignore_cleanup_errors=True) as place:
        run = BENCHMARKS[options.what]
        figures = run(options, Path(place))
    document = {
        "schema": "llama-ai.bench-kv/1",
        "what": options.what,
        "model": Path(options.model).name,
        "engine": engine_version(options.engine),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {options.threads} threads",
        "load_before": load,
        "load_after": os.getloadavg()[0],
        **figures,
    }
    text = json.dumps(document, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
