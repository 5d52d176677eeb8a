"""systemd's notify protocol over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai.command import Command
from llama_ai.errors import LlamaAiError
from llama_ai.supervisor.notify import Notifier
from llama_ai.supervisor.restart import RestartPolicy
from llama_ai.supervisor.state import Event, State, claim
from llama_ai.supervisor.supervisor import InstanceSpec, supervise

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKE = Path(__file__).with_name("fake_engine.py")


class Manager:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self._socket.settimeout(20)

    def wait_for(self, message: str) -> list[str]:
        """All messages up to this one."""
        got: list[str] = []
        while message not in got:
            got.append(self._socket.recv(4096).decode())
        return got

    def rest(self) -> list[str]:
        got: list[str] = []
        self._socket.setblocking(False)
        try:
            while True:
                got.append(self._socket.recv(4096).decode())
        except BlockingIOError:
            return got

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@llama-ai-{os.getpid()}"
    manager = Manager(address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    (tmp_path / "runtime").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    yield manager
    manager.close()


def run(tmp_path: Path, *faults: str, stop_at: State | None = State.READY, kills: int = 0) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def tell(event: Event) -> None:
        if event.state is State.READY and event.record.restarts < kills:
            assert event.record.engine_pid is not None
            os.kill(event.record.engine_pid, signal.SIGKILL)
        elif event.state is stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    spec = InstanceSpec(
        name="n", host="127.0.0.1", port=port, url="u", log_path=tmp_path / "engine.log"
    )
    argv = (sys.executable, str(FAKE), "--port", str(port), *faults)
    return asyncio.run(
        supervise(
            spec,
            Command(argv=argv, env=dict(os.environ)),
            on_event=tell,
            policy=RestartPolicy(max_identical=2 if kills else 1),
        )
    )


def test_ready_when_healthy_and_stopping_at_the_end(manager: Manager, tmp_path: Path) -> None:
    assert run(tmp_path, kills=1) == 0
    got = manager.rest()
    assert sum(message.startswith("STATUS=ready: ") for message in got) == 2
    order = [got.index(m) for m in ("STATUS=loading: loading the model", "READY=1", "STOPPING=1")]
    assert order == sorted(order)
    assert got.count("READY=1") == 1
    assert got.index("EXTEND_TIMEOUT_USEC=90000000") < got.index("READY=1")
    assert any(m.startswith("STATUS=ready: ready after") for m in got)


def test_a_load_that_fails_is_never_ready(manager: Manager, tmp_path: Path) -> None:
    with pytest.raises(LlamaAiError):
        run(tmp_path, "--exit-at-load", "1", stop_at=None)
    got = manager.rest()
    assert "READY=1" not in got
    assert got[-1] == "STOPPING=1"
    assert any(m.startswith("STATUS=failed: ") for m in got)


def test_the_watchdog_is_fed_by_the_loop(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "40000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert run(tmp_path, "--load-s", "0.5") == 0
    assert manager.rest().count("WATCHDOG=1") >= 3


def test_somebody_elses_watchdog_is_not_ours() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}
    notifier = Notifier(environ, pid=2)
    assert notifier.watchdog_interval_s is None
    notifier.close()
    notifier = Notifier({**environ, "WATCHDOG_PID": "2"}, pid=2)
    assert notifier.watchdog_interval_s == 0.5
    notifier.alive()  # nobody listens at /x: no error
    notifier.close()


def test_while_building_more_time_is_asked_for(manager: Manager) -> None:
    with claim(name="b", host="127.0.0.1", port=1, url="u"):
        got = manager.wait_for("EXTEND_TIMEOUT_USEC=90000000")
    assert got[0].startswith("STATUS=building")


def test_the_engine_does_not_inherit_the_socket(manager: Manager, tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "import os; print('NOTIFY_SOCKET' in os.environ)")
    spec = InstanceSpec(
        name="n", host="127.0.0.1", port=1, url="u", log_path=tmp_path / "engine.log"
    )
    with pytest.raises(LlamaAiError):
        asyncio.run(
            supervise(
                spec,
                Command(argv=argv, env=dict(os.environ)),
                on_event=lambda _: None,
                policy=RestartPolicy(max_identical=1),
            )
        )
    assert b"\nFalse\n" in (tmp_path / "engine.log").read_bytes()


def test_without_a_manager_nothing_is_said() -> None:
    notifier = Notifier({}, pid=1)
    assert not notifier.present
    notifier.ready()
    notifier.status("x")
    assert notifier.watchdog_interval_s is None
