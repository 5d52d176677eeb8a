"""A small stand-in for the hub: a real HTTP server on loopback that serves real files, and faults.

It redirects files to a "CDN" under another host name, as the hub does, and notes every request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(kw_only=True)
class Faults:
    """What goes wrong, and how often. A count is used up by one request each."""

    statuses: list[int] = field(default_factory=list)
    """Answers of the CDN before it does its work."""
    api_statuses: list[int] = field(default_factory=list)
    """The same of the API."""
    retry_after: str | None = None
    break_after: list[int] = field(default_factory=list)
    """Bytes after which a transfer's connection is cut."""
    stall_after: list[int] = field(default_factory=list)
    """Bytes after which a transfer sends nothing for ``stall_s``."""
    stall_s: float = 3
    chunk_delay_s: float = 0
    no_ranges: bool = False
    longer_by: int = 0
    """Bytes that the CDN sends beyond the file's size (without a length header)."""
    corrupt: bool = False
    """The CDN sends other bytes of the same length."""


@dataclass(kw_only=True)
class Repo:
    """One repository: names and the files that hold their content."""

    files: dict[str, Path]
    token: str | None = None
    gated: bool = False
    downloads: int = 0


@dataclass(kw_only=True)
class Request:
    """What was asked and how much was sent."""

    method: str
    path: str
    range: str | None
    authorized: bool
    sent_bytes: int = 0


class HubServer:
    """The server; ``url`` is what ``HF_ENDPOINT`` gets."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults = Faults()
        self.requests: list[Request] = []
        self.hashes: dict[Path, tuple[tuple[int, int], str]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def cdn(self) -> str:
        """The same server under another name: a token must not get there."""
        return f"http://localhost:{self.port}"

    @property
    def transferred_bytes(self) -> int:
        """Of file content, all requests together."""
        return sum(one.sent_bytes for one in self.requests if one.path.startswith("/cdn/"))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def sha256(self, path: Path) -> str:
        """Of a file; of a hole-filled giant its size and start, which no test downloads whole."""
        status = path.stat()
        key = (status.st_size, status.st_mtime_ns)
        known = self.hashes.get(path)
        if known is None or known[0] != key:
            digest = hashlib.sha256()
            with path.open("rb") as stream:
                if status.st_size > 1 << 30:
                    digest.update(str(status.st_size).encode() + stream.read(1 << 20))
                else:
                    digest.update(stream.read())
            known = self.hashes[path] = (key, digest.hexdigest())
        return known[1]


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        noted: Request

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_HEAD(self) -> None:
            self._serve()

        def do_GET(self) -> None:
            self._serve()

        def _serve(self) -> None:
            parts = urlsplit(self.path)
            self.noted = Request(
                method=self.command,
                path=unquote(parts.path),
                range=self.headers.get("Range"),
                authorized="Authorization" in self.headers,
            )
            hub.requests.append(self.noted)
            try:
                if parts.path.startswith("/cdn/"):
                    self._cdn(unquote(parts.path.removeprefix("/cdn/")))
                elif parts.path.startswith("/api/models/"):
                    self._repo(unquote(parts.path.removeprefix("/api/models/")))
                elif parts.path == "/api/models":
                    self._search(parse_qs(parts.query).get("search", [""])[0])
                else:
                    self._resolve(unquote(parts.path).lstrip("/"))
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _answer(
            self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _fault(self, statuses: list[int]) -> bool:
            if not statuses:
                return False
            wait = hub.faults.retry_after
            self._answer(statuses.pop(0), headers={"Retry-After": wait} if wait else {})
            return True

        def _allowed(self, name: str) -> Repo | None:
            repo = hub.repos.get(name)
            if repo is None:
                self._answer(404, headers={"X-Error-Code": "RepoNotFound"})
                return None
            given = self.headers.get("Authorization")
            if repo.token is not None and given != f"Bearer {repo.token}":
                self._answer(401, headers={"X-Error-Code": "RepoNotFound"})
                return None
            if repo.gated:
                self._answer(403, headers={"X-Error-Code": "GatedRepo"})
                return None
            return repo

        def _repo(self, rest: str) -> None:
            if self._fault(hub.faults.api_statuses):
                return
            name = rest.partition("/revision/")[0]
            repo = self._allowed(name)
            if repo is None:
                return
            siblings: list[dict[str, Any]] = []
            for file, path in repo.files.items():
                size = path.stat().st_size
                lfs = {"sha256": hub.sha256(path), "size": size, "pointerSize": 134}
                siblings.append({"rfilename": file, "size": size, "blobId": "a" * 40, "lfs": lfs})
            body = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}
            self._json(body)

        def _search(self, words: str) -> None:
            if self._fault(hub.faults.api_statuses):
                return
            found = [
                {"id": name, "modelId": name, "downloads": repo.downloads}
                for name, repo in hub.repos.items()
                if words.lower() in name.lower()
            ]
            self._json(sorted(found, key=lambda one: -int(str(one["downloads"]))))

        def _json(self, body: object) -> None:
            self._answer(
                200, json.dumps(body).encode(), headers={"Content-Type": "application/json"}
            )

        def _resolve(self, rest: str) -> None:
            name, _, tail = rest.partition("/resolve/")
            repo = self._allowed(name)
            if repo is None:
                return
            path = repo.files.get(tail.partition("/")[2])
            if path is None:
                self._answer(404, headers={"X-Error-Code": "EntryNotFound"})
                return
            file = tail.partition("/")[2]
            self._answer(
                302,
                headers={
                    "Location": f"{hub.cdn}/cdn/{name}/{file}".replace(" ", "%20"),
                    "X-Linked-Etag": f'"{hub.sha256(path)}"',
                    "X-Linked-Size": str(path.stat().st_size),
                    "X-Repo-Commit": COMMIT,
                },
            )

        def _cdn(self, rest: str) -> None:
            faults = hub.faults
            if self._fault(faults.statuses):
                return
            owner, repo, file = rest.split("/", 2)
            path = hub.repos[f"{owner}/{repo}"].files[file]
            size = path.stat().st_size
            start, end = 0, size
            wanted = self.headers.get("Range")
            ranged = wanted is not None and not faults.no_ranges
            if wanted is not None and ranged:
                first, _, last = wanted.removeprefix("bytes=").partition("-")
                start, end = int(first), min(int(last) + 1 if last else size, size)
                if start >= size:
                    self._answer(416, headers={"Content-Range": f"bytes */{size}"})
                    return
            self.send_response(206 if ranged else 200)
            self.send_header("ETag", '"of-the-cdn"')
            if ranged:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            if faults.longer_by:
                self.send_header("Connection", "close")
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(end - start))
            self.end_headers()
            self._body(path, start, end)

        def _body(self, path: Path, start: int, end: int) -> None:
            faults = hub.faults
            cut = faults.break_after.pop(0) if faults.break_after else None
            stall = faults.stall_after.pop(0) if faults.stall_after else None
            with path.open("rb") as stream:
                stream.seek(start)
                left = end - start
                while left:
                    data = stream.read(min(left, 1 << 16))
                    if faults.corrupt:
                        data = bytes(byte ^ 1 for byte in data)
                    if cut is not None and self.noted.sent_bytes + len(data) > cut:
                        data = data[: cut - self.noted.sent_bytes]
                        self.wfile.write(data)
                        self.noted.sent_bytes += len(data)
                        self.close_connection = True
                        return
                    if stall is not None and self.noted.sent_bytes >= stall:
                        self.wfile.flush()
                        time.sleep(faults.stall_s)
                        self.close_connection = True
                        return
                    self.wfile.write(data)
                    self.noted.sent_bytes += len(data)
                    left -= len(data)
                    if faults.chunk_delay_s:
                        time.sleep(faults.chunk_delay_s)
            if faults.longer_by:
                self.wfile.write(b"x" * faults.longer_by)

    return Handler


@contextlib.contextmanager
def hub_server() -> Iterator[HubServer]:
    """A server for the time of a test."""
    server = HubServer()
    try:
        yield server
    finally:
        server.close()
