"""One tree of errors: each class is an exit code, each instance says what to do next.

Only :func:`llama_ai.__main__.main` turns an error into an exit; everything else raises.
The codes are the contract of the command line (README, "Exit codes").
"""

from __future__ import annotations


class LlamaAiError(Exception):
    """Something went wrong at run time.

    ``message`` says in one line what is wrong; ``hint`` says what to do about it, or is ``None``
    when there is nothing that the user can do. ``details`` are further lines (a log's tail) that
    are shown below the message.
    """

    exit_code = 1

    def __init__(
        self, message: str, *, hint: str | None = None, details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(LlamaAiError):
    """The words of the command line, an environment variable or the config file are wrong."""

    exit_code = 2


class DoesNotFitError(LlamaAiError):
    """No configuration fits the machine, or the user's constraints leave none."""

    exit_code = 3
    over_by_bytes: int | None = None
    """By how much the nearest candidate misses, where memory is the reason."""


class ModelNotFoundError(LlamaAiError):
    """The model does not exist, is ambiguous, or cannot be read."""

    exit_code = 4


class EngineNotReadyError(LlamaAiError):
    """The engine, a driver or a build tool is missing or broken."""

    exit_code = 5


class AlreadyRunningError(LlamaAiError):
    """Another instance, or another program, holds the port."""

    exit_code = 6


class UserInterruptError(LlamaAiError):
    """The user pressed Ctrl-C."""

    exit_code = 130
