"""What the KV cache on disk does and costs, on the real engine.

    kv_cache.py fast    --engine LLAMA_AI_SERVER --model FILE [--tokens 6000]
    kv_cache.py free    --engine LLAMA_AI_SERVER --model FILE [--pairs 10]
    kv_cache.py small   --engine LLAMA_AI_SERVER --model FILE [--turns 20]
    kv_cache.py correct --engine LLAMA_AI_SERVER --model FILE [--turns 6] [-- ENGINE WORDS]
    kv_cache.py safe    --engine LLAMA_AI_SERVER --model FILE [--kills 200] [-- ENGINE WORDS]

Each prints one JSON object (``--json FILE`` writes it too) with its configuration.

- ``fast``: time to the first token of a long conversation plus one turn, cold (nothing stored)
  and after a restart (files dropped from the page cache, then warm); the restore's own rate beside
  the disk's sequential rate and memory's copying rate.
- ``free``: two servers of one binary, one with the tier and one without, asked in random order and
  never at the same time; the ratio of their speeds, pair by pair. Then four slots under steady
  load: the longest gaps between tokens, with and without.
- ``small``: bytes written over bytes of new state in an agent's conversation.
- ``correct``: a conversation whose server is ended with TERM and KILL between the turns beside one
  that is never ended: tokens and states must be the same.
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
from typing import Any

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
        argv = [options.engine, "--model", options.model, "--port", str(port), "--no-warmup"]
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

    def stream(self, prompt: list[int], count: int) -> list[float]:
        """When each token came, in seconds since the request."""
        body = {"prompt": prompt, "n_predict": count, "temperature": 0, "stream": True}
        request = urllib.request.Request(  # noqa: S310
            self.url + "/completion",
            json.dumps({**body, "ignore_eos": True}).encode(),
            {"Content-Type": "application/json"},
        )
        began_s = time.perf_counter()
        came = []
        with urllib.request.urlopen(request, timeout=3600) as response:  # noqa: S310
            came.extend(
                time.perf_counter() - began_s for line in response if line.startswith(b"data: ")
            )
        return came

    def written(self) -> dict[str, Any]:
        while (state := self.ask("/kv-cache"))["queued_files"]:
            time.sleep(0.02)
        counters: dict[str, Any] = state
        return counters

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.wait(120)


def text_tokens(server: Server, count: int) -> list[int]:
    """Real text of this project, over and over."""
    text = "".join(
        path.read_text() for name in ("*.md", "docs/*.md") for path in sorted(CHECKOUT.glob(name))
    )
    tokens: list[int] = server.ask("/tokenize", {"content": text})["tokens"]
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


def fast(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    kv = place / "kv"
    disk = ("--kv-dir", str(kv), "--parallel", "1")
    server = Server(place, options, *disk)
    pool = text_tokens(server, options.tokens + options.turn * (2 * options.runs + 1))
    kept = pool[: options.tokens]
    server.answer(kept, 1)
    server.written()
    server.stop()
    cold_server = Server(place, options, "--parallel", "1")
    cold_s = cold_server.stream([*kept, *pool[options.tokens :][: options.turn]], 1)[0]
    cold_server.stop()
    runs: dict[str, list[dict[str, float]]] = {"disk": [], "memory": []}
    at = options.tokens + options.turn
    for _ in range(options.runs):
        for source, found in runs.items():
            server = Server(place, options, *disk)
            if source == "disk":
                drop_page_cache(kv)
            # Another turn each time: the last one is stored by now.
            turn = pool[at : at + options.turn]
            at += options.turn
            first_s = server.stream([*kept, *turn], 1)[0]
            match = RESTORED.search(server.log.read_text(errors="replace"))
            if match is None:
                sys.exit("nothing was restored: " + server.log.read_text(errors="replace")[-800:])
            megabytes, took_ms = float(match[4]), float(match[5])
            found.append(
                {
                    "first_token_s": first_s,
                    "restored_tokens": int(match[1]),
                    "files": int(match[3]),
                    "restore_ms": took_ms,
                    "restore_bytes_s": megabytes * 1e6 / (took_ms / 1e3),
                }
            )
            server.stop(signal.SIGKILL)
    disk_rate = statistics.median(read_rate(kv) for _ in range(3))
    memory_rate = copy_rate()
    result: dict[str, Any] = {
        "cold_first_token_s": cold_s,
        "disk_read_bytes_s": disk_rate,
        "memory_copy_bytes_s": memory_rate,
    }
    for source, found in runs.items():
        middle = {key: statistics.median(run[key] for run in found) for key in found[0]}
        result[source] = {
            **middle,
            "times_faster": cold_s / middle["first_token_s"],
            "share_of_rate": middle["restore_bytes_s"]
            / (disk_rate if source == "disk" else memory_rate),
        }
    return result


def free(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    chance = random.Random(1)  # noqa: S311
    ratios: dict[str, list[float]] = {"prompt": [], "generation": [], "wall": []}
    done = 0
    while done < options.pairs:
        # New processes now and then, in another order: where memory lands makes a difference.
        which = ["on", "off"]
        chance.shuffle(which)
        servers = {}
        for name in which:
            kv = ("--kv-dir", str(place / f"kv{done}")) if name == "on" else ()
            servers[name] = Server(place, options, "--parallel", "1", *kv)
        pool = text_tokens(servers["off"], 40000)
        for _ in range(min(5, options.pairs - done)):
            at = chance.randrange(len(pool) - options.tokens)
            prompt = [*pool[at : at + options.tokens]]
            order = ["on", "off"]
            chance.shuffle(order)
            figures = {}
            for name in order:
                began_s = time.perf_counter()
                timings = servers[name].answer(prompt, 64)["timings"]
                wall_s = time.perf_counter() - began_s
                if timings["cache_n"] > 200:
                    sys.exit("the prompt was known already")
                figures[name] = (
                    timings["prompt_per_second"],
                    timings["predicted_per_second"],
                    wall_s,
                )
                time.sleep(0.2)
            ratios["prompt"].append(figures["on"][0] / figures["off"][0])
            ratios["generation"].append(figures["on"][1] / figures["off"][1])
            ratios["wall"].append(figures["off"][2] / figures["on"][2])
            done += 1
        last = servers["on"].written()
        for server in servers.values():
            server.stop()
    result: dict[str, Any] = {
        "tokens": options.tokens,
        "pairs": options.pairs,
        "copy_ms_per_100_mb": last["copied_ms"] / (last["copied_bytes"] / 1e8),
    }
    for name, values in ratios.items():
        result[f"{name}_on_over_off"] = {
            "median": statistics.median(values),
            "lowest": min(values),
            "highest": max(values),
        }
    result["four_slots"] = {name: _load(options, place, name == "on") for name in ("off", "on")}
    return result


def _load(options: argparse.Namespace, place: Path, on: bool) -> dict[str, float]:
    """Three slots generate while the fourth's conversations come and go."""
    kv = ("--kv-dir", str(place / "kvload")) if on else ()
    server = Server(place, options, "--parallel", "4", *kv)
    pool = text_tokens(server, 30000)
    gaps: list[float] = []
    counts: list[int] = []

    def generate(number: int) -> None:
        came = server.stream(pool[number * 700 : number * 700 + 300], 400)
        gaps.extend(late - early for early, late in itertools.pairwise(came))
        counts.append(len(came))

    began_s = time.perf_counter()
    threads = [threading.Thread(target=generate, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(4):
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
    server.ask("/slots/0?action=save", {"filename": "state.bin"})
    state_bytes = (server.saved / "state.bin").stat().st_size
    server.stop()
    return {
        "turns": options.turns,
        "tokens": len(prompt),
        "state_bytes": state_bytes,
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


BENCHMARKS = {"fast": fast, "free": free, "small": small, "correct": correct, "safe": safe}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=tuple(BENCHMARKS))
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--ctx-size", type=int, default=16384)
    parser.add_argument("--tokens", type=int, help="of the prompt (fast 6000, free 2000)")
    parser.add_argument("--turn", type=int, default=41, help="tokens of the new turn (fast)")
    parser.add_argument("--runs", type=int, default=3, help="restarts (fast)")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--turns", type=int, help="of the conversation (small 20, correct 6)")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--dir", type=Path, help="where to store (default: a temporary directory)")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    options.raw = words[cut + 1 :]  # for the engine
    options.tokens = options.tokens or (6000 if options.what == "fast" else 2000)
    options.turns = options.turns or (20 if options.what == "small" else 6)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=options.dir, ignore_cleanup_errors=True) as place:
        run = BENCHMARKS[options.what]
        figures = run(options, Path(place))
    document = {
        "schema": "llama-ai.bench-kv/1",
        "what": options.what,
        "model": Path(options.model).name,
        "engine": subprocess.run(
            [options.engine, "--version"], capture_output=True, text=True, check=False
        )
        .stdout.strip()
        .splitlines()[:1],
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
