"""Instance files, claims, ports, and ending instances from outside: with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from llama_ai.errors import AlreadyRunningError, LlamaAiError, UsageError
from llama_ai.supervisor.identity import is_alive, start_id
from llama_ai.supervisor.ports import check_port_free, listener
from llama_ai.supervisor.state import (
    Claim,
    InstanceRecord,
    LastFailure,
    State,
    claim,
    default_log_path,
    instances,
    read_record,
    record_path,
    write_record,
)
from llama_ai.supervisor.stopping import Outcome, stop_instance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def private_dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@contextlib.contextmanager
def sleeper(program: str = "import time; time.sleep(600)") -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program], start_new_session=True, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def take(name: str = "9090", port: int = 9090) -> Claim:
    return claim(name=name, host="127.0.0.1", port=port, url="http://127.0.0.1:9090", model="m")


def record(**changes: object) -> InstanceRecord:
    base = InstanceRecord(
        name="9090",
        state=State.READY,
        pid=os.getpid(),
        pid_start=start_id(os.getpid()),
        host="127.0.0.1",
        port=9090,
        url="http://127.0.0.1:9090",
        started_at="2026-01-01T00:00:00+00:00",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def dead_pid() -> tuple[int, str]:
    with sleeper() as process:
        start = start_id(process.pid)
    assert start is not None
    return process.pid, start


def stored(**changes: object) -> InstanceRecord:
    """A record on disk whose supervisor is dead."""
    pid, start = dead_pid()
    result = record(pid=pid, pid_start=start, **changes)
    record_path("x").parent.mkdir(mode=0o700, exist_ok=True)
    write_record(result)
    return result


def test_a_process_is_its_pid_and_its_start() -> None:
    with sleeper() as process:
        start = start_id(process.pid)
        assert is_alive(process.pid, start)
        assert not is_alive(process.pid, "1@another-boot")
        assert not is_alive(process.pid, None)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(process.pid, start), "a zombie does not run"


def test_names_with_parentheses_and_spaces_do_not_confuse(tmp_path: Path) -> None:
    process = tmp_path / "77"
    process.mkdir()
    fields = " ".join(str(number) for number in range(4, 53))
    (process / "stat").write_text(f"77 (a) Z (b) S {fields}\n")
    boot = tmp_path / "sys/kernel/random"
    boot.mkdir(parents=True)
    (boot / "boot_id").write_text("some-boot\n")
    assert start_id(77, tmp_path) == "22@some-boot"


def test_a_record_survives_the_disk_and_holds_all() -> None:
    full = record(
        engine_pid=5,
        engine_start="1@b",
        profile={"name": "p", "ctx_size": 4096},
        last_failure=LastFailure(kind="crash", message="m", at="t"),
        restarts=3,
        log_path="/l",
    )
    record_path("9090").parent.mkdir()
    write_record(full)
    assert read_record(record_path("9090")) == full
    assert record_path("9090").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"state": "odd"}', b"\xff", b'{"name":1}']
)
def test_files_that_are_not_ours_are_no_instances(content: bytes) -> None:
    path = record_path("9090")
    path.parent.mkdir()
    path.write_bytes(content)
    assert read_record(path) is None
    assert instances() == []


def test_a_claim_writes_the_file_and_takes_it_away() -> None:
    with take() as held:
        (found,) = instances()
        assert found == held.record
        assert found.state is State.BUILDING
        assert found.supervised
        assert record_path("9090").parent.stat().st_mode & 0o777 == 0o700
    assert not record_path("9090").exists()


def test_a_failed_instance_leaves_its_reason() -> None:
    with take() as held:
        failure = LastFailure(kind="crash", message="it crashed", at="now")
        held.update(state=State.FAILED, last_failure=failure)
    found = read_record(record_path("9090"))
    assert found is not None
    assert found.last_failure == failure
    with take():  # and it is in nobody's way
        pass
    assert not record_path("9090").exists()


def test_a_full_disk_for_the_state_is_noted_and_stops_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with take() as held:
        with monkeypatch.context() as patch:
            patch.setattr(
                "llama_ai.paths.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "full"))
            )
            held.update(state=State.READY)
        assert getattr(held.write_error, "errno", None) == 28
        held.update(restarts=1)
        assert getattr(held, "write_error", "?") is None
        (found,) = instances()
        assert (found.state, found.restarts) == (State.READY, 1)


@pytest.mark.parametrize(("name", "port"), [("9090", 1), ("other", 9090)])
def test_a_second_claim_names_the_first(name: str, port: int) -> None:
    with take(), pytest.raises(AlreadyRunningError) as caught:
        take(name, port)
    assert f"pid {os.getpid()}" in caught.value.message
    assert "stop 9090" in (caught.value.hint or "")
    with take(name, port):
        pass


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "-f", "a b", "x" * 65])
def test_names_that_could_leave_the_directory_are_refused(name: str) -> None:
    with pytest.raises(UsageError):
        take(name)
    with pytest.raises(UsageError):
        default_log_path(name)


def test_stale_files_go() -> None:
    pid, start = dead_pid()
    stored(engine_pid=pid, engine_start=start)
    assert instances() == []
    assert not record_path("9090").exists()


def test_a_reused_pid_is_not_ours() -> None:
    # Our own pid, but as if it had been another process before.
    stored(engine_pid=os.getpid(), engine_start="1@another-boot")
    assert instances() == []


def test_an_orphan_is_named_when_its_place_is_wanted() -> None:
    with sleeper() as engine:
        stored(engine_pid=engine.pid, engine_start=start_id(engine.pid))
        (found,) = instances()
        assert found.orphaned
        with pytest.raises(AlreadyRunningError) as caught:
            take()
        assert f"pid {engine.pid}" in caught.value.message
        assert "stop 9090" in (caught.value.hint or "")
        assert engine.poll() is None, "nothing that we did not start is touched"


def test_stopping_an_orphan_ends_its_group_and_removes_the_file() -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with sleeper(program) as engine:
        assert engine.stdout is not None
        child = int(engine.stdout.readline())
        child_start = start_id(child)
        found = stored(engine_pid=engine.pid, engine_start=start_id(engine.pid))
        assert stop_instance(found) is Outcome.ORPHAN_ENDED
        assert engine.wait() == -signal.SIGTERM
        # The signal has been sent to the group; how soon the child is gone is the kernel's affair.
        for _ in range(100):
            if not is_alive(child, child_start):
                break
            time.sleep(0.05)
        assert not is_alive(child, child_start)
        assert not record_path("9090").exists()


def test_stopping_never_touches_a_process_with_another_start() -> None:
    with sleeper() as stranger:
        found = stored(engine_pid=stranger.pid, engine_start="1@another-boot")
        assert stop_instance(found) is Outcome.FORGOTTEN
        assert stranger.poll() is None


def test_a_supervisor_that_does_not_end_is_named() -> None:
    program = "import signal,time; signal.signal(15, 1); print(1, flush=True); time.sleep(600)"
    with sleeper(program) as deaf:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        found = record(pid=deaf.pid, pid_start=start_id(deaf.pid))
        with pytest.raises(LlamaAiError) as caught:
            stop_instance(found, timeout_s=0.2)
        assert f"kill -9 {deaf.pid}" in (caught.value.hint or "")
        assert deaf.poll() is None


def test_a_free_port_is_free_and_a_taken_one_names_its_holder() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert listener(port) == os.getpid()
        with pytest.raises(AlreadyRunningError) as caught:
            check_port_free("127.0.0.1", port)
        assert f"pid {os.getpid()}" in caught.value.message
    assert listener(port) is None
    check_port_free("127.0.0.1", port)


def test_our_own_instance_is_named_as_such() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with (
            take("mine", port),
            pytest.raises(AlreadyRunningError, match="instance 'mine'") as caught,
        ):
            check_port_free("127.0.0.1", port)
        assert "stop mine" in (caught.value.hint or "")


def test_an_address_of_another_machine_is_a_usage_error() -> None:
    for host in ("192.0.2.1", "no such host"):
        with pytest.raises(UsageError):
            check_port_free(host, 9090)


def test_the_listener_is_found_in_a_recorded_proc(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:2382 00000000:0000 01 00000000:00000000 00:00000000 00000000  0 0 11 1\n"
        "   1: 0100007F:2382 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 12 1\n"
    )
    for pid, inode in ((100, 11), (200, 12)):
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "fd" / "3").symlink_to(f"socket:[{inode}]")
    assert listener(9090, proc=tmp_path) == 200
    assert listener(9091, proc=tmp_path) is None


def test_records_are_plain_json_without_secrets() -> None:
    with take():
        data = json.loads(record_path("9090").read_text())
    assert set(data) == {
        "name", "state", "pid", "pid_start", "host", "port", "url", "started_at", "model",
        "profile", "log_path", "engine_pid", "engine_start", "restarts", "last_failure", "detail",
    }  # fmt: skip
