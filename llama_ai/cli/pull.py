"""``llama-ai pull``: fetch a model, or see what a repository has and what of it fits here."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption, YesOption

if TYPE_CHECKING:
    from llama_ai.cli.remote import Verdict
    from llama_ai.config import Settings
    from llama_ai.models.hub import Found, Hub, Listing
    from llama_ai.models.pull import Progress
    from llama_ai.models.repository import RemoteModel


def pull(
    what: Annotated[
        str,
        typer.Argument(
            metavar="REPO[:QUANT]", help="owner/repo, owner/repo:QUANT, words to search, or demo"
        ),
    ],
    list_only: Annotated[
        bool, typer.Option("--list", help="show the quantisations and which fit; fetch nothing")
    ] = False,
    mmproj: Annotated[
        bool, typer.Option("--mmproj/--no-mmproj", help="fetch the projector too")
    ] = True,
    draft: Annotated[bool, typer.Option("--draft/--no-draft", help="fetch the draft too")] = True,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Fetch a model into the Hugging Face cache; a stopped download goes on where it was.

    Without QUANT the best one that fits this machine is taken. `pull demo` fetches
    SmolLM2-135M-Instruct (Apache-2.0, 98 MB).
    """
    if what == "demo":
        _demo(json=json)
        return
    fetch(what, list_only=list_only, mmproj=mmproj, draft=draft, yes=yes, json=json)


def fetch(
    what: str,
    *,
    quant: str | None = None,
    list_only: bool = False,
    mmproj: bool = True,
    draft: bool = True,
    yes: bool = False,
    json: bool = False,
) -> None:
    """What ``pull`` does for a repository or for words to search."""
    from llama_ai.cli.pipeline import read_settings
    from llama_ai.models.hub import Hub
    from llama_ai.models.repository import pick, remote_models

    hub = Hub(os.environ, tell=lambda text: output.note(f"note: {text}"))
    repo, _, word = what.partition(":")
    word = word or quant or ""
    if "/" not in repo:
        chosen = _search(hub, repo, word, json=json, list_only=list_only, yes=yes)
        if chosen is None:
            return
        repo = chosen
    settings = read_settings({} if mmproj else {"mmproj": False}, [])
    listing = hub.listing(repo)
    models = remote_models(listing)
    if not models:
        from llama_ai.errors import ModelNotFoundError

        raise ModelNotFoundError(
            f"{repo} holds no GGUF model", hint="look for a repository whose name ends in -GGUF"
        )
    if word:
        models = (pick(models, word, repo),)
    if list_only:
        _show_list(hub, listing, models, settings, mmproj=mmproj, draft=draft, json=json)
        return
    model = models[0]
    if len(models) > 1:
        model = _choose(hub, listing, models, settings, mmproj=mmproj, draft=draft, yes=yes)
    _fetch(hub, listing, model, mmproj=mmproj, draft=draft, json=json)


def _demo(*, json: bool) -> None:
    from llama_ai.models.demo import NAME, SHA256, ensure_demo

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


def _search(
    hub: Hub, words: str, quant: str, *, json: bool, list_only: bool, yes: bool
) -> str | None:
    """The repository that is meant; ``None`` when the answer was the list itself."""
    from llama_ai.errors import ModelNotFoundError, UsageError

    found = hub.search(words)
    if json and not (len(found) == 1 and quant):
        output.print_json(
            "pull-search",
            {"repositories": [{"repo": f.repo, "downloads": f.downloads} for f in found]},
        )
        return None
    if not found:
        raise ModelNotFoundError(
            f"the hub has no GGUF repository for '{words}'", hint="try fewer or other words"
        )
    exact = [f for f in found if f.repo.partition("/")[2].lower() in _names(words)]
    if len(exact) == 1 or len(found) == 1:
        repo = (exact or list(found))[0].repo
        output.note(f"note: {words} is {repo}")
        return repo
    if list_only and not sys.stdin.isatty():
        _print_found(found)
        return None
    if yes or not sys.stdin.isatty():
        _print_found(found)
        raise UsageError(
            f"'{words}' names {len(found)} repositories", hint="name one: owner/repo:QUANT"
        )
    _print_found(found)
    return found[_ask(len(found)) - 1].repo


def _names(words: str) -> set[str]:
    bare = words.lower()
    return {bare, f"{bare}-gguf"}


def _print_found(found: tuple[Found, ...]) -> None:
    output.table(
        ("", "REPOSITORY", "DOWNLOADS"),
        [
            (str(number), one.repo, "-" if one.downloads is None else str(one.downloads))
            for number, one in enumerate(found, start=1)
        ],
        right=frozenset({0, 2}),
    )


def _ask(count: int) -> int:
    while True:
        number = int(typer.prompt("which one", type=int))
        if 1 <= number <= count:
            return number
        output.note(f"a number from 1 to {count}")


def _choose(
    hub: Hub,
    listing: Listing,
    models: tuple[RemoteModel, ...],
    settings: Settings,
    *,
    mmproj: bool,
    draft: bool,
    yes: bool,
) -> RemoteModel:
    """One of several quantisations: the best that fits, or the one that the user picks."""
    from llama_ai.cli.catalog_rows import target_here
    from llama_ai.cli.remote import best, verdicts
    from llama_ai.errors import DoesNotFitError

    target, _ = target_here(settings)
    found = verdicts(hub, listing, models, target, settings, projector=mmproj, draft=draft)
    taken = best(found)
    if sys.stdin.isatty() and not yes:
        _print_verdicts(found, taken)
        return found[_ask(len(found)) - 1].model
    if taken is None:
        _print_verdicts(found, taken)
        raise DoesNotFitError(
            f"nothing of {listing.repo} fits this machine",
            hint=f"name one to fetch it all the same: {listing.repo}:QUANT",
        )
    output.note(f"note: {taken.model.quant or taken.model.name} is the best that fits here")
    return taken.model


def _show_list(
    hub: Hub,
    listing: Listing,
    models: tuple[RemoteModel, ...],
    settings: Settings,
    *,
    mmproj: bool,
    draft: bool,
    json: bool,
) -> None:
    from llama_ai.cli.catalog_rows import target_here
    from llama_ai.cli.remote import best, verdicts

    target, problem = target_here(settings)
    if problem:
        output.note(f"note: {problem}")
    found = verdicts(hub, listing, models, target, settings, projector=mmproj, draft=draft)
    taken = best(found)
    if json:
        output.print_json(
            "pull-list",
            {
                "repo": listing.repo,
                "commit": listing.commit,
                "models": [_as_json(one, best=one is taken) for one in found],
            },
        )
    else:
        _print_verdicts(found, taken)


def _as_json(one: Verdict, *, best: bool) -> dict[str, Any]:
    from dataclasses import asdict

    model = one.model
    return {
        "name": model.name,
        "quant": model.quant,
        "size_bytes": model.size_bytes,
        "files": [file.name for file in model.files],
        "projector": model.projector.name if model.projector else None,
        "draft": [file.name for file in model.draft],
        "missing": list(model.missing),
        **(
            {key: value for key, value in asdict(one.about).items() if key not in {"kind", "quant"}}
            if one.about
            else {}
        ),
        "fit": asdict(one.fit) if one.fit else None,
        "problem": one.problem,
        "best": best,
    }


def _print_verdicts(found: list[Verdict], taken: Verdict | None) -> None:
    output.table(
        ("", "QUANT", "SIZE", "FILES", "WITH", "FITS HERE", ""),
        [
            (
                str(number),
                one.model.quant or one.model.name,
                output.bytes_text(one.model.size_bytes),
                str(len(one.model.files)),
                ", ".join(
                    word
                    for word, there in (
                        ("projector", one.model.projector),
                        ("draft", one.model.draft),
                    )
                    if there
                )
                or "-",
                one.fit.text if one.fit else (one.problem or "-"),
                "<- best that fits" if one is taken else "",
            )
            for number, one in enumerate(found, start=1)
        ],
        right=frozenset({0, 2, 3}),
    )


def _fetch(
    hub: Hub, listing: Listing, model: RemoteModel, *, mmproj: bool, draft: bool, json: bool
) -> None:
    from llama_ai.errors import ModelNotFoundError, UserInterruptError
    from llama_ai.models import pull as puller

    if model.missing:
        raise ModelNotFoundError(
            f"{listing.repo} is not complete: {', '.join(model.missing)} of {model.name}",
            hint="take another quantisation",
        )
    files = model.wanted(projector=mmproj, draft=draft)
    last: list[Progress] = []
    with output.Progress(model.name) as shown:

        def show(progress: Progress) -> None:
            last[:] = [progress]
            shown.update(progress.done_bytes, progress.total_bytes, _progress_text(progress))

        try:
            paths = puller.pull(hub, listing, files, os.environ, show)
        except KeyboardInterrupt as error:
            done = output.bytes_text(last[0].done_bytes) if last else "nothing"
            word = f"{listing.repo}:{model.quant or model.name}"
            raise UserInterruptError(
                f"stopped; {done} is kept", hint=f"`llama-ai pull {word}` goes on from there"
            ) from error
    if json:
        output.print_json(
            "pull",
            {
                "name": model.name,
                "repo": listing.repo,
                "commit": listing.commit,
                "path": str(paths[0]),
                "size_bytes": sum(file.size_bytes for file in files),
                "files": [
                    {
                        "path": str(path),
                        "size_bytes": file.size_bytes,
                        "sha256": file.sha256,
                    }
                    for path, file in zip(paths, files, strict=True)
                ],
            },
        )
    else:
        output.line(f"{model.name}: {paths[0]}")


def _progress_text(progress: Progress) -> str:
    """``2/4 name 41%, 3.1 GiB of 9.0 GiB``."""
    name = progress.name.rpartition("/")[2]
    share = progress.file_done_bytes * 100 // progress.file_bytes
    return (
        f"{progress.number}/{progress.count} {name} {share}%, "
        f"{output.bytes_text(progress.done_bytes)} of {output.bytes_text(progress.total_bytes)}"
    )
