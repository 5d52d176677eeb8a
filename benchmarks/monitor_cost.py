"""What watching costs: processor time of the monitor, and the engine's speed with and without it.

    monitor_cost.py --engine LLAMA_SERVER --model FILE.gguf [--seconds 30] [--pairs 80]

Two measurements on the real engine, which generates without a pause:

- ``screen``: processor time of ``llama-ai monitor`` in a pseudo-terminal at 1 Hz, for several sizes
  of terminal, as a share of one core; its start is left out. ``sampler`` is the same without a
  screen. Processor time, not load: what else runs on the machine stretches it only a little.
- ``throughput``: tokens per second of the engine over stretches of a second, the monitor running
  or stopped (SIGSTOP) in random order, compared in pairs inside one run of one engine. 1.0 is no
  difference; the interval (95 %, bootstrap) says how much of a difference could be seen at all.
  ``per_engine_cpu_s`` is the same with tokens per second of the engine's own processor time, which
  other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import pty
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llama_ai.hardware.root import Root
from llama_ai.monitor.feed import LiveFeed
from llama_ai.monitor.http import parse_target
from llama_ai.monitor.sampler import Sampler

if TYPE_CHECKING:
    from collections.abc import Iterator

CHECKOUT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
SIZES = ((80, 24), (160, 48), (200, 60))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@contextlib.contextmanager
def engine(options: argparse.Namespace) -> Iterator[tuple[str, int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [
            str(options.engine), "--model", str(options.model), "--port", str(port),
            "--ctx-size", "8192", "--parallel", "2", "--metrics", "--slots", "--no-ui",
            "--threads", str(options.threads), "--device", "none", "-fit", "off",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while True:
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=2):  # noqa: S310 - loopback
                    break
            except OSError:
                assert process.poll() is None, "the engine ended"
                time.sleep(0.1)
        yield url, process.pid
    finally:
        process.terminate()
        process.wait()


class Load:
    """A client that generates without a pause and counts the tokens as they come."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.tokens = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)

    def _run(self) -> None:
        body = json.dumps(
            {"prompt": "Once upon a time", "n_predict": 1000, "stream": True, "ignore_eos": True}
        ).encode()
        while not self._stop.is_set():
            request = urllib.request.Request(f"{self._url}/completion", body)  # noqa: S310
            with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
                for line in answer:
                    self.tokens += line.startswith(b"data: ")
                    if self._stop.is_set():
                        return


class Screen:
    """The monitor in a pseudo-terminal whose output is thrown away."""

    def __init__(self, url: str, size: tuple[int, int]) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.bytes = 0
        threading.Thread(target=self._drain, daemon=True).start()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llama_ai", "monitor", "--url", url],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    def _drain(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._master, 1 << 16):
                self.bytes += len(chunk)

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        os.close(self._master)


def screen_cost(url: str, size: tuple[int, int], seconds: float) -> dict[str, float]:
    screen = Screen(url, size)
    try:
        time.sleep(6)  # the start is not what it costs to watch
        before_s, before_bytes, began_s = cpu_s(screen.process.pid), screen.bytes, time.monotonic()
        time.sleep(seconds)
        span_s = time.monotonic() - began_s
        return {
            "cpu_percent_of_a_core": round(
                100 * (cpu_s(screen.process.pid) - before_s) / span_s, 2
            ),
            "terminal_bytes_per_s": round((screen.bytes - before_bytes) / span_s),
        }
    finally:
        screen.close()


def sampler_cost(url: str, seconds: float) -> float:
    sampler = Sampler(Root("/"), gpu=None, interval_s=1.0, target=parse_target(url, None))
    feed = LiveFeed(sampler, 1.0)
    feed.start()
    time.sleep(3)
    before, began_s = time.process_time(), time.monotonic()
    load_free = time.monotonic() + seconds
    while time.monotonic() < load_free:
        time.sleep(1)
        feed.take()
    used_s, span_s = time.process_time() - before, time.monotonic() - began_s
    feed.close()
    return round(100 * used_s / span_s, 2)


def throughput(url: str, pid: int, load: Load, pairs: int, stretch_s: float) -> dict[str, Any]:
    screen = Screen(url, (160, 48))
    ratios: dict[str, list[float]] = {"per_wall_s": [], "per_engine_cpu_s": []}
    try:
        time.sleep(6)
        for _ in range(pairs):
            wall: dict[bool, float] = {}
            processor: dict[bool, float] = {}
            for watched in random.sample([True, False], 2):
                screen.process.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
                time.sleep(0.1)
                before, began_s, used_s = load.tokens, time.monotonic(), cpu_s(pid)
                time.sleep(stretch_s)
                tokens = load.tokens - before
                wall[watched] = tokens / (time.monotonic() - began_s)
                processor[watched] = tokens / (cpu_s(pid) - used_s)
            ratios["per_wall_s"].append(wall[True] / wall[False])
            ratios["per_engine_cpu_s"].append(processor[True] / processor[False])
    finally:
        screen.close()
    return {
        "pairs": pairs,
        "stretch_s": stretch_s,
        **{
            kind: {
                "median_ratio": round(statistics.median(found), 4),
                "interval_95": interval(found),
            }
            for kind, found in ratios.items()
        },
    }


def interval(found: list[float]) -> list[float]:
    """Where the median of such a sample lies in 95 of 100 cases."""
    medians = sorted(
        statistics.median(random.choices(found, k=len(found)))  # noqa: S311 - statistics
        for _ in range(2000)
    )
    return [round(medians[50], 4), round(medians[1949], 4)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--pairs", type=int, default=80)
    parser.add_argument("--stretch", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {
        "schema": "llama-ai.benchmark.monitor-cost/1",
        "machine": {
            "cpus": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "load_before": [round(value, 2) for value in os.getloadavg()],
        },
        "engine": {"model": options.model.name, "threads": options.threads, "slots": 2},
        "interval_s": 1.0,
        "screen": {},
    }
    with engine(options) as (url, pid):
        load = Load(url)
        while load.tokens == 0:
            time.sleep(0.1)
        for size in SIZES:
            result["screen"][f"{size[0]}x{size[1]}"] = screen_cost(url, size, options.seconds)
        result["throughput"] = throughput(url, pid, load, options.pairs, options.stretch)
        load.stop()
        # Without the client: it runs in this process, whose time is what is measured.
        idle = sampler_cost(url, options.seconds)
        result["sampler"] = {"cpu_percent_of_a_core_engine_idle": idle}
    result["machine"]["load_after"] = [round(value, 2) for value in os.getloadavg()]
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
