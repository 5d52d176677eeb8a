"""``llama-ai models``: the catalog."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption

if TYPE_CHECKING:
    from llama_ai.cli.catalog_rows import Row


def models(json: JsonOption = False) -> None:
    """List the models that are here, and whether they fit this machine."""
    from llama_ai.cli.catalog_rows import catalog_rows
    from llama_ai.cli.pipeline import read_settings
    from llama_ai.models.catalog import scan
    from llama_ai.models.stores import places

    settings = read_settings({}, [])
    dirs = settings.config.model_dirs
    rows = catalog_rows(scan(dirs, os.environ), settings)
    listed = [row for row in rows if row.about is None or row.about.kind == "model"]
    others = [row for row in rows if row.about is not None and row.about.kind != "model"]
    if json:
        output.print_json(
            "models",
            {
                "models": [as_json(row) for row in listed],
                "others": [
                    {
                        "path": str(row.entry.path),
                        "kind": row.about.kind if row.about else None,
                        "size_bytes": row.entry.size_bytes,
                    }
                    for row in others
                ],
            },
        )
        return
    if not listed:
        output.line("no models here; these places were looked at:")
        for place in places(dirs, os.environ):
            output.line(f"  {place.source:12} {place.path}")
        output.line("`llama-ai pull demo` fetches a small one.")
        return
    _table(listed)


def as_json(row: Row) -> dict[str, Any]:
    """One entry of ``models --json``."""
    from dataclasses import asdict

    entry, about, fit = row.entry, row.about, row.fit
    projector = entry.projector
    moe = about is not None and about.n_expert is not None
    return {
        "name": entry.name,
        "path": str(entry.path),
        "files": [str(path) for path in entry.files],
        "size_bytes": entry.size_bytes,
        "quant": entry.quant or (about.quant if about else None),
        "source": entry.source,
        "repo": entry.repo,
        "also": [str(path) for path in entry.also],
        "other_names": list(entry.other_names),
        "missing": list(entry.missing),
        "architecture": about.architecture if about else None,
        "n_params": about.n_params if about else None,
        "moe": (
            {"n_expert": about.n_expert, "n_expert_used": about.n_expert_used}
            if moe and about
            else None
        ),
        "n_ctx_train": about.n_ctx_train if about else None,
        "chat_template": about.has_chat_template if about else None,
        "reasons": about.reasons if about else None,
        "mtp": about.has_mtp if about else None,
        "projector": str(projector.path) if projector else None,
        "drafts": [
            {"kind": draft.draft_kind, "path": str(draft.path), "size_bytes": draft.size_bytes}
            for draft in entry.drafts
        ],
        "adapters": [str(c.path) for c in entry.companions if c.kind == "adapter"],
        "fit": asdict(fit) if fit else None,
        "problem": row.problem,
    }


def _table(rows: list[Row]) -> None:
    from llama_ai.cli.catalog_rows import params_text, tokens_text

    output.table(
        ("NAME", "QUANT", "SIZE", "ARCH", "PARAMS", "CONTEXT", "HAS", "FITS HERE", "WHERE"),
        [
            (
                row.entry.name,
                row.entry.quant or (row.about.quant if row.about else None) or "-",
                output.bytes_text(row.entry.size_bytes),
                (row.about.architecture if row.about else None) or "-",
                params_text(row.about.n_params if row.about else None),
                tokens_text(row.about.n_ctx_train if row.about else None),
                _features(row) or "-",
                row.fit.text if row.fit else (row.problem or "-"),
                (row.entry.repo or row.entry.source)
                + (f" (+{len(row.entry.also)})" if row.entry.also else ""),
            )
            for row in rows
        ],
        right=frozenset({2, 4, 5}),
    )


def _features(row: Row) -> str:
    """``moe 128/8, vision, draft, thinks``."""
    words: list[str] = []
    about = row.about
    if about is not None and about.n_expert:
        words.append(f"moe {about.n_expert}/{about.n_expert_used}")
    if row.entry.projector is not None:
        words.append("vision")
    if row.entry.drafts or (about is not None and about.has_mtp):
        words.append("draft")
    if about is not None and about.reasons:
        words.append("thinks")
    if about is not None and about.has_chat_template is False:
        words.append("no chat template")
    return ", ".join(words)
