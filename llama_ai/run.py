"""Run a command to its end: as an argument list, with its environment, a limit, and a typed error.

Long-running children (the engine) belong to ``llama_ai.supervisor``; this is for tools.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import EngineNotReadyError, LlamaAiError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Completed:
    """A command that ended. ``output`` is stdout; ``errors`` is stderr (empty if merged)."""

    argv: tuple[str, ...]
    returncode: int
    output: str
    errors: str


class CommandFailedError(LlamaAiError):
    """A command ended with a status other than 0, or ran past its limit."""

    def __init__(self, argv: Sequence[str], why: str, tail: str) -> None:
        super().__init__(
            f"`{shlex.join(argv)}` {why}", details=tuple(tail.rstrip().splitlines()[-15:])
        )


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = 60,
    check: bool = True,
    stdin: str | None = None,
) -> Completed:
    """Run ``argv`` and return what it printed (decoded as UTF-8, bad bytes replaced).

    ``env`` replaces the environment when given. Raises
    :class:`~llama_ai.errors.EngineNotReadyError` when the program is missing and
    :class:`CommandFailedError` on a time-out or, with ``check``, on a non-zero status.
    """
    words = tuple(os.fspath(word) for word in argv)
    process = _spawn(words, cwd=cwd, env=env, pipe_stdin=stdin is not None, merge=False)
    with process:
        try:
            output, errors = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(process)
            raise CommandFailedError(words, f"did not end within {timeout_s:g} s", "") from None
        except BaseException:
            _kill_group(process)
            raise
    if check and process.returncode != 0:
        raise CommandFailedError(words, _ended(process.returncode), errors or output)
    return Completed(argv=words, returncode=process.returncode, output=output, errors=errors)


def stream(
    argv: Sequence[str | os.PathLike[str]],
    on_line: Callable[[str], None],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run ``argv`` with stdout and stderr merged, and call ``on_line`` for each line as it comes.

    Raises like :func:`run`; the error carries the last lines. An interrupt ends the whole process
    group before it is passed on.
    """
    words = tuple(os.fspath(word) for word in argv)
    tail: list[str] = []
    process = _spawn(words, cwd=cwd, env=env, pipe_stdin=False, merge=True)
    with process:
        try:
            assert process.stdout is not None  # noqa: S101 - for the type checker; it is a pipe
            for line in process.stdout:
                text = line.rstrip("\n")
                tail.append(text)
                del tail[:-30]
                on_line(text)
            process.wait()
        except BaseException:
            _kill_group(process)
            raise
    if process.returncode != 0:
        raise CommandFailedError(words, _ended(process.returncode), "\n".join(tail))


def _spawn(
    words: tuple[str, ...],
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    pipe_stdin: bool,
    merge: bool,
) -> subprocess.Popen[str]:
    try:
        # Its own group, so that a compiler that cmake started ends with it.
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.PIPE if pipe_stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise EngineNotReadyError(
            f"`{words[0]}` is not installed", hint="run scripts/install-deps"
        ) from error
    except OSError as error:
        raise EngineNotReadyError(f"cannot run `{words[0]}`: {error.strerror}") from error


def _kill_group(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=5)
    except ProcessLookupError:
        pass
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with status {returncode}"
