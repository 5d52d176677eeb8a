"""``llama-ai service``: the systemd user service."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption, serving_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.service import Service
    from llama_ai.settings import Value

service_app = typer.Typer(
    help="Run llama-ai as a systemd user service.", no_args_is_help=True, rich_markup_mode=None
)

NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="the service's name, when there are several")
]
MemoryOption = Annotated[
    str | None,
    typer.Option("--memory-max", metavar="SIZE", help="systemd's MemoryMax=, for example 24G"),
]
ServedModel = Annotated[
    str, typer.Argument(metavar="MODEL", help="a GGUF file or a model of the catalog")
]


@service_app.command("install")
@serving_options
def install(
    flags: Mapping[str, Value | None],
    assignments: list[str],
    model: ServedModel,
    name: NameOption = "llama-ai",
    memory_max: MemoryOption = None,
) -> None:
    """Write the unit for `serve MODEL` with these settings."""
    from llama_ai import service

    wanted = _service(model, name, memory_max, flags, assignments)
    path, steps = service.install(wanted, os.environ)
    output.line(f"wrote {path}")
    output.line("next:")
    for step in steps:
        output.line(f"  {step}")


@service_app.command("print")
@serving_options
def print_unit(
    flags: Mapping[str, Value | None],
    assignments: list[str],
    model: ServedModel,
    name: NameOption = "llama-ai",
    memory_max: MemoryOption = None,
) -> None:
    """Show the unit that `install` would write."""
    import sys

    from llama_ai import service

    wanted = _service(model, name, memory_max, flags, assignments)
    text = service.unit_text(
        wanted, template=service.template(), python=sys.executable, environ=os.environ
    )
    sys.stdout.write(text)


@service_app.command("uninstall")
def uninstall(name: NameOption = "llama-ai") -> None:
    """Stop the service and remove its unit."""
    from llama_ai import service

    output.line(f"removed {service.uninstall(name, os.environ)}")


@service_app.command("status")
def status(name: NameOption = "llama-ai", json: JsonOption = False) -> None:
    """Show the service. Exit code 0 when it is active, 1 when not."""
    from llama_ai import service

    found = service.state(name, os.environ)
    if json:
        output.print_json("service-status", found)
    else:
        where = found["path"] or "not installed"
        output.line(
            f"{found['unit']}: {found['active'] or 'unknown'}, "
            f"{found['enabled'] or 'not enabled'} ({where})"
        )
    if found["active"] != "active":
        raise typer.Exit(1)


def _service(
    model: str,
    name: str,
    memory_max: str | None,
    flags: Mapping[str, Value | None],
    assignments: list[str],
) -> Service:
    from llama_ai import service
    from llama_ai.cli.pipeline import read_settings
    from llama_ai.models.catalog import resolve

    # Wrong words are found now, not by a service that fails at the next boot.
    settings = read_settings(flags, assignments)
    words = service.serve_words(flags, assignments)
    entry = resolve(model, settings.config.model_dirs, os.environ)
    return service.Service(
        name=name,
        model_path=entry.path.absolute(),
        model_bytes=entry.size_bytes,
        serve_words=words,
        memory_max=memory_max,
    )
