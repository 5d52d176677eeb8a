"""The supervisor against a real server process with fault switches.

Each test runs ``supervise`` in this process, as ``serve`` does, and sends it real signals.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai.command import Command
from llama_ai.errors import (
    AlreadyRunningError,
    EngineNotReadyError,
    LlamaAiError,
    ModelNotFoundError,
)
from llama_ai.supervisor.failures import Failure, Kind
from llama_ai.supervisor.health import Health, HealthSettings, Probe
from llama_ai.supervisor.identity import start_id
from llama_ai.supervisor.ports import listener
from llama_ai.supervisor.process import Child
from llama_ai.supervisor.restart import RestartPolicy, Smaller
from llama_ai.supervisor.state import Event, State, instances, read_record, record_path
from llama_ai.supervisor.supervisor import InstanceSpec, StopSettings, supervise

if TYPE_CHECKING:
    from collections.abc import Callable

FAKE = Path(__file__).with_name("fake_engine.py")
QUICK = RestartPolicy(first_delay_s=0.01, factor=1, max_identical=3)
CALM = HealthSettings(interval_s=0.05, loading_interval_s=0.02)
EAGER = HealthSettings(
    interval_s=0.05,
    loading_interval_s=0.02,
    timeout_s=0.2,
    unresponsive_after_s=0.5,
    hang_after_s=0.5,
)
NAME = "test"


@dataclass
class Bench:
    """Runs the supervisor on the fake engine and keeps what it told."""

    port: int
    log_path: Path
    events: list[Event]

    def command(self, *faults: str) -> Command:
        argv = (sys.executable, str(FAKE), "--port", str(self.port), *faults)
        return Command(argv=argv, env={**os.environ, "LLAMA_API_KEY": "s3cret"})

    def run(
        self,
        *faults: str,
        on_event: Callable[[Event], None] | None = None,
        command: Command | None = None,
        policy: RestartPolicy = QUICK,
        health: HealthSettings = CALM,
        start_timeout_s: float = 30,
        grace_s: float = 5,
        next_smaller: Callable[[Failure], Smaller | None] | None = None,
    ) -> int:
        def tell(event: Event) -> None:
            self.events.append(event)
            if on_event is not None:
                on_event(event)

        spec = InstanceSpec(
            name=NAME,
            host="127.0.0.1",
            port=self.port,
            url=f"http://127.0.0.1:{self.port}",
            log_path=self.log_path,
            model_path=Path("model.gguf"),
            profile={"name": "p"},
            start_timeout_s=start_timeout_s,
            api_key="s3cret",
        )
        return asyncio.run(
            supervise(
                spec,
                command or self.command(*faults),
                on_event=tell,
                policy=policy,
                health=health,
                stop=StopSettings(grace_s=grace_s, hang_grace_s=0.1),
                next_smaller=next_smaller,
            )
        )

    @property
    def states(self) -> list[State]:
        states: list[State] = []
        for event in self.events:
            if event.kind == "state" and states[-1:] != [event.state]:
                states.append(event.state)
        return states

    @property
    def failures(self) -> list[str]:
        return [
            event.record.last_failure.kind
            for event in self.events
            if event.state in {State.RESTARTING, State.FAILED}
            and event.kind == "state"
            and event.record.last_failure is not None
        ]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return Bench(port=port, log_path=tmp_path / "logs" / "engine.log", events=[])


def stop_on(state: State, number: signal.Signals = signal.SIGTERM) -> Callable[[Event], None]:
    def act(event: Event) -> None:
        if event.kind == "state" and event.state is state:
            os.kill(os.getpid(), number)

    return act


def alive(event: Event) -> bool:
    record = event.record
    assert record.engine_pid is not None
    return start_id(record.engine_pid) == record.engine_start


def assert_nothing_is_left(bench: Bench) -> None:
    assert not record_path(NAME).exists()
    assert not any(alive(event) for event in bench.events if event.record.engine_pid)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_start_ready_stop(bench: Bench, number: signal.Signals, code: int) -> None:
    assert bench.run(on_event=stop_on(State.READY, number)) == code
    assert bench.states == [State.LOADING, State.READY, State.STOPPING]
    record = bench.events[1].record
    assert (record.name, record.pid, record.restarts) == (NAME, os.getpid(), 0)
    assert record.profile == {"name": "p"}
    assert_nothing_is_left(bench)


def test_stop_while_loading(bench: Bench) -> None:
    assert bench.run("--load-s", "60", on_event=stop_on(State.LOADING)) == 0
    assert bench.states == [State.LOADING, State.STOPPING]
    assert_nothing_is_left(bench)


def test_stop_while_waiting_to_restart(bench: Bench) -> None:
    slow = RestartPolicy(first_delay_s=600, max_delay_s=600)
    code = bench.run("--exit-at-load", "3", on_event=stop_on(State.RESTARTING), policy=slow)
    assert code == 0
    assert_nothing_is_left(bench)


def test_an_engine_that_ignores_term_is_killed(bench: Bench) -> None:
    assert bench.run("--ignore-term", on_event=stop_on(State.READY), grace_s=0.2) == 0
    assert_nothing_is_left(bench)


def test_a_second_interrupt_does_not_wait(bench: Bench) -> None:
    def act(event: Event) -> None:
        if event.state in {State.READY, State.STOPPING}:
            os.kill(os.getpid(), signal.SIGINT)

    assert bench.run("--ignore-term", on_event=act, grace_s=3600) == 130
    assert_nothing_is_left(bench)


def test_a_grandchild_that_holds_the_pipe_does_not_hang_the_stop(bench: Bench) -> None:
    try:
        assert bench.run("--grandchild", on_event=stop_on(State.READY)) == 0
        assert_nothing_is_left(bench)
    finally:
        for line in bench.log_path.read_text().splitlines():
            if line.startswith("grandchild "):
                os.kill(int(line.split()[1]), signal.SIGKILL)


@pytest.mark.parametrize("stop_by", [signal.SIGTERM, signal.SIGKILL])
def test_the_whole_group_ends_with_its_leader(bench: Bench, stop_by: signal.Signals) -> None:
    """A process that the engine started and that ignores TERM goes when the engine goes."""

    def act(event: Event) -> None:
        if event.state is State.READY and event.record.restarts == 0:
            while "deaf" not in bench.log_path.read_text():
                time.sleep(0.01)
            if stop_by is signal.SIGTERM:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                assert event.record.engine_pid is not None
                os.kill(event.record.engine_pid, signal.SIGKILL)
        elif event.state is State.READY:
            os.kill(os.getpid(), signal.SIGTERM)

    assert bench.run("--sibling", on_event=act) == 0
    siblings = [
        int(line.split()[1])
        for line in bench.log_path.read_text().splitlines()
        if line.startswith("sibling ")
    ]
    assert siblings
    deadline_s = time.monotonic() + 20
    while [pid for pid in siblings if start_id(pid)]:  # killed, and dying as the kernel finds time
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.filterwarnings("ignore:subprocess:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_engine_that_cannot_be_killed_holds_nobody(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a GPU driver that hangs: no signal has an effect."""
    with monkeypatch.context() as patch:
        patch.setattr(Child, "_signal_group", lambda self, number: None)
        assert bench.run(on_event=stop_on(State.READY), grace_s=0.1) == 0
    (orphan,) = instances()
    try:
        assert orphan.engine_alive
        assert any(
            f"pid {orphan.engine_pid}) does not end" in event.message
            for event in bench.events
            if event.kind == "warning"
        )
    finally:
        assert orphan.engine_pid is not None
        os.killpg(orphan.engine_pid, signal.SIGKILL)
        os.waitpid(orphan.engine_pid, 0)
        gc.collect()  # the abandoned process object complains here, where it is expected


def test_a_killed_engine_comes_back(bench: Bench) -> None:
    kills = 0

    def act(event: Event) -> None:
        nonlocal kills
        if event.state is State.READY:
            if kills == 5:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                kills += 1
                assert event.record.engine_pid is not None
                os.kill(event.record.engine_pid, signal.SIGKILL)

    assert bench.run(on_event=act) == 0
    assert bench.failures == ["killed"] * 5
    assert bench.events[-1].record.restarts == 5
    assert_nothing_is_left(bench)


def test_identical_failures_end_in_failed_with_reason_and_log(bench: Bench) -> None:
    with pytest.raises(LlamaAiError) as caught:
        bench.run("--say", "the last words", "--exit-at-load", "3")
    assert caught.value.exit_code == 1
    assert "3 times in a row" in caught.value.message
    assert "status 3" in caught.value.message
    assert "the last words" in caught.value.details
    assert str(bench.log_path) in (caught.value.hint or "")
    assert bench.states[-1] is State.FAILED
    assert bench.events[-1].record.restarts == 2
    record = read_record(record_path(NAME))
    assert record is not None
    assert record.state is State.FAILED
    assert record.engine_pid is None
    assert instances() == [record]


def test_a_failure_that_passes_is_survived(bench: Bench, tmp_path: Path) -> None:
    counter = tmp_path / "starts"
    code = bench.run("--fail-first", "2", "--counter", str(counter), on_event=stop_on(State.READY))
    assert code == 0
    assert counter.read_text() == "3"
    assert bench.failures == ["exit", "exit"]


def test_a_crash_in_a_request_is_restarted(bench: Bench) -> None:
    asked = 0

    def act(event: Event) -> None:
        nonlocal asked
        if event.state is State.READY:
            asked += 1
            if asked == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            with pytest.raises(OSError):
                urllib.request.urlopen(f"{event.record.url}/v1/models", timeout=30)  # noqa: S310

    assert bench.run("--crash-after", "1", on_event=act) == 0
    assert bench.failures == ["crash", "crash"]
    assert bench.events[2].record.last_failure is not None
    assert "SIGSEGV" in bench.events[2].record.last_failure.message


@pytest.mark.parametrize(
    ("words", "error", "kind"),
    [
        ("error: invalid argument: --odd", LlamaAiError, Kind.BAD_FLAG),
        ("E llama_model_load: error loading model: broken", ModelNotFoundError, Kind.BAD_MODEL),
        ("x: error while loading shared libraries: y", EngineNotReadyError, Kind.ENGINE_BROKEN),
    ],
)
def test_what_cannot_be_cured_does_not_loop(
    bench: Bench, words: str, error: type[LlamaAiError], kind: Kind
) -> None:
    with pytest.raises(error) as caught:
        bench.run("--say", words, "--exit-at-load", "1")
    assert type(caught.value) is error
    assert words in caught.value.message
    assert bench.failures == [kind.value]
    assert bench.states == [State.LOADING, State.FAILED]


def test_losing_the_race_for_the_port_is_not_a_loop(bench: Bench) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", bench.port))
        holder.listen()
        with pytest.raises(AlreadyRunningError) as caught:
            bench.run()
    assert f"port {bench.port}" in caught.value.message
    assert f"pid {os.getpid()}" in caught.value.message
    assert State.READY not in bench.states
    assert State.RESTARTING not in bench.states


def test_another_server_on_the_port_does_not_pass_for_ours(bench: Bench) -> None:
    other = subprocess.Popen([sys.executable, str(FAKE), "--port", str(bench.port)])
    try:
        _wait_until_ready(bench.port)
        with pytest.raises(AlreadyRunningError) as caught:
            # Ours is slow to find out that the port is taken; meanwhile the other says 200.
            bench.run(command=bench.command("--bind-after-s", "0.5"))
        assert f"pid {other.pid}" in caught.value.message
        assert State.READY not in bench.states
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def _wait_until_ready(port: int) -> None:
    while (
        asyncio.run(Probe("127.0.0.1", port, api_key=None, timeout_s=1).health()) is not Health.OK
    ):
        time.sleep(0.02)


def test_a_script_that_starts_the_engine_is_one_with_it(bench: Bench) -> None:
    script = f'"{sys.executable}" "{FAKE}" --port {bench.port}; true'
    command = Command(argv=("/bin/sh", "-c", script), env=dict(os.environ))
    assert bench.run(command=command, on_event=stop_on(State.READY)) == 0
    assert bench.states == [State.LOADING, State.READY, State.STOPPING]
    assert listener(bench.port) is None, "the server below the script is gone as well"


def test_many_looks_leave_nothing_behind(bench: Bench) -> None:
    """A day of looks in fast motion: objects, descriptors and threads do not grow."""
    looks = 0
    counts: list[tuple[int, int, int]] = []
    real = Probe.health

    async def counting(probe: Probe) -> Health:
        nonlocal looks
        looks += 1
        if looks in {300, 1500}:
            gc.collect()
            descriptors = len(list(Path("/proc/self/fd").iterdir()))
            counts.append((len(gc.get_objects()), descriptors, threading.active_count()))
        if looks == 1500:
            os.kill(os.getpid(), signal.SIGTERM)
        return await real(probe)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Probe, "health", counting)
        assert bench.run("--busy", health=HealthSettings(interval_s=0)) == 0
    (objects, *others), (objects_later, *others_later) = counts
    assert others_later == others
    assert objects_later - objects < 300  # a leak of one object a look would be 1200


def test_a_missing_program_is_named(bench: Bench) -> None:
    with pytest.raises(EngineNotReadyError, match="/no/such/engine"):
        bench.run(command=Command(argv=("/no/such/engine",), env={}))


def test_a_lost_device_is_down_although_health_says_ok(bench: Bench) -> None:
    def act(event: Event) -> None:
        if event.state is State.READY and event.record.restarts == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    assert bench.run("--say-later", "ggml_vulkan: device lost on Vulkan0", on_event=act) == 0
    assert bench.failures == ["device-lost"]
    assert_nothing_is_left(bench)


def test_a_curable_failure_goes_on_with_less_and_says_so(bench: Bench) -> None:
    offers = [
        Smaller(command=bench.command("--load-s", "0.01"), message="ubatch 512 -> 256"),
    ]
    asked: list[Failure] = []

    def smaller(failure: Failure) -> Smaller | None:
        asked.append(failure)
        return offers.pop() if offers else None

    code = bench.run(
        "--say",
        "alloc_tensor_range: failed to allocate Vulkan0 buffer of size 99",
        "--exit-at-load",
        "1",
        on_event=stop_on(State.READY),
        next_smaller=smaller,
    )
    assert code == 0
    assert [failure.kind for failure in asked] == [Kind.OUT_OF_MEMORY]
    assert any("ubatch 512 -> 256" in e.message for e in bench.events if e.kind == "warning")


def test_work_without_progress_is_a_hang(bench: Bench) -> None:
    with pytest.raises(LlamaAiError, match="without getting on"):
        bench.run("--stuck", health=EAGER, policy=RestartPolicy(max_identical=1))
    assert bench.failures == ["hang"]
    assert State.DEGRADED in bench.states


def test_work_with_progress_is_none(bench: Bench) -> None:
    # Many looks at the counters, for several times the time after which it would be a hang.
    looks = HealthSettings(interval_s=0.02, hang_after_s=0.1, unresponsive_after_s=20)
    timer = _Later(0.6)

    def act(event: Event) -> None:
        if event.state is State.READY:
            timer.start()

    assert bench.run("--busy", on_event=act, health=looks) == 0
    assert bench.failures == []


def test_a_stopped_engine_is_a_hang_and_comes_back(bench: Bench) -> None:
    def act(event: Event) -> None:
        if event.kind == "state" and event.state is State.READY:
            if event.record.restarts:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                assert event.record.engine_pid is not None
                os.kill(event.record.engine_pid, signal.SIGSTOP)

    assert bench.run(on_event=act, health=EAGER) == 0
    assert bench.failures == ["hang"]
    assert State.DEGRADED in bench.states
    assert_nothing_is_left(bench)


def test_an_answer_that_is_not_well_is_a_hang(bench: Bench) -> None:
    with pytest.raises(LlamaAiError, match="does not answer"):
        bench.run("--sick", health=EAGER, policy=RestartPolicy(max_identical=1))


def test_a_load_that_takes_too_long_ends(bench: Bench) -> None:
    with pytest.raises(LlamaAiError, match=r"not ready within 0\.3 s"):
        bench.run("--load-s", "600", start_timeout_s=0.3, policy=RestartPolicy(max_identical=1))
    assert bench.failures == ["load-timeout"]


def test_a_flood_of_output_changes_nothing(bench: Bench) -> None:
    def act(event: Event) -> None:
        if event.state is State.READY:
            timer.start()

    timer = _When(bench.log_path, b"flood over")
    assert bench.run("--flood-mb", "100", on_event=act) == 0
    assert bench.failures == []
    files = list(bench.log_path.parent.iterdir())
    assert len(files) <= 4
    assert sum(path.stat().st_size for path in files) < 48 << 20


def test_a_full_disk_for_the_log_is_said_and_serving_goes_on(bench: Bench) -> None:
    bench.log_path.parent.mkdir()
    bench.log_path.symlink_to("/dev/full")
    assert bench.run("--say", "hello", on_event=stop_on(State.READY)) == 0
    warnings = [event.message for event in bench.events if event.kind == "warning"]
    assert len(warnings) == 1
    assert "No space left" in warnings[0]


def test_the_terminal_may_go(bench: Bench) -> None:
    hung_up = False

    def act(event: Event) -> None:
        nonlocal hung_up
        if event.state is State.READY and not hung_up:
            hung_up = True
            os.kill(os.getpid(), signal.SIGHUP)
            assert event.record.engine_pid is not None
            os.kill(event.record.engine_pid, signal.SIGKILL)
            raise OSError(5, "the terminal is gone")
        if event.state is State.READY:
            os.kill(os.getpid(), signal.SIGTERM)

    assert bench.run(on_event=act) == 0
    assert bench.failures == ["killed"]
    assert_nothing_is_left(bench)


def test_the_key_is_in_no_file_and_in_no_argument(bench: Bench) -> None:
    def act(event: Event) -> None:
        if event.state is State.READY:
            seen.append(record_path(NAME).read_bytes())
            seen.append(Path(f"/proc/{event.record.engine_pid}/cmdline").read_bytes())
            os.kill(os.getpid(), signal.SIGTERM)

    seen: list[bytes] = []
    assert bench.run("--say", "the key is s3cret!", on_event=act) == 0
    assert b"the key is [redacted]!" in bench.log_path.read_bytes()
    assert b"s3cret" not in seen[0]
    assert b"s3cret" not in bench.log_path.read_bytes()


class _Later:
    """Asks the supervisor to stop after a while, from the loop itself."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s

    def start(self) -> None:
        asyncio.get_running_loop().call_later(self._delay_s, os.kill, os.getpid(), signal.SIGTERM)


class _When(_Later):
    """Asks the supervisor to stop once the log holds some words."""

    def __init__(self, path: Path, words: bytes) -> None:
        super().__init__(0.05)
        self._path = path
        self._words = words

    def start(self) -> None:
        newest = self._path.read_bytes()[-4096:] if self._path.exists() else b""
        if self._words in newest:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            asyncio.get_running_loop().call_later(self._delay_s, self.start)
