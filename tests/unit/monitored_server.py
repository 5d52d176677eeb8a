"""A server that answers as llama-server does, and misbehaves as the real one cannot be made to."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

ERROR = '{"error":{"message":"%s","code":%d}}'


class MonitoredServer:
    """Faults are attributes that a test changes while it runs."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.key: str | None = None
        self.off: set[str] = set()
        """Routes that are switched off (501), as without --metrics or --slots."""
        self.unknown: set[str] = {"/kv-cache"}
        self.hang: set[str] = set()
        self.dribble: set[str] = set()
        self.delay: dict[str, float] = {}
        self.loading = False
        self.sleeping = False
        self.status: dict[str, int] = {}
        self.body: dict[str, bytes] = {}
        self.counters: dict[str, float] = {
            "llamacpp:requests_processing": 0,
            "llamacpp:n_decode_total": 0,
            "llamacpp:prompt_tokens_total": 0,
            "llamacpp:tokens_predicted_total": 0,
        }
        self.slots: list[dict[str, Any]] = [{"id": 0, "n_ctx": 512, "is_processing": False}]
        self._release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._answer(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that gave up waiting

        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Nobody listens from now on."""
        self._release.set()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path
        self.asked.append(path)
        if path in self.hang:
            self._release.wait(30)
            return
        self._release.wait(self.delay.get(path, 0))
        status, body = self._content(path, handler.headers.get("Authorization"))
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if path in self.dribble:
            for byte in body:
                if self._release.wait(0.05):
                    return
                handler.wfile.write(bytes([byte]))
                handler.wfile.flush()
            return
        handler.wfile.write(body)

    def _content(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        if path in self.status:
            return self.status[path], self.body.get(path, b"{}")
        if path in self.body:
            return 200, self.body[path]
        if self.loading:
            return 503, (ERROR % ("Loading model", 503)).encode()
        if path == "/health":
            return 200, b'{"status":"ok"}'
        if self.key is not None and authorization != f"Bearer {self.key}":
            return 401, (ERROR % ("Invalid API Key", 401)).encode()
        if path in self.off:
            return 501, (ERROR % (f"This server does not support {path}", 501)).encode()
        if path == "/metrics":
            lines = [f"{name} {value}" for name, value in self.counters.items()]
            return 200, ("\n".join(lines) + "\n").encode()
        if path == "/slots":
            self.sleeping = False  # asking wakes it
            return 200, json.dumps(self.slots).encode()
        if path == "/props":
            props = {"model_alias": "stub", "is_sleeping": self.sleeping, "build_info": "b1"}
            return 200, json.dumps(props).encode()
        return 404, (ERROR % ("File Not Found", 404)).encode()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(look: Any, patience_s: float = 15) -> None:
    """Until ``look()`` is true."""
    deadline_s = time.monotonic() + patience_s
    while not look():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.02)
