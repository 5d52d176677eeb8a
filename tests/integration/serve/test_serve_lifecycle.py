"""``llama-ai serve``, ``status``, ``stop`` and ``logs`` on the real engine, from start to end."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from llama_ai.supervisor.identity import is_alive, start_id

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.engine

Cli = Any  # the classes of conftest.py, which cannot be imported
Server = Any


def test_start_status_logs_stop(serve: Callable[..., Server], cli: Cli) -> None:
    server = serve()
    record = server.wait_ready()
    assert f"ready    {server.url}" in server.output
    assert record["log_path"] in server.output
    (shown,) = cli.instances()
    assert shown["state"] == "ready"
    assert (shown["pid"], shown["engine_pid"]) == (server.process.pid, record["engine_pid"])
    assert shown["url"] == server.url
    assert shown["restarts"] == 0
    assert shown["last_failure"] is None
    assert shown["profile"]
    table = cli.run("status")
    assert table.returncode == 0
    assert "ready" in table.stdout
    # No hop between client and engine: the engine itself listens.
    answer = httpx.get(f"{server.url}/health")
    assert answer.status_code == 200
    logs = cli.run("logs", "-n", "5")
    assert logs.returncode == 0
    assert len(logs.stdout.splitlines()) == 5
    assert f"listening on {server.url}" in logs.stdout

    stopped = cli.run("stop")
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert server.wait_end() == 0
    server.assert_gone()
    nothing = cli.run("status", "--json")
    assert nothing.returncode == 1
    assert '"instances": []' in nothing.stdout
    assert cli.run("stop").returncode == 1
    assert cli.run("logs").returncode == 0, "the log outlives the server"


def test_an_interrupt_stops_all_and_gives_130(serve: Callable[..., Server]) -> None:
    server = serve()
    server.wait_ready()
    server.process.send_signal(signal.SIGINT)
    assert server.wait_end() == 130
    server.assert_gone()


def test_a_killed_engine_breaks_the_request_in_flight_and_comes_back(
    serve: Callable[..., Server], cli: Cli
) -> None:
    server = serve()
    record = server.wait_ready()
    request = {"prompt": "Once upon a time", "n_predict": -1, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/completion", json=request, timeout=60) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        os.kill(record["engine_pid"], signal.SIGKILL)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in lines:
                pass
    after = server.wait_ready(restarts=1)
    assert after["engine_pid"] != record["engine_pid"]
    assert after["last_failure"]["kind"] == "killed"
    assert after["pid"] == record["pid"]
    assert cli.instances()[0]["restarts"] == 1
    assert httpx.post(
        f"{server.url}/completion", json={"prompt": "Hello", "n_predict": 4}, timeout=60
    ).json()["content"]
    # SIGTERM from anybody stops it all, also while a client waits.
    with httpx.stream("POST", f"{server.url}/completion", json=request, timeout=60) as answer:
        next(answer.iter_lines())
        server.process.terminate()
        assert server.wait_end(12) == 0
    server.assert_gone()


def test_a_second_server_on_the_port_says_who_holds_it(
    serve: Callable[..., Server], cli: Cli, demo_model: Path
) -> None:
    server = serve()
    server.wait_ready()
    second = cli.run("serve", str(demo_model), "--port", str(server.port))
    assert second.returncode == 6
    assert f"pid {server.process.pid}" in second.stderr
    assert f"llama-ai stop {server.port}" in second.stderr
    assert len(second.stderr.splitlines()) <= 2
    assert server.record["state"] == "ready"


def test_a_port_of_somebody_else_is_named_and_nothing_touched(cli: Cli, demo_model: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        refused = cli.run("serve", str(demo_model), "--port", str(port))
    assert refused.returncode == 6
    assert f"pid {os.getpid()}" in refused.stderr
    assert cli.files == []


def test_a_supervisor_killed_leaves_a_named_orphan_that_stop_ends(
    serve: Callable[..., Server], cli: Cli, demo_model: Path
) -> None:
    server = serve()
    record = server.wait_ready()
    server.process.kill()
    server.process.wait()
    engine = (record["engine_pid"], record["engine_start"])
    assert httpx.get(f"{server.url}/health").status_code == 200, "clients lose nothing"
    (shown,) = cli.instances()
    assert (shown["state"], shown["pid"], shown["engine_pid"]) == ("orphaned", None, engine[0])
    again = cli.run("serve", str(demo_model), "--port", str(server.port))
    assert again.returncode == 6
    assert f"pid {engine[0]}" in again.stderr
    assert f"llama-ai stop {server.port}" in again.stderr
    assert is_alive(*engine)

    other = serve()
    other.wait_ready()
    assert f"(pid {engine[0]})" in other.output, "a server elsewhere names the orphan as well"
    assert f"llama-ai stop {server.port}" in other.output

    assert cli.run("stop", str(server.port)).returncode == 0
    assert not is_alive(*engine)
    assert [entry["name"] for entry in cli.instances()] == [str(other.port)]
    assert cli.run("stop", "--all").returncode == 0
    assert other.wait_end() == 0
    other.assert_gone()


def test_it_survives_its_terminal(cli: Cli, demo_model: Path, serve: Callable[..., Server]) -> None:
    del serve  # the server is started by hand here, on a terminal that goes away
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    master, slave = pty.openpty()
    words = ("serve", str(demo_model), "--engine", str(cli.engine), "--port", str(port))
    process = subprocess.Popen(
        ["setsid", "--ctty", *cli.argv(*words, "--ctx-size", "1024", "--backend", "cpu")],
        env=cli.env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        said = b""
        while b"ready    " not in said:
            said += os.read(master, 4096)
        (shown,) = cli.instances()
        os.close(master)  # the terminal closes: SIGHUP, and every write to it fails from now on
        os.kill(shown["engine_pid"], signal.SIGKILL)  # something that it would like to tell
        while True:
            (now,) = cli.instances()
            if now["state"] == "ready" and now["restarts"] == 1:
                break
        assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
        assert cli.run("stop").returncode == 0
        assert process.wait(20) == 0
        assert cli.files == []
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        cli.run("stop", "--all")


def test_the_key_is_in_no_process_list_log_or_state_file(shared: Server) -> None:
    key = b"sk-of-this-test"
    record = shared.record
    for pid in (record["pid"], record["engine_pid"]):
        assert key not in Path(f"/proc/{pid}/cmdline").read_bytes()
    files = [path for path in shared.cli.state.parent.rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in files)
    assert any(path.suffix == ".json" for path in files)
    assert [path for path in files if key in path.read_bytes()] == []
    assert httpx.get(f"{shared.url}/v1/models").status_code == 401
    assert start_id(record["engine_pid"]) == record["engine_start"]
