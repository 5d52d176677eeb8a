"""What supervision costs: CPU under load, memory over many health checks, and time at the start.

    supervisor_cost.py --engine LLAMA_SERVER --model FILE.gguf [--seconds 60] [--json FILE]

Three measurements, each on the real engine:

- ``cpu_percent_of_a_core``: processor time of the supervisor's process while a client generates
  without pause, default settings, as a share of the time that passed.
- ``rss_*``: resident memory, descriptors and threads of a supervisor after 1 000 and after 10 000
  health checks made as fast as the engine answers (14 hours of supervision in fast motion).
- ``import_s``, ``to_spawn_s``: what stands between the command line's start and the engine's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

began_s = time.perf_counter()
from llama_ai.supervisor import health, supervisor  # noqa: E402 - the import is measured

IMPORT_S = time.perf_counter() - began_s

from llama_ai.command import Command  # noqa: E402

if TYPE_CHECKING:
    from llama_ai.supervisor.state import Event

CHECKOUT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int | str) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def usage() -> dict[str, int]:
    status = Path("/proc/self/status").read_text()
    rss = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return {
        "rss_kib": int(rss.split()[1]),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": threading.active_count(),
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def under_load(options: argparse.Namespace) -> dict[str, float]:
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "llama_ai", "serve", str(options.model),
            "--engine", str(options.engine), "--port", str(port), "--ctx-size", "2048",
            "--backend", "cpu",
        ],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health") as answer:  # noqa: S310
                if answer.status == 200:
                    break
        except OSError:
            time.sleep(0.05)
    time.sleep(1)
    body = json.dumps({"prompt": "Once", "n_predict": 128, "ignore_eos": True}).encode()
    tokens = 0
    start_s, start_cpu_s = time.monotonic(), cpu_s(process.pid)
    while time.monotonic() - start_s < options.seconds:
        with urllib.request.urlopen(f"{url}/completion", body) as answer:  # noqa: S310
            tokens += json.load(answer)["tokens_predicted"]
    passed_s, used_s = time.monotonic() - start_s, cpu_s(process.pid) - start_cpu_s
    process.send_signal(signal.SIGTERM)
    process.wait()
    return {
        "seconds": passed_s,
        "tokens": tokens,
        "supervisor_cpu_s": used_s,
        "cpu_percent_of_a_core": 100 * used_s / passed_s,
    }


def many_checks(options: argparse.Namespace) -> dict[str, Any]:
    port = free_port()
    counted: dict[int, dict[str, int]] = {}
    checks = 0
    real = health.Probe.health

    async def counting(probe: health.Probe) -> health.Health:
        nonlocal checks
        checks += 1
        if checks in {1000, 10_000}:
            counted[checks] = usage()
        if checks == 10_000:
            os.kill(os.getpid(), signal.SIGTERM)
        return await real(probe)

    health.Probe.health = counting  # type: ignore[method-assign]
    spawned: list[float] = []

    def tell(event: Event) -> None:
        if event.record.engine_pid is not None and not spawned:
            spawned.append(time.perf_counter() - start_s)

    spec = supervisor.InstanceSpec(
        name="cost",
        host="127.0.0.1",
        port=port,
        url="",
        log_path=Path(os.environ["XDG_STATE_HOME"]) / "cost.log",
    )
    argv = (str(options.engine), "-m", str(options.model), "--port", str(port), "-c", "2048",
            "-fit", "off", "-ngl", "0", "-np", "1")  # fmt: skip
    start_s = time.perf_counter()
    asyncio.run(
        supervisor.supervise(
            spec,
            Command(argv=argv, env=dict(os.environ)),
            on_event=tell,
            health=health.HealthSettings(interval_s=0),
        )
    )
    return {
        "to_spawn_s": spawned[0],
        "after_1000": counted[1000],
        "after_10000": counted[10_000],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llama-ai-cost-") as name:
        for variable in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            (Path(name) / variable).mkdir(mode=0o700)
            os.environ[variable] = str(Path(name) / variable)
        document = {
            "schema": "llama-ai.bench-supervisor-cost/1",
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
            "python": platform.python_version(),
            "model": options.model.name,
            "import_s": IMPORT_S,
            "checks": many_checks(options),
            "load": under_load(options),
        }
    text = json.dumps(document, indent=1) + "\n"
    print(text, end="")
    if options.json is not None:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
