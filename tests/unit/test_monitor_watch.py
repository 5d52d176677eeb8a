"""How each kind of server is seen: over real sockets, with the faults of a small server."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from llama_ai.monitor.http import get, parse_target
from llama_ai.monitor.judge import Connection, judge
from llama_ai.monitor.sample import Instance
from llama_ai.monitor.watch import EngineWatch, View
from tests.unit.monitored_server import MonitoredServer, free_port, wait_until


@pytest.fixture
def server() -> Iterator[MonitoredServer]:
    with MonitoredServer() as running:
        yield running


@pytest.fixture
def watch() -> Iterator[EngineWatch]:
    watching = EngineWatch(0.05, counters_timeout_s=0.6, health_timeout_s=0.3)
    watching.start()
    yield watching
    watching.close()


def see(watch: EngineWatch, connection: Connection) -> View:
    wait_until(lambda: watch.view().connection is connection)
    return watch.view()


def test_a_server_that_works(server: MonitoredServer, watch: EngineWatch) -> None:
    watch.watch(parse_target(server.url, None))
    wait_until(lambda: watch.view().settled and watch.view().kv.off)
    view = see(watch, Connection.OK)
    assert view.slots.value[0].ctx_tokens == 512
    assert view.props.value.model == "stub"
    assert view.detail is None


def test_nobody_listens(watch: EngineWatch) -> None:
    watch.watch(parse_target(f"http://127.0.0.1:{free_port()}", None))
    view = see(watch, Connection.REFUSED)
    assert view.detail is not None
    assert "refused" in view.detail
    assert view.settled


def test_a_name_that_does_not_exist(watch: EngineWatch) -> None:
    watch.watch(parse_target("http://no-such-host.invalid:9", None))
    assert see(watch, Connection.REFUSED).detail


def test_loading(server: MonitoredServer, watch: EngineWatch) -> None:
    server.loading = True
    watch.watch(parse_target(server.url, None))
    assert see(watch, Connection.LOADING).detail == "Loading model"
    server.loading = False
    see(watch, Connection.OK)


def test_a_hung_server_is_told_from_a_busy_one(server: MonitoredServer, watch: EngineWatch) -> None:
    """Busy: /health answers, the counters do not. Hung: nothing answers."""
    watch.watch(parse_target(server.url, None))
    wait_until(lambda: watch.view().settled)
    server.counters["llamacpp:n_decode_total"] += 1
    server.hang |= {"/metrics", "/slots"}
    time.sleep(0.4)
    assert see(watch, Connection.OK).slots.value is not None
    server.hang.add("/health")
    view = see(watch, Connection.TIMEOUT)
    assert view.slots.value is not None  # the last values stay; the sampler marks them as late
    wait_until(lambda: "for" in (watch.view().detail or ""))
    server.hang.clear()
    see(watch, Connection.OK)


def test_asking_never_waits_for_a_hung_server(server: MonitoredServer, watch: EngineWatch) -> None:
    server.hang |= {"/metrics", "/slots", "/health", "/props"}
    watch.watch(parse_target(server.url, None))
    wait_until(lambda: "/health" in server.asked)
    # Were any of these to wait for the server, it would be the server's 30 s.
    finished = threading.Event()

    def use() -> None:
        for _ in range(1000):
            watch.view()
        watch.watch(None)
        watch.close()
        finished.set()

    threading.Thread(target=use, daemon=True).start()
    assert finished.wait(10)


def test_a_dribbling_server_is_cut_off(server: MonitoredServer) -> None:
    """A byte every 50 ms never exceeds a time limit per read; the deadline is for the whole."""
    server.dribble.add("/slots")
    server.body["/slots"] = b" " * 400 + b"[]"
    with pytest.raises(TimeoutError):
        get(parse_target(server.url, None), "/slots", 0.3)


def test_the_wrong_key_and_the_right_one(server: MonitoredServer, watch: EngineWatch) -> None:
    server.key = "right"
    watch.watch(parse_target(server.url, None))
    assert "wants a key" in (see(watch, Connection.UNAUTHORISED).detail or "")
    watch.watch(parse_target(server.url, "wrong"))
    wait_until(lambda: "refuses this key" in (watch.view().detail or ""))
    watch.watch(parse_target(server.url, "right"))
    see(watch, Connection.OK)
    wait_until(lambda: watch.view().slots.value is not None)


def test_routes_that_are_off(server: MonitoredServer, watch: EngineWatch) -> None:
    server.off |= {"/metrics", "/slots"}
    watch.watch(parse_target(server.url, None))
    wait_until(lambda: watch.view().settled)
    view = see(watch, Connection.OK)
    assert view.slots.off
    assert view.metrics.off
    assert "does not support" in (view.slots.problem or "")
    time.sleep(0.4)  # and they are not asked again and again
    assert server.asked.count("/metrics") == 1
    assert server.asked.count("/slots") == 1


def test_another_program(server: MonitoredServer, watch: EngineWatch) -> None:
    for path in ("/metrics", "/slots", "/health", "/props"):
        server.body[path] = b"<html>welcome</html>"
    watch.watch(parse_target(server.url, None))
    assert "not what a llama-server answers" in (see(watch, Connection.FOREIGN).detail or "")


def test_something_that_is_not_http(watch: EngineWatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.settimeout(10)
        stop = threading.Event()

        def chat() -> None:
            while not stop.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"220 mail ready\r\n")

        thread = threading.Thread(target=chat, daemon=True)
        thread.start()
        watch.watch(parse_target(f"http://127.0.0.1:{listener.getsockname()[1]}", None))
        see(watch, Connection.FOREIGN)
        stop.set()
        watch.close()


def test_an_endless_answer_is_refused(server: MonitoredServer) -> None:
    server.body["/slots"] = b"[" + b"1," * (5 << 20)
    with pytest.raises(ValueError, match="too long"):
        get(parse_target(server.url, None), "/slots", 20)


def test_a_sleeping_engine_is_not_woken(server: MonitoredServer, watch: EngineWatch) -> None:
    server.sleeping = True
    watch.watch(parse_target(server.url, None))
    see(watch, Connection.SLEEPING)
    time.sleep(0.4)
    assert server.sleeping
    assert "/slots" not in server.asked
    # A request wakes it; then the slots are read.
    server.sleeping = False
    server.counters["llamacpp:requests_processing"] = 1
    wait_until(lambda: "/slots" in server.asked)


def test_an_idle_engine_is_asked_for_its_slots_once(
    server: MonitoredServer, watch: EngineWatch
) -> None:
    watch.watch(parse_target(server.url, None))
    wait_until(lambda: server.asked.count("/metrics") > 8)
    assert server.asked.count("/slots") == 1
    # They are as fresh as the counters that say that nothing happened.
    view = watch.view()
    assert view.slots.at_s == view.metrics.at_s
    server.counters["llamacpp:n_decode_total"] += 1
    wait_until(lambda: server.asked.count("/slots") == 2)


def test_a_restarted_engine_is_another_one(server: MonitoredServer, watch: EngineWatch) -> None:
    server.counters["llamacpp:tokens_predicted_total"] = 500
    watch.watch(parse_target(server.url, None))
    wait_until(lambda: watch.view().settled)
    before = watch.view().generation
    server.counters["llamacpp:tokens_predicted_total"] = 3
    wait_until(lambda: watch.view().generation > before and watch.view().slots.at_s is not None)


def test_an_answer_of_the_past_is_dropped(server: MonitoredServer) -> None:
    """The target changes while a read is on its way: its answer must not be shown as the new's."""
    watch = EngineWatch(0.05)  # not started: this test does the reading
    old = parse_target(server.url, None)
    server.delay["/metrics"] = 0.5
    watch.watch(old)
    reading = threading.Thread(target=watch.read_counters, args=(old,))
    reading.start()
    wait_until(lambda: "/metrics" in server.asked)
    watch.watch(parse_target(f"http://127.0.0.1:{free_port()}", None))
    reading.join()
    assert watch.view().metrics.value is None
    assert watch.view().slots.value is None


def test_the_key_goes_into_a_header_and_the_prefix_before_the_path() -> None:
    got: list[bytes] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                got.append(connection.recv(4096))
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nbody")

        thread = threading.Thread(target=answer)
        thread.start()
        found = get(parse_target(f"http://127.0.0.1:{port}/api", "k"), "/slots", 5)
        thread.join()
    assert (found.status, found.body) == (200, b"body")
    lines = got[0].decode().split("\r\n")
    assert lines[0] == "GET /api/slots HTTP/1.0"
    assert "Authorization: Bearer k" in lines


INSTANCE = Instance(name="x", state="ready", url="http://x")


@pytest.mark.parametrize(
    ("said", "connection", "expected"),
    [
        ("ready", Connection.OK, "ready"),
        ("ready", Connection.UNKNOWN, "ready"),
        ("ready", Connection.TIMEOUT, "hung"),
        ("degraded", Connection.OK, "degraded"),
        ("degraded", Connection.REFUSED, "unreachable"),
        ("restarting", Connection.REFUSED, "restarting"),
        ("failed", Connection.REFUSED, "failed"),
        ("stopped", Connection.REFUSED, "stopped"),
        ("loading", Connection.LOADING, "loading"),
        ("orphaned", Connection.OK, "orphaned"),
        (None, Connection.UNKNOWN, "connecting"),
        (None, Connection.UNAUTHORISED, "unauthorised"),
        (None, Connection.FOREIGN, "foreign"),
        (None, Connection.SLEEPING, "sleeping"),
    ],
)
def test_one_word_for_what_was_seen(
    said: str | None, connection: Connection, expected: str
) -> None:
    from dataclasses import replace

    instance = None if said is None else replace(INSTANCE, state=said)
    assert judge(instance, connection, "why", has_target=True)[0] == expected


def test_nothing_to_ask() -> None:
    state, detail = judge(None, Connection.UNKNOWN, None, has_target=False)
    assert state == "absent"
    assert detail is not None
    assert "llama-ai serve" in detail


def test_the_slots_of_a_real_answer_survive_json(server: MonitoredServer) -> None:
    answer = get(parse_target(server.url, None), "/slots", 5)
    assert json.loads(answer.body) == server.slots
