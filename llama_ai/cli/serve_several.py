"""``llama-ai serve`` over several models: each is planned, then the engine's router is started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from llama_ai.cli import output, pipeline
from llama_ai.errors import DoesNotFitError, LlamaAiError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llama_ai.cli.running import Place
    from llama_ai.config import Settings
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.models.catalog import Entry
    from llama_ai.router import Routed, Router


def chosen_entries(words: Sequence[str], settings: Settings) -> list[Entry]:
    """The models that ``words`` name; without words, all of the catalog that are whole."""
    from llama_ai.models.catalog import resolve, scan

    dirs = settings.config.model_dirs
    if words:
        found = [resolve(word, dirs, os.environ) for word in words]
        return list({entry.path: entry for entry in found}.values())
    return [entry for entry in scan(dirs, os.environ) if not entry.missing]


def plan_all(
    entries: Sequence[Entry],
    settings: Settings,
    facts: HardwareFacts,
    engine: EngineInfo,
    on_progress: Callable[[int, int | None, str], None],
) -> list[Routed]:
    """Each entry's profile, or why it has none; files that are no models are left out."""
    from llama_ai.gguf.errors import BadModelFileError
    from llama_ai.router import Routed

    found: list[Routed] = []
    taken: set[str] = set()
    for count, entry in enumerate(entries):
        on_progress(count, len(entries), entry.name)
        name = entry.name if entry.name not in taken else f"{entry.name} ({entry.source})"
        number = 2
        while name in taken:
            name, number = f"{entry.name} ({entry.source} {number})", number + 1
        taken.add(name)
        try:
            profile = pipeline.prepare(
                settings,
                entry=entry,
                facts=facts,
                engine=engine,
                raw=(),
                verify=settings.text("fit") != "on",
                alone=False,
            ).profile
        except BadModelFileError as error:
            output.note(f"note: {entry.name} left out: {error.message}")
            continue
        except (DoesNotFitError, ModelNotFoundError) as error:
            why = error.message.removeprefix(f"{entry.name}: ")
            found.append(Routed(name=name, path=entry.path, profile=None, why_not=why))
            continue
        found.append(
            Routed(
                name=name,
                path=profile.model_path,
                profile=profile,
                aliases=_aliases(entry, taken),
            )
        )
    return found


def _aliases(entry: Entry, taken: set[str]) -> tuple[str, ...]:
    """``owner/repo:QUANT``, if no other model has it."""
    if not entry.repo or not entry.quant:
        return ()
    alias = f"{entry.repo}:{entry.quant}"
    if alias in taken or "," in alias:
        return ()
    taken.add(alias)
    return (alias,)


def serve_several(
    entries: Sequence[Entry],
    settings: Settings,
    place: Place,
    *,
    raw: tuple[str, ...],
    forget: bool = False,
) -> int:
    """Plan every model, write the preset file, and supervise the router until asked to stop."""
    from llama_ai.cli.router_children import RouterChildren, RouterFiles
    from llama_ai.cli.running import Announcer, run_instance
    from llama_ai.router import build_router
    from llama_ai.supervisor.state import record_path

    with place.claim(None) as held:
        facts = pipeline.detect_machine(settings, None)
        engine = pipeline.ready_engine(settings, facts)
        if forget:
            for entry in entries:
                _forget(entry, facts, engine)
        with output.Progress("planning") as progress:
            planned = plan_all(entries, settings, facts, engine, progress.update)
        if not any(model.profile for model in planned):
            reasons = tuple(f"{model.name}: {model.why_not}" for model in planned)
            raise DoesNotFitError(
                "none of the models fits this machine",
                hint="name one: it says what would help",
                details=reasons[:20],
            )
        files = RouterFiles(record_path(place.name))
        router = build_router(
            planned,
            settings,
            server=str(engine.server),
            known_flags=engine.flags,
            environ=os.environ,
            preset_path=files.preset,
            refused_path=files.refused,
            empty_dir=files.empty_dir,
            link_dir=files.link_dir,
            raw=raw,
        )
        pipeline.show_notes(router.built)
        _announce(router, place.log_path)
        children = RouterChildren(router, settings, facts, engine, files, place)
        try:
            files.write(router)
            return run_instance(
                place,
                settings,
                router.built.command,
                held=held,
                model_path=None,
                record=record_of_router(router),
                on_event=Announcer(place.url, f"OpenAI: {place.url}/v1; the request names a model"),
                on_child=children,
            )
        finally:
            files.remove()


def _forget(entry: Entry, facts: HardwareFacts, engine: EngineInfo) -> None:
    try:
        pipeline.forget_lessons(facts, entry.path, engine)
    except LlamaAiError:
        return  # a file that cannot be read has taught nothing; planning says what is wrong


def _announce(router: Router, log_path: Path) -> None:
    for model in router.models:
        if model.profile is not None:
            output.note(f"model    {model.asked_as}: {model.profile.summary}")
        else:
            output.note(f"refused  {model.name}: {model.why_not}")
    output.note(f"loaded   at most {router.models_max} at once")
    output.note(f"log      {log_path}")


def record_of_router(router: Router) -> dict[str, Any]:
    """What ``status`` shows."""
    fitting = sum(model.profile is not None for model in router.models)
    return {
        "name": "router",
        "summary": f"{fitting} models, at most {router.models_max} loaded",
        "models_max": router.models_max,
        "models": [
            {
                "name": model.asked_as,
                "path": str(model.path),
                "summary": model.profile.summary if model.profile else None,
                "why_not": model.why_not,
            }
            for model in router.models
        ],
    }
