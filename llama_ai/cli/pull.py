"""``llama-ai pull``: fetch a model."""

from __future__ import annotations

from typing import Annotated

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption


def pull(
    what: Annotated[str, typer.Argument(metavar="demo", help="what to fetch")],
    json: JsonOption = False,
) -> None:
    """Fetch the demo model (SmolLM2-135M-Instruct, Apache-2.0, 98 MB)."""
    from llama_ai.errors import UsageError
    from llama_ai.models.demo import NAME, SHA256, ensure_demo

    if what != "demo":
        raise UsageError(
            f"cannot pull '{what}': only `pull demo` is there so far",
            hint="download the GGUF file yourself and put it into models/",
        )
    with output.Progress("demo model") as progress:
        path = ensure_demo(progress.update)
    if json:
        output.print_json(
            "pull",
            {
                "name": NAME,
                "path": str(path),
                "size_bytes": path.stat().st_size,
                "sha256": SHA256,
            },
        )
    else:
        output.line(f"{NAME}: {path}")
