"""The monitor in a terminal of its own: keys, signals, and how it leaves the terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import private_env
from tests.unit.monitored_server import MonitoredServer

if TYPE_CHECKING:
    from collections.abc import Iterator

RECORDING = Path(__file__).parent / "recordings" / "generating.jsonl"
PATIENCE_S = 60
COLOUR = re.compile(rb"\x1b\[[0-9;]*\b(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)\b[0-9;]*m")


class Terminal:
    """A pseudo-terminal with the monitor in it."""

    def __init__(self, tmp_path: Path, *words: str, **env: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.output = b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "llama_ai", "monitor", *words],
            env={**private_env(tmp_path), "TERM": "xterm-256color", **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := os.read(self._master, 1 << 16):
                self.output += chunk

    def wait_for(self, text: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while text.encode() not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.05)

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self) -> int:
        return self.process.wait(PATIENCE_S)

    def assert_restored(self) -> None:
        """Echo and line mode are back, the cursor is shown, the other screen is left."""
        deadline_s = time.monotonic() + 5
        while b"\x1b[?1049l" not in self.output and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert termios.tcgetattr(self.slave) == self.before
        assert self.output.rfind(b"\x1b[?1049l") > self.output.rfind(b"\x1b[?1049h")
        assert self.output.rfind(b"\x1b[?25h") > self.output.rfind(b"\x1b[?25l")
        assert b"Traceback" not in self.output

    def hang_up(self) -> None:
        """The window is closed."""
        os.close(self.slave)
        os.kill(self.process.pid, signal.SIGHUP)
        os.close(self._master)
        self._master = self.slave = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for handle in (self._master, self.slave):
            if handle >= 0:
                os.close(handle)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path, "--replay", str(RECORDING), "--interval", "0.2")
    yield opened
    opened.close()


def test_q_ends_it(terminal: Terminal) -> None:
    terminal.wait_for("READY")
    terminal.type("q")
    assert terminal.end() == 0
    terminal.assert_restored()


def test_control_c_ends_it(terminal: Terminal) -> None:
    terminal.wait_for("READY")
    terminal.type("\x03")
    assert terminal.end() == 0
    terminal.assert_restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it_and_leave_the_terminal_as_it_was(
    terminal: Terminal, number: signal.Signals
) -> None:
    terminal.wait_for("READY")
    terminal.process.send_signal(number)
    assert terminal.end() == 128 + number
    terminal.assert_restored()


def test_a_signal_while_the_search_line_is_open(terminal: Terminal) -> None:
    terminal.wait_for("READY")
    terminal.type("/abc")  # faster than anybody types: none of it is lost
    terminal.wait_for("“abc”")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 128 + signal.SIGTERM
    terminal.assert_restored()


def test_a_closed_window_ends_it(terminal: Terminal) -> None:
    terminal.wait_for("READY")
    terminal.hang_up()
    assert terminal.end() != 0


def test_a_hung_server_does_not_hold_it_up(tmp_path: Path) -> None:
    """Drawn, answering keys, and gone at once while every route of the server hangs."""
    with MonitoredServer() as server:
        server.hang |= {"/metrics", "/slots", "/health", "/props", "/kv-cache"}
        terminal = Terminal(tmp_path, "--url", server.url, "--interval", "0.2")
        try:
            terminal.wait_for("CONNECTING")
            terminal.wait_for("HUNG")
            terminal.type("?")
            terminal.wait_for("FIGURES")
            started_s = time.monotonic()
            terminal.type("q")
            assert terminal.end() == 0
            # The server would hold it for 10 s and more.
            assert time.monotonic() - started_s < 9
            terminal.assert_restored()
        finally:
            terminal.close()


def test_colours_and_none(tmp_path: Path) -> None:
    words = ("--replay", str(RECORDING), "--interval", "0.2")
    for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)):
        terminal = Terminal(tmp_path, *words, **env)
        try:
            terminal.wait_for("READY")
            terminal.wait_for("generating")
            terminal.type("q")
            terminal.end()
            assert bool(COLOUR.search(terminal.output)) is coloured, env
        finally:
            terminal.close()


def test_recording_what_is_watched(tmp_path: Path) -> None:
    recording = tmp_path / "rec.jsonl"
    with MonitoredServer() as server:
        terminal = Terminal(
            tmp_path, "--url", server.url, "--interval", "0.2", "--record", str(recording)
        )
        try:
            terminal.wait_for("READY")
            time.sleep(0.8)
            terminal.process.send_signal(signal.SIGTERM)
            terminal.end()
        finally:
            terminal.close()
    again = Terminal(tmp_path, "--replay", str(recording), "--interval", "0.2")
    try:
        again.wait_for("READY")
        again.wait_for("(end)")
        again.type("q")
        assert again.end() == 0
    finally:
        again.close()
