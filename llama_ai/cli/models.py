"""``llama-ai models``: the catalog."""

from __future__ import annotations

import os

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption


def models(json: JsonOption = False) -> None:
    """List the models that are here."""
    from llama_ai import paths
    from llama_ai.config import read_config
    from llama_ai.models.catalog import directories, scan

    config = read_config(paths.config_dir() / "config.toml")
    entries = scan(config.model_dirs, os.environ)
    if json:
        output.print_json(
            "models",
            {
                "models": [
                    {
                        "name": entry.name,
                        "path": str(entry.path),
                        "files": [str(path) for path in entry.files],
                        "size_bytes": entry.size_bytes,
                        "quant": entry.quant,
                        "source": entry.source,
                        "repo": entry.repo,
                        "missing": list(entry.missing),
                    }
                    for entry in entries
                ]
            },
        )
        return
    if not entries:
        output.line("no models here; these places were looked at:")
        for source, directory in directories(config.model_dirs, os.environ):
            output.line(f"  {source:12} {directory}")
        output.line("`llama-ai pull demo` fetches a small one.")
        return
    output.table(
        ("NAME", "QUANT", "SIZE", "FILES", "WHERE"),
        [
            (
                entry.name,
                entry.quant or "-",
                output.bytes_text(entry.size_bytes),
                str(len(entry.files)) if not entry.missing else f"incomplete: {entry.missing[0]}",
                entry.repo or entry.source,
            )
            for entry in entries
        ],
        right=frozenset({2}),
    )
