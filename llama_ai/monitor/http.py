"""One small HTTP GET with one deadline for everything: names, connection, and the whole answer.

HTTP libraries give a time limit per read, which a server that dribbles can stretch for ever, and
cost more processor time per request than the monitor may use altogether.
"""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from llama_ai.errors import UsageError

LARGEST_ANSWER_BYTES = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where the server is. ``prefix`` is its ``--api-prefix``; the key goes into a header only."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""
    api_key: str | None = None

    def __repr__(self) -> str:
        return f"Target({self.url!r})"  # a repr can end in a traceback: no key

    @property
    def url(self) -> str:
        """The address as a user writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


def parse_target(url: str, api_key: str | None) -> Target:
    """``http[s]://host[:port][/prefix]``; raises :class:`~llama_ai.errors.UsageError`."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"--url is not an address: {error}") from error
    if not text.isprintable() or " " in text:
        raise UsageError("--url holds a blank or a character that cannot be printed")
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            "--url holds a name or a password, which everybody here could read",
            hint="give a key with --api-key-file FILE or LLAMA_AI_API_KEY",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"--url {url} is not the address of a server", hint="write http://HOST:PORT"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"--url {url}: only an address and a path prefix are taken")
    tls = parts.scheme == "https"
    # A list of keys is allowed where the server reads it; any of them opens.
    key = api_key.split(",")[0].strip() if api_key else None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise UsageError("the API key holds characters that no header can carry")
    return Target(
        host=parts.hostname,
        port=port or (443 if tls else 80),
        tls=tls,
        prefix=parts.path.rstrip("/"),
        api_key=key or None,
    )


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A status and a body."""

    status: int
    body: bytes


def get(target: Target, path: str, timeout_s: float) -> Answer:
    """``GET path``.

    Raises :class:`TimeoutError` after ``timeout_s`` (looking up a name is bounded by the system's
    resolver), :class:`OSError` when there is no connection, :class:`ValueError` when the answer is
    not HTTP or too long.
    """
    deadline_s = time.monotonic() + timeout_s
    # An address of "every interface" is one that a client cannot use.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(target.host, target.host)  # noqa: S104
    with socket.create_connection((host, target.port), timeout=timeout_s) as plain:
        if not target.tls:
            return _exchange(plain, target, path, deadline_s)
        plain.settimeout(_left_s(deadline_s))
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname=target.host) as secure:
            return _exchange(secure, target, path, deadline_s)


def _exchange(connection: socket.socket, target: Target, path: str, deadline_s: float) -> Answer:
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [
        # HTTP/1.0: the answer ends with the connection, and is never chunked.
        f"GET {target.prefix}{path} HTTP/1.0",
        f"Host: {host}:{target.port}",
        "Connection: close",
    ]
    if target.api_key is not None:
        lines.append(f"Authorization: Bearer {target.api_key}")
    connection.settimeout(_left_s(deadline_s))
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("ascii", "replace"))
    answer = bytearray()
    while True:
        connection.settimeout(_left_s(deadline_s))
        chunk = connection.recv(1 << 16)
        if not chunk:
            break
        answer += chunk
        if len(answer) > LARGEST_ANSWER_BYTES:
            raise ValueError("the answer is too long")
    head, _, body = bytes(answer).partition(b"\r\n\r\n")
    version, _, status = head.split(b"\r\n", 1)[0].partition(b" ")
    if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
        raise ValueError("the answer is not HTTP")
    return Answer(status=int(status[:3]), body=body)


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("no answer in time")
    return left_s
