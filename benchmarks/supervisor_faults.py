"""The fault campaign: break the engine and the supervisor's world in every way, and look.

    supervisor_faults.py --engine LLAMA_SERVER --model FILE.gguf [--json FILE] [--only WORD]

Each case runs the real supervisor; ``engine`` cases on the real engine and model, ``fake`` cases on
``tests/unit/fake_engine.py``, for what the real engine cannot be brought to do. Prints a table
(Markdown) and ends with 1 when a case does not end in the state that is documented for it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from llama_ai.command import Command
from llama_ai.errors import LlamaAiError
from llama_ai.supervisor.health import HealthSettings
from llama_ai.supervisor.identity import is_alive
from llama_ai.supervisor.restart import RestartPolicy, Smaller
from llama_ai.supervisor.state import Event, State, instances
from llama_ai.supervisor.supervisor import InstanceSpec, StopSettings, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHECKOUT = Path(__file__).resolve().parents[1]
FAKE = CHECKOUT / "tests/unit/fake_engine.py"
QUICK = HealthSettings(
    interval_s=0.2, timeout_s=0.5, unresponsive_after_s=2, hang_after_s=2, loading_interval_s=0.02
)
KILLS = 10


@dataclass
class Outcome:
    """What a case showed. ``figures`` are seconds and ratios worth keeping."""

    case: str
    engine: str
    expected: str
    observed: str
    ok: bool
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)


class Bench:
    """One case's directories, port, events, and clients that keep the engine busy."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.engine: Path = options.engine
        self.model: Path = options.model
        self.directory = directory
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / "logs" / "engine.log"
        self.events: list[Event] = []
        self.ready_times_s: list[float] = []
        self._loading_at_s = 0.0
        self._ended_at_s = 0.0
        self.back_after_s: list[float] = []

    def real(self, *words: str, model: Path | None = None) -> Command:
        argv = (
            str(self.engine), "-m", str(model or self.model), "--host", "127.0.0.1",
            "--port", str(self.port), "-fit", "off", "-np", "1", "-ngl", "0",
            "--load-mode", "mmap", "--no-repack",
            *(words or ("-c", "2048")),
        )  # fmt: skip
        return Command(argv=argv, env=dict(os.environ))

    def fake(self, *words: str) -> Command:
        argv = (sys.executable, str(FAKE), "--port", str(self.port), *words)
        return Command(argv=argv, env=dict(os.environ))

    def run(
        self,
        command: Command,
        act: Callable[[Event], None],
        *,
        health: HealthSettings = QUICK,
        next_smaller: Callable[[Any], Smaller | None] | None = None,
    ) -> str:
        """Supervise until the end; returns the exit code or the error in a few words."""

        def tell(event: Event) -> None:
            now_s = time.monotonic()
            self.events.append(event)
            if event.kind == "state" and event.state is State.RESTARTING:
                self._ended_at_s = now_s
            if event.kind == "state" and event.state is State.LOADING:
                self._loading_at_s = now_s
            if event.kind == "state" and event.state is State.READY:
                self.ready_times_s.append(now_s - self._loading_at_s)
                if self._ended_at_s:
                    self.back_after_s.append(now_s - self._ended_at_s)
            act(event)

        spec = InstanceSpec(
            name=str(self.port),
            host="127.0.0.1",
            port=self.port,
            url=self.url,
            log_path=self.log,
            model_path=self.model,
        )
        try:
            code = asyncio.run(
                supervise(
                    spec,
                    command,
                    on_event=tell,
                    health=health,
                    policy=RestartPolicy(max_delay_s=1),
                    stop=StopSettings(hang_grace_s=0.5),
                    next_smaller=next_smaller,
                )
            )
        except LlamaAiError as error:
            return f"failed, exit {error.exit_code}: {error.message[:90]}"
        return f"stopped, exit {code}"

    @property
    def kinds(self) -> list[str]:
        return [
            event.record.last_failure.kind
            for event in self.events
            if event.kind == "state"
            and event.state in {State.RESTARTING, State.FAILED}
            and event.record.last_failure is not None
        ]

    @property
    def left(self) -> list[int]:
        """Engines of this case that still live."""
        seen = {(e.record.engine_pid, e.record.engine_start) for e in self.events}
        return [pid for pid, start in seen if pid is not None and is_alive(pid, start)]

    def load(self) -> threading.Event:
        """A client that generates without pause until the event is set or the engine dies."""
        over = threading.Event()

        def work() -> None:
            body = json.dumps({"prompt": "Once", "n_predict": 64, "ignore_eos": True}).encode()
            while not over.is_set():
                with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
                    urllib.request.urlopen(f"{self.url}/completion", body, timeout=20).read()  # noqa: S310
                over.wait(0.01)

        threading.Thread(target=work, daemon=True).start()
        return over


def later(delay_s: float, action: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_later(delay_s, action)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def kill(event: Event, number: signal.Signals = signal.SIGKILL) -> None:
    if event.record.engine_pid is not None:
        os.kill(event.record.engine_pid, number)


def is_ready(event: Event) -> bool:
    return event.kind == "state" and event.state is State.READY


# -- the cases: each returns (engine, expected, observed, ok, figures) ----------------------------


def kills_under_load(bench: Bench) -> tuple[Any, ...]:
    dice = random.Random(20261129)  # noqa: S311 - moments, not secrets
    over = bench.load()

    def act(event: Event) -> None:
        if is_ready(event):
            if event.record.restarts == KILLS:
                later(0.5, stop)
            else:
                later(dice.uniform(0, 2), lambda: kill(event))

    end = bench.run(bench.real(), act, health=HealthSettings())
    over.set()
    plain_s, back_s = bench.ready_times_s[0], median(bench.back_after_s or [0])
    return (
        "real",
        f"{KILLS} restarts, each time ready; stopped, exit 0",
        f"{len(bench.back_after_s)} restarts; {end}",
        end == "stopped, exit 0" and bench.kinds == ["killed"] * KILLS and not bench.left,
        {
            "plain_start_s": plain_s,
            "back_after_kill_median_s": back_s,
            "back_after_kill_max_s": max(bench.back_after_s or [0]),
            "ratio_median": back_s / plain_s,
        },
    )


def stopped_engine(bench: Bench) -> tuple[Any, ...]:
    def act(event: Event) -> None:
        if is_ready(event):
            if event.record.restarts:
                stop()
            else:
                kill(event, signal.SIGSTOP)

    end = bench.run(bench.real(), act)
    states = {event.state for event in bench.events}
    return (
        "real",
        "degraded, hang, restarted, ready; stopped, exit 0",
        f"{', '.join(sorted(states))}; {bench.kinds}; {end}",
        bench.kinds == ["hang"] and State.DEGRADED in states and end == "stopped, exit 0",
        {},
    )


def crash_at_load(bench: Bench) -> tuple[Any, ...]:
    end = bench.run(bench.fake("--signal-at-load", "11"), lambda _: None)
    return (
        "fake",
        "failed after 5 identical failures, exit 1",
        f"{len(bench.kinds)} × {bench.kinds[0]}; {end}",
        bench.kinds == ["crash"] * 5 and end.startswith("failed, exit 1"),
        {},
    )


def crash_after_requests(bench: Bench) -> tuple[Any, ...]:
    def ask() -> None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{bench.url}/v1/models", timeout=2).read()  # noqa: S310

    def act(event: Event) -> None:
        if is_ready(event):
            if event.record.restarts == 2:
                stop()
            else:
                for _ in range(3):
                    threading.Thread(target=ask, daemon=True).start()

    end = bench.run(bench.fake("--crash-after", "3"), act)
    return (
        "fake",
        "restarted each time, ready; stopped, exit 0",
        f"{bench.kinds}; {end}",
        bench.kinds == ["crash", "crash"] and end == "stopped, exit 0",
        {},
    )


def deaf_to_term(bench: Bench) -> tuple[Any, ...]:
    asked_s: list[float] = []

    def act(event: Event) -> None:
        if is_ready(event):
            asked_s.append(time.monotonic())
            stop()

    end = bench.run(bench.fake("--ignore-term"), act)
    took_s = time.monotonic() - asked_s[0]
    return (
        "fake",
        "killed within 10 s; stopped, exit 0",
        f"{end}; {took_s:.1f} s; left: {bench.left}",
        end == "stopped, exit 0" and took_s < 10 and not bench.left,
        {"stop_s": took_s},
    )


def grandchild(bench: Bench) -> tuple[Any, ...]:
    asked_s: list[float] = []

    def act(event: Event) -> None:
        if is_ready(event):
            asked_s.append(time.monotonic())
            stop()

    end = bench.run(bench.fake("--grandchild"), act)
    took_s = time.monotonic() - asked_s[0]
    for line in bench.log.read_text().splitlines():
        if line.startswith("grandchild "):
            os.kill(int(line.split()[1]), signal.SIGKILL)
    return (
        "fake",
        "stopped within 10 s although the pipe is held; exit 0",
        f"{end}; {took_s:.1f} s",
        end == "stopped, exit 0" and took_s < 10,
        {"stop_s": took_s},
    )


def flood(bench: Bench) -> tuple[Any, ...]:
    began_s: list[float] = []
    took_s: list[float] = []

    def look() -> None:
        tail = bench.log.read_bytes()[-4096:] if bench.log.exists() else b""
        if b"flood over" in tail:
            took_s.append(time.monotonic() - began_s[0])
            stop()
        else:
            later(0.02, look)

    def act(event: Event) -> None:
        if is_ready(event):
            began_s.append(time.monotonic())
            look()

    end = bench.run(bench.fake("--flood-mb", "100"), act)
    kept = sum(path.stat().st_size for path in bench.log.parent.iterdir())
    return (
        "fake",
        "stays ready, the log stays under 42 MB; stopped, exit 0",
        f"{bench.kinds}; {kept / 1e6:.0f} MB kept; {end}",
        not bench.kinds and kept < 42 << 20 and end == "stopped, exit 0",
        {"flood_s": took_s[0] if took_s else -1},
    )


def full_disk(bench: Bench) -> tuple[Any, ...]:
    """Every write to a file fails with a real error of the kernel: the size limit is zero."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def act(event: Event) -> None:
        if event.kind == "state" and event.state is State.LOADING:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        if is_ready(event):
            if event.record.restarts:
                stop()
            else:
                later(0.3, lambda: kill(event))

    try:
        end = bench.run(bench.real(), act)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    warnings = sorted({event.message for event in bench.events if event.kind == "warning"})
    return (
        "real",
        "says that log and state cannot be written, serves on, restarts; stopped, exit 0",
        f"{len(warnings)} warnings; {bench.kinds}; {end}",
        len(warnings) >= 2 and bench.kinds == ["killed"] and end == "stopped, exit 0",
        {},
    )


def deleted_model(bench: Bench) -> tuple[Any, ...]:
    mine = bench.directory / "mine.gguf"
    shutil.copyfile(bench.model, mine)

    def answer() -> bool:
        body = b'{"prompt": "Hello", "n_predict": 4}'
        try:
            urllib.request.urlopen(f"{bench.url}/completion", body, timeout=60).read()  # noqa: S310
        except OSError:
            return False
        return True

    served: list[bool] = []

    def act(event: Event) -> None:
        if is_ready(event):
            mine.unlink()
            served.append(answer())
            kill(event)

    end = bench.run(bench.real(model=mine), act)
    return (
        "real",
        "serves on; after a crash failed at once, exit 4",
        f"served: {served}; {bench.kinds}; {end}",
        served == [True]
        and bench.kinds == ["killed", "bad-model"]
        and end.startswith("failed, exit 4"),
        {},
    )


def clock_jump(bench: Bench) -> tuple[Any, ...]:
    """The wall clock jumps a day ahead, then two back, as seen by the supervisor."""
    real = time.time
    offset_s = 0.0
    time.time = lambda: real() + offset_s

    def jump(by_s: float) -> None:
        nonlocal offset_s
        offset_s = by_s

    def act(event: Event) -> None:
        if is_ready(event):
            later(0.5, lambda: jump(86400))
            later(1.0, lambda: jump(-86400))
            later(1.5, stop)

    try:
        end = bench.run(bench.real(), act)
    finally:
        time.time = real
    return "real", "nothing happens", f"{bench.kinds}; {end}", not bench.kinds, {}


def out_of_memory(bench: Bench) -> tuple[Any, ...]:
    """A real allocation failure: the address space is limited, the context is too large."""

    def limited(context: int) -> Command:
        command = bench.real("-c", str(context))
        return Command(argv=("prlimit", "--as=1200000000", *command.argv), env=command.env)

    offers = [8192, 16384]

    def smaller(_: object) -> Smaller | None:
        context = offers.pop()
        return Smaller(command=limited(context), message=f"context -> {context}")

    end = bench.run(
        limited(32768), lambda event: stop() if is_ready(event) else None, next_smaller=smaller
    )
    said = [event.message for event in bench.events if event.kind == "warning"]
    return (
        "real",
        "out of memory, next start with less, ready; stopped, exit 0",
        f"{bench.kinds}; {said}; {end}",
        bool(bench.kinds) and set(bench.kinds) == {"out-of-memory"} and end == "stopped, exit 0",
        {},
    )


def killed_supervisor(bench: Bench) -> tuple[Any, ...]:
    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "llama_ai", *words]

    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    start = command(
        "serve", str(bench.model), "--engine", str(bench.engine), "--port", str(bench.port),
        "--ctx-size", "2048", "--backend", "cpu",
    )  # fmt: skip
    with (bench.directory / "said").open("wb") as said:
        first = subprocess.Popen(start, env=env, stdout=said, stderr=said)
    while not (found := [r for r in instances() if r.state is State.READY]):
        time.sleep(0.05)
    first.kill()
    first.wait()
    orphan = found[0].engine_pid
    again = subprocess.run(start, env=env, capture_output=True, text=True, check=False)
    named = f"pid {orphan}" in again.stderr and "llama-ai stop" in again.stderr
    alive = found[0].engine_alive
    stopping = subprocess.run(command("stop"), env=env, capture_output=True, check=False)
    observed = (
        f"exit {again.returncode}, named: {named}, alive: {alive}; stop: exit "
        f"{stopping.returncode}, alive: {found[0].engine_alive}"
    )
    return (
        "real",
        "orphan serves on; the next serve names it, exit 6; stop ends it, exit 0",
        observed,
        again.returncode == 6
        and named
        and alive
        and stopping.returncode == 0
        and not found[0].engine_alive
        and instances() == [],
        {},
    )


CASES: dict[str, Callable[[Bench], tuple[Any, ...]]] = {
    "SIGKILL of the engine at ten random moments of load": kills_under_load,
    "SIGSTOP of the engine": stopped_engine,
    "crash at load": crash_at_load,
    "crash after N requests": crash_after_requests,
    "engine ignores TERM": deaf_to_term,
    "grandchild holds the pipe": grandchild,
    "log flood of 100 MB": flood,
    "full disk for log and state": full_disk,
    "model deleted while running, then a crash": deleted_model,
    "wall clock jumps": clock_jump,
    "out of memory, cured by less": out_of_memory,
    "supervisor killed with SIGKILL": killed_supervisor,
}


@contextlib.contextmanager
def private_directories() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="llama-ai-faults-") as name:
        for variable in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            (Path(name) / variable).mkdir(mode=0o700)
            os.environ[variable] = str(Path(name) / variable)
        yield Path(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    outcomes = []
    print("| case | engine | documented | observed | ok | s |")
    print("|---|---|---|---|---|---|")
    for name, case in CASES.items():
        if options.only not in name:
            continue
        with private_directories() as directory:
            began_s = time.monotonic()
            engine, expected, observed, ok, figures = case(Bench(options, directory))
            outcome = Outcome(
                case=name, engine=engine, expected=expected, observed=observed, ok=ok,
                seconds=round(time.monotonic() - began_s, 2),
                figures={key: round(value, 3) for key, value in figures.items()},
            )  # fmt: skip
        outcomes.append(outcome)
        print(
            f"| {name} | {engine} | {expected} | {observed} | {'yes' if ok else 'NO'} "
            f"| {outcome.seconds:.1f} |",
            flush=True,
        )
    for outcome in outcomes:
        for key, value in outcome.figures.items():
            print(f"{outcome.case}: {key} = {value}")
    if options.json is not None:
        version = subprocess.run(
            [str(options.engine), "--version"], capture_output=True, text=True, check=False
        )
        document = {
            "schema": "llama-ai.bench-supervisor-faults/1",
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
            "python": platform.python_version(),
            "engine": (version.stderr + version.stdout).strip().splitlines()[:1],
            "model": options.model.name,
            "outcomes": [asdict(outcome) for outcome in outcomes],
        }
        options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return 0 if all(outcome.ok for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
