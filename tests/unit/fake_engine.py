"""A small HTTP server that behaves like llama-server where the supervisor looks, and has faults.

Run as a program: it takes the same ``--host`` and ``--port`` and answers ``/health`` and
``/slots``. The other flags are faults that the real engine cannot be brought to produce at will.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--load-s", type=float, default=0.05, help="503 for so long")
    parser.add_argument("--bind-after-s", type=float, default=0, help="sleep before binding")
    parser.add_argument("--say", action="append", default=[], help="print this at the start")
    parser.add_argument("--exit-at-load", type=int, help="end with this status instead of loading")
    parser.add_argument("--signal-at-load", type=int, help="die by this signal while loading")
    parser.add_argument("--say-later", help="print this 0.1 s after being ready, and live on")
    parser.add_argument("--crash-after", type=int, help="SIGSEGV after so many other requests")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--grandchild", action="store_true", help="leave a process with our pipe")
    parser.add_argument("--sibling", action="store_true", help="leave a deaf process in our group")
    parser.add_argument("--flood-mb", type=int, default=0, help="print so much once ready")
    parser.add_argument("--stuck", action="store_true", help="busy for ever, no token advances")
    parser.add_argument("--busy", action="store_true", help="busy, and tokens advance")
    parser.add_argument("--sick", action="store_true", help="/health says 500 after the first 200")
    parser.add_argument("--fail-first", type=int, default=0, help="exit 1 on so many first starts")
    parser.add_argument("--counter", type=Path, help="a file that counts the starts")
    return parser.parse_args()


def main() -> None:
    options = parse()
    start = 0
    if options.counter is not None:
        start = int(options.counter.read_text()) if options.counter.exists() else 0
        options.counter.write_text(str(start + 1))
    for text in options.say:
        print(text, flush=True)
    if start < options.fail_first:
        sys.exit(1)
    if options.exit_at_load is not None:
        sys.exit(options.exit_at_load)
    if options.signal_at_load is not None:
        os.kill(os.getpid(), options.signal_at_load)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.grandchild:
        grandchild = subprocess.Popen(
            [sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"],
            # Its own session: it leaves the group, and holds our pipe all the same.
            start_new_session=True,
        )
        print(f"grandchild {grandchild.pid}", flush=True)
    if options.sibling:
        code = (
            "import signal, time; signal.signal(15, 1); print('deaf', flush=True); time.sleep(99)"
        )
        sibling = subprocess.Popen([sys.executable, "-c", code])
        print(f"sibling {sibling.pid}", flush=True)
    serve(options)


def serve(options: argparse.Namespace) -> None:
    ready_at = time.monotonic() + options.load_s
    requests = 0
    sick = False

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            nonlocal requests, sick
            now = time.monotonic()
            if now < ready_at:
                self.answer(503, b'{"error":{"message":"Loading model"}}')
            elif self.path == "/health":
                self.answer(500 if sick else 200, b'{"status":"ok"}')
                sick = options.sick
            elif self.path == "/slots":
                done = int(now * 1000) if options.busy else 0
                busy = options.stuck or options.busy
                slot = {
                    "id": 0,
                    "id_task": 7,
                    "is_processing": busy,
                    "n_prompt_tokens_processed": 5,
                    "next_token": [{"n_decoded": done}],
                }
                self.answer(200, json.dumps([slot]).encode())
            else:
                requests += 1
                if options.crash_after is not None and requests >= options.crash_after:
                    os.kill(os.getpid(), signal.SIGSEGV)
                    time.sleep(60)  # the signal takes its time; the answer must not be faster
                self.answer(200, self.headers.get("Authorization", "").encode())

        def answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    time.sleep(options.bind_after_s)
    ThreadingHTTPServer.allow_reuse_address = True
    try:
        server = ThreadingHTTPServer((options.host, options.port), Handler)
    except OSError:
        print(
            "0.00.150.138 E srv         start: couldn't bind HTTP server socket, "
            f"hostname: {options.host}, port: {options.port}",
            flush=True,
        )
        sys.exit(1)
    threading.Thread(target=later, args=(options,), daemon=True).start()
    server.serve_forever()


def later(options: argparse.Namespace) -> None:
    time.sleep(options.load_s + 0.1)
    if options.say_later:
        print(options.say_later, flush=True)
    line = b"x" * 99 + b"\n"
    for _ in range(options.flood_mb * 10):
        sys.stdout.buffer.write(line * 1000)
    if options.flood_mb:
        sys.stdout.buffer.write(b"flood over\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
