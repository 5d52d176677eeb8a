"""Options that several commands share: named aliases, and the flags of the settings table.

``@serving_options`` gives a command one flag per setting and ``--set``; the command receives the
given values as ``flags`` and ``assignments``.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_ai.settings import SETTINGS, Setting

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_ai.settings import Value

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="a GGUF file, a model of the catalog, or owner/repo[:QUANT]",
        show_default=False,
    ),
]
ModelsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL]...",
        help="GGUF files, models of the catalog, or owner/repo[:QUANT]; none: all that are here",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="print one JSON object")]
RootOption = Annotated[
    str | None,
    typer.Option(
        "--root", metavar="DIR", help="look at a recorded machine instead of this one (dry runs)"
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]


def serving_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameters ``flags`` and ``assignments`` by one option per setting and --set."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        flags: dict[str, Value | None] = {
            setting.name: given.pop(setting.name) for setting in SETTINGS
        }
        assignments: list[str] = given.pop("assignments") or []
        command(flags=flags, assignments=assignments, **given)

    signature = inspect.signature(command)
    own = [
        # Only the command's own annotations: those of flags are for the type checker.
        parameter.replace(annotation=_evaluated(parameter.annotation, command))
        for name, parameter in signature.parameters.items()
        if name not in {"flags", "assignments"}
    ]
    generated = [_parameter(setting) for setting in SETTINGS]
    generated.append(
        inspect.Parameter(
            "assignments",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                list[str] | None,
                typer.Option(
                    "--set", metavar="KEY=VALUE", help="any setting by its name; may be repeated"
                ),
            ],
        )
    )
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    wrapper.__signature__ = inspect.Signature(keyword + generated)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in keyword + generated}
    del wrapper.__wrapped__  # typer would look through it and miss the generated signature
    return wrapper


def _evaluated(annotation: Any, command: Callable[..., None]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    return eval(annotation, command.__globals__)  # noqa: S307 - our own source, as typing does


def _parameter(setting: Setting) -> inspect.Parameter:
    words = [setting.flag] if setting.short is None else [setting.flag, setting.short]
    kind: Any = str
    metavar: str | None = None
    if setting.kind == "bool":
        kind = bool
        off = setting.negative_flag or f"--no-{setting.flag.removeprefix('--')}"
        words = [f"{setting.flag}/{off}"]
    elif setting.kind in {"int", "float"}:
        metavar = "N"  # checked by the table, like every other source of the value
    elif setting.kind == "choice":
        metavar = "|".join(setting.choices)
    elif setting.kind == "path":
        metavar = "PATH"
    elif setting.kind == "kv_types":
        metavar = "K[/V]"
    else:
        metavar = setting.name.upper()
    text = setting.help
    if setting.default is not None and setting.kind != "bool":
        text += f" [default: {setting.default}]"
    option = typer.Option(*words, metavar=metavar, help=text, show_default=False)
    return inspect.Parameter(
        setting.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )
