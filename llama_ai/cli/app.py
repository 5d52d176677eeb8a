"""Registers the commands and runs one; nothing else.

A command module imports at its top only what its signature needs, so that ``--help`` stays fast.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai import __version__
from llama_ai.errors import UsageError, UserInterruptError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

app = typer.Typer(
    name="llama-ai",
    help="Local LLM inference that just works, and works fast, on AMD APUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llama-ai {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print the version"),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
) -> None:
    del version, debug  # handled by the callback and by main


def _register(name: str, command: Callable[..., None]) -> None:
    @functools.wraps(command)
    def wrapper(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            # typer would turn it into exit code 1; the contract says 130.
            raise UserInterruptError("interrupted") from None

    if hasattr(command, "__signature__"):
        # functools.wraps points typer at the command itself, whose signature was generated.
        wrapper.__signature__ = command.__signature__  # type: ignore[attr-defined]
        wrapper.__annotations__ = command.__annotations__
        del wrapper.__wrapped__
    app.command(name)(wrapper)


def _register_all() -> None:
    from llama_ai.cli import kernel_params
    from llama_ai.cli.backends import backends
    from llama_ai.cli.build import build
    from llama_ai.cli.cache import app as cache_app
    from llama_ai.cli.doctor import doctor
    from llama_ai.cli.logs import logs
    from llama_ai.cli.models import models
    from llama_ai.cli.monitor import monitor
    from llama_ai.cli.profile import profile
    from llama_ai.cli.pull import pull
    from llama_ai.cli.serve import serve
    from llama_ai.cli.service import service_app
    from llama_ai.cli.status import status
    from llama_ai.cli.stop import stop

    _register("serve", serve)
    _register("profile", profile)
    _register("models", models)
    _register("pull", pull)
    _register("build", build)
    _register("backends", backends)
    _register("doctor", doctor)
    _register("status", status)
    _register("stop", stop)
    _register("logs", logs)
    app.add_typer(cache_app, name="cache")
    app.add_typer(kernel_params.app, name="kernel-params")
    app.add_typer(service_app, name="service")
    _register("monitor", monitor)


def invoke(words: Sequence[str], raw: Sequence[str] = ()) -> int:
    """Run a command line and return its exit code; our own errors pass through.

    ``raw`` are the words after ``--``, for the engine: ``serve`` and ``profile`` pass them on,
    other commands refuse them.
    """
    if raw and not {"serve", "profile"} & set(words):
        raise UsageError("words after `--` go to the engine: only serve and profile take them")
    _register_all()
    try:
        typer.main.get_command(app).main(
            args=list(words), prog_name="llama-ai", obj=tuple(raw), standalone_mode=True
        )
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
