"""One engine process: start it in a group of its own, learn of its end, end its whole group.

The child is not tied to our life (no ``PR_SET_PDEATHSIG``): if the supervisor is killed, the engine
goes on serving its clients, and the instance file tells the next command whose process it is. Under
systemd the unit's control group ends it instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
from typing import TYPE_CHECKING

from llama_ai.errors import EngineNotReadyError
from llama_ai.supervisor.identity import start_id
from llama_ai.supervisor.notify import VARIABLES

if TYPE_CHECKING:
    from llama_ai.command import Command


KILL_PATIENCE_S = 1.5


class Child:
    """A running engine. ``output`` is the read end of the pipe that its stdout and stderr share."""

    def __init__(self, process: subprocess.Popen[bytes], output: int) -> None:
        self._process = process
        self._ended = asyncio.get_running_loop().create_future()
        self._watch: int | None = None
        self._patience_s = KILL_PATIENCE_S
        self.output = output
        self.pid = process.pid
        self.start = start_id(process.pid)
        self._watch_end()

    @property
    def running(self) -> bool:
        """Whether its end has not been seen yet."""
        return not self._ended.done()

    async def wait(self) -> int:
        """Its exit status, negative for a signal. May be awaited by several, and again."""
        return int(await asyncio.shield(self._ended))

    async def stop(self, *, grace_s: float) -> bool:
        """End the whole group: TERM, after ``grace_s`` KILL. Answers as :meth:`kill` does.

        CONT goes with TERM, so that a stopped process can obey. Once the leader has ended, whatever
        is left of its group is killed.
        """
        if self.running:
            self._signal_group(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)
            await asyncio.wait([self._ended], timeout=grace_s)
        return await self.kill()

    async def kill(self) -> bool:
        """KILL for the whole group, without asking first.

        ``False`` when it has not ended ``KILL_PATIENCE_S`` later: a process that waits inside a
        driver (a GPU that hangs) cannot be killed, and must not hold us as well.
        """
        if self.running:
            self._signal_group(signal.SIGKILL)
            await asyncio.wait([self._ended], timeout=self._patience_s)
            self._patience_s = 0.0  # waited once, in vain or not
        return not self.running

    def _signal_group(self, number: signal.Signals) -> None:
        # Only ever called before the leader is reaped: until then its pid cannot be used again.
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            # The group is gone, or (macOS) only zombies are left of it.
            return

    def _watch_end(self) -> None:
        loop = asyncio.get_running_loop()
        if hasattr(os, "pidfd_open"):
            self._watch = os.pidfd_open(self.pid)
            loop.add_reader(self._watch, self._on_end)
        else:  # pragma: no cover - not Linux
            self._polling = loop.create_task(self._poll_end())

    async def _poll_end(self) -> None:  # pragma: no cover - not Linux
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            await asyncio.sleep(0.1)
        self._on_end()

    def _on_end(self) -> None:
        if self._watch is not None:
            asyncio.get_running_loop().remove_reader(self._watch)
            os.close(self._watch)
            self._watch = None
        # The leader is a zombie that still holds the group's number: the one safe moment to end
        # children that it left behind.
        self._signal_group(signal.SIGKILL)
        self._ended.set_result(self._process.wait())


def spawn(command: Command) -> Child:
    """Start ``command`` in a new session, stdin closed, stdout and stderr in one pipe.

    Raises :class:`~llama_ai.errors.EngineNotReadyError` when the program cannot be started.
    """
    read_end, write_end = os.pipe()
    _enlarge(write_end)
    try:
        process = subprocess.Popen(
            command.argv,
            env={key: value for key, value in command.env.items() if key not in VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=write_end,
            start_new_session=True,
        )
    except OSError as error:
        os.close(read_end)
        raise EngineNotReadyError(
            f"cannot run {command.argv[0]}: {error.strerror}",
            hint="build the engine with `llama-ai build`, or name another one with --engine",
        ) from error
    finally:
        os.close(write_end)
    return Child(process, read_end)


def _enlarge(pipe: int) -> None:
    """More room in the pipe where the system can: the engine then rarely waits for our reader."""
    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
