"""``llama-ai cache ls|rm|stats``: the KV cache on disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption
from llama_ai.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from llama_ai.config import Settings
    from llama_ai.kv_cache.files import Contents

app = typer.Typer(
    name="cache",
    help="The KV cache on disk: readable transcripts of what was asked and answered.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

WARNING = (
    "these files hold the tokens of conversations: whoever can read them can read what was said"
)

DirOption = Annotated[
    str | None, typer.Option("--kv-dir", metavar="DIR", help="another directory than the setting")
]


@app.command("ls")
def ls(kv_dir: DirOption = None, json: JsonOption = False) -> None:
    """List what is stored, the most recently used first."""
    contents = _read(kv_dir)
    if json:
        output.print_json(
            "cache",
            {
                "directory": str(contents.directory),
                "files": [
                    {
                        "name": file.path.name,
                        "model": file.model,
                        "kind": file.kind,
                        "begin_tokens": file.begin,
                        "end_tokens": file.end,
                        "size_bytes": file.size_bytes,
                        "system_prompt": file.system,
                        "created_s": file.created_s,
                        "used_s": int(file.used_s),
                        "fingerprint": file.fingerprint,
                    }
                    for file in contents.files
                ],
                "damaged": [path.name for path in contents.damaged],
            },
        )
        return
    if not contents.files:
        output.line(f"nothing is stored in {contents.directory}")
        return
    now_s = time.time()
    output.table(
        ("MODEL", "WHAT", "TOKENS", "SIZE", "USED", "FILE"),
        [
            (
                file.model or "-",
                ("system prompt, " if file.system else "") + file.kind,
                f"{file.begin}-{file.end}" if file.kind == "segment" else f"at {file.end}",
                output.bytes_text(file.size_bytes),
                _age(now_s - file.used_s),
                file.path.name,
            )
            for file in contents.files
        ],
        right=frozenset({2, 3, 4}),
    )


@app.command("rm")
def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL|FILE...", help="a model's name, or files as ls lists them"),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="everything")] = False,
    older_than_days: Annotated[
        int | None, typer.Option("--older-than-days", min=0, help="not used for so many days")
    ] = None,
    kv_dir: DirOption = None,
    json: JsonOption = False,
) -> None:
    """Remove what is stored. A running engine only has a miss more."""
    from llama_ai.kv_cache.files import remove

    wanted = names or []
    if not wanted and not all_ and older_than_days is None:
        raise UsageError("what shall be removed?", hint="name a model or files, or --all")
    if all_ and wanted:
        raise UsageError("--all and names together make no sense", hint="leave out one of them")
    contents = _read(kv_dir)
    paths = [path for path in contents.damaged if all_ or path.name in wanted]
    limit_s = None if older_than_days is None else time.time() - older_than_days * 86400
    matched: set[str] = {path.name for path in paths}
    size_bytes = contents.damaged_bytes if all_ else 0
    for file in contents.files:
        said = {file.path.name, file.model} & set(wanted)
        matched |= said
        if (all_ or said or not wanted) and (limit_s is None or file.used_s < limit_s):
            paths.append(file.path)
            size_bytes += file.size_bytes
    missing = [name for name in wanted if name not in matched]
    if missing:
        raise UsageError(
            f"nothing is stored under {missing[0]!r}", hint="`llama-ai cache ls` lists what is"
        )
    count = remove(paths)
    if json:
        output.print_json("cache", {"removed_files": count, "removed_bytes": size_bytes})
        return
    output.line(f"removed {count} files, {output.bytes_text(size_bytes)}")


@app.command("stats")
def stats(kv_dir: DirOption = None, json: JsonOption = False) -> None:
    """How much is stored, of which models, and what the limits are."""
    contents = _read(kv_dir)
    cap_gib = _settings().number("kv_max_gib")
    models: dict[str, tuple[int, int, int]] = {}
    for file in contents.files:
        files, size, prompts = models.get(file.model, (0, 0, 0))
        models[file.model] = (files + 1, size + file.size_bytes, prompts + file.system_end)
    if json:
        output.print_json(
            "cache",
            {
                "directory": str(contents.directory),
                "total_bytes": contents.total_bytes,
                "cap_bytes": None if cap_gib is None else cap_gib << 30,
                "files": len(contents.files),
                "damaged_files": len(contents.damaged),
                "damaged_bytes": contents.damaged_bytes,
                "models": [
                    {
                        "model": model,
                        "files": files,
                        "size_bytes": size,
                        "system_prompts": prompts,
                    }
                    for model, (files, size, prompts) in sorted(models.items())
                ],
                "warning": WARNING,
            },
        )
        return
    output.line(f"{contents.directory}: {output.bytes_text(contents.total_bytes)} of {cap_gib} GiB")
    if models:
        output.line()
        output.table(
            ("MODEL", "FILES", "SIZE", "SYSTEM PROMPTS"),
            [
                (model or "-", str(files), output.bytes_text(size), str(prompts))
                for model, (files, size, prompts) in sorted(models.items())
            ],
            right=frozenset({1, 2, 3}),
        )
    if contents.damaged:
        output.line()
        output.line(f"{len(contents.damaged)} damaged files were set aside (`cache rm --all`)")
    output.line()
    output.line(f"note: {WARNING}")


def _settings() -> Settings:
    from llama_ai.cli.pipeline import read_settings

    return read_settings({}, [])


def _read(kv_dir: str | None) -> Contents:
    from llama_ai.kv_cache.choice import directory_of
    from llama_ai.kv_cache.files import read_directory

    return read_directory(_absolute(kv_dir) if kv_dir else directory_of(_settings()))


def _absolute(text: str) -> Path:
    from pathlib import Path

    return Path(text).expanduser().absolute()


def _age(seconds: float) -> str:
    for unit_s, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s:
            return f"{int(seconds // unit_s)} {name} ago"
    return "just now"
