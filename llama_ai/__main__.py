"""The entry point: the only place that turns an error into an exit code."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from llama_ai.errors import LlamaAiError, UserInterruptError

if TYPE_CHECKING:
    from collections.abc import Sequence


def hide_api_key(words: Sequence[str]) -> tuple[list[str], str | None]:
    """``words`` without ``--api-key KEY``, and the key; words after ``--`` are the engine's."""
    kept: list[str] = []
    key: str | None = None
    rest = iter(words)
    for word in rest:
        if word == "--":
            kept += [word, *rest]
        elif word == "--api-key":
            key = next(rest, None)
            if key is None:
                kept.append(word)  # the parser says what is missing
        elif word.startswith("--api-key="):
            key = word.partition("=")[2]
        else:
            kept.append(word)
    return kept, key


def run_cli(argv: Sequence[str]) -> int:
    """Run one command line (without the program's name) and return its exit code."""
    from llama_ai.cli import output
    from llama_ai.cli.app import invoke

    ours = argv[: argv.index("--")] if "--" in argv else argv
    debug = "--debug" in ours or bool(os.environ.get("LLAMA_AI_DEBUG"))
    try:
        return invoke([word for word in ours if word != "--debug"], argv[len(ours) + 1 :])
    except KeyboardInterrupt:
        if debug:
            raise
        output.error(UserInterruptError("interrupted"))
        return UserInterruptError.exit_code
    except BrokenPipeError:
        # `llama-ai models | head`: the reader has what it wanted.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LlamaAiError as error:
        if debug:
            raise
        output.error(error)
        return error.exit_code


def main() -> None:
    """Console script ``llama-ai``."""
    words, key = hide_api_key(sys.argv[1:])
    if key is not None:
        # Everybody on the machine can read a command line, so start again without the key in it.
        python = sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1]
        os.execve(  # noqa: S606 - ourselves
            sys.executable, [*python, *words], {**os.environ, "LLAMA_AI_API_KEY": key}
        )
    sys.exit(run_cli(sys.argv[1:]))


if __name__ == "__main__":
    main()
