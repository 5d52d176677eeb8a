"""Tell the service manager what we are doing: systemd's notify protocol over its datagram socket.

Without ``NOTIFY_SOCKET`` every call does nothing. A message that cannot be delivered is dropped:
the manager's own time-outs are the safety net.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Meant for the supervisor alone; its children must not inherit them."""

EXTEND_EVERY_S = 20.0
EXTENSION_S = 90.0


class Notifier:
    """``watchdog_interval_s`` is how often :meth:`alive` is due; ``None`` without a watchdog."""

    def __init__(self, environ: Mapping[str, str], *, pid: int) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._socket: socket.socket | None = None
        self._ready_told = False
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self.watchdog_interval_s = _watchdog_s(environ, pid) if self.present else None

    @property
    def present(self) -> bool:
        """Whether a service manager listens."""
        return self._socket is not None

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send(f"STATUS={text.splitlines()[0] if text else ''}")

    def ready(self) -> None:
        """Start-up is complete; said once, however often the engine becomes ready again."""
        if not self._ready_told:
            self._ready_told = True
            self._send("READY=1")

    def stopping(self) -> None:
        """We are on our way out, by ourselves or because we were asked."""
        self._send("STOPPING=1")

    def extend(self) -> None:
        """Still starting: move the manager's start time-out ``EXTENSION_S`` ahead of now."""
        if not self._ready_told:
            self._send(f"EXTEND_TIMEOUT_USEC={int(EXTENSION_S * 1e6)}")

    def alive(self) -> None:
        """Feed the watchdog."""
        self._send("WATCHDOG=1")

    def close(self) -> None:
        """Close the socket; later calls do nothing."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        # A leading @ stands for the zero byte of an abstract address.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with contextlib.suppress(OSError):
            self._socket.sendto(message.encode(), address)


def from_environment() -> Notifier:
    """The notifier of this process."""
    return Notifier(os.environ, pid=os.getpid())


class Patience:
    """Asks the service manager for more time while the caller is busy building, until closed.

    A thread, because nothing else runs then; only started when a manager listens.
    """

    def __init__(self, text: str) -> None:
        self._over = threading.Event()
        notifier = from_environment()
        if notifier.present:
            notifier.status(text)
            threading.Thread(
                target=self._extend, args=(notifier,), name="patience", daemon=True
            ).start()

    def close(self) -> None:
        """No more time is needed, or somebody else asks for it from now on."""
        self._over.set()

    def _extend(self, notifier: Notifier) -> None:
        while True:
            notifier.extend()
            if self._over.wait(EXTEND_EVERY_S):
                break
        notifier.close()


def _watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Half of the manager's patience, as systemd recommends."""
    if environ.get("WATCHDOG_PID") not in (None, "", str(pid)):
        return None
    try:
        patience_s = int(environ.get("WATCHDOG_USEC", "")) / 1e6
    except ValueError:
        return None
    return patience_s / 2 if patience_s > 0 else None
