"""``llama-ai serve`` over several models: each is planned, then the engine's router is started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from llama_ai.cli import output, pipeline
from llama_ai.errors import DoesNotFitError, LlamaAiError, ModelNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from llama_ai.config import Settings
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.models.catalog import Entry
    from llama_ai.router import Routed, Router
    from llama_ai.supervisor.state import Event


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
    entries: Sequence[Entry], settings: Settings, *, raw: tuple[str, ...], url: str
) -> int:
    """Plan every model, write the preset file, and supervise the router until asked to stop."""
    import asyncio

    from llama_ai.router import build_router
    from llama_ai.supervisor.restart import RestartPolicy
    from llama_ai.supervisor.state import claim, default_log_path, default_name, record_path
    from llama_ai.supervisor.supervisor import InstanceSpec, supervise

    host, port = str(settings.text("host")), settings.number("port") or 9090
    api_key = pipeline.read_api_key(settings)
    name = default_name(port)
    with claim(name=name, host=host, port=port, url=url, model=None) as held:
        facts = pipeline.detect_machine(settings, None)
        engine = pipeline.ready_engine(settings, facts)
        with output.Progress("planning") as progress:
            planned = plan_all(entries, settings, facts, engine, progress.update)
        if not any(model.profile for model in planned):
            reasons = tuple(f"{model.name}: {model.why_not}" for model in planned)
            raise DoesNotFitError(
                "none of the models fits this machine",
                hint="name one: it says what would help",
                details=reasons[:20],
            )
        preset_path = record_path(name).with_suffix(".ini")
        empty_dir = preset_path.with_suffix(".models")
        router = build_router(
            planned,
            settings,
            server=str(engine.server),
            known_flags=engine.flags,
            environ=os.environ,
            preset_path=preset_path,
            empty_dir=empty_dir,
            raw=raw,
        )
        log_path = default_log_path(name)
        pipeline.show_notes(router.built)
        _announce(router, log_path)
        _write(preset_path, empty_dir, router.preset)
        try:
            return asyncio.run(
                supervise(
                    InstanceSpec(
                        name=name,
                        host=host,
                        port=port,
                        url=url,
                        model_path=None,
                        profile=_record(router),
                        log_path=log_path,
                        start_timeout_s=float(settings.number("start_timeout") or 900),
                        api_key=api_key,
                    ),
                    router.built.command,
                    claim=held,
                    on_event=_Teller(url),
                    policy=RestartPolicy(max_identical=settings.number("max_failures") or 5),
                )
            )
        finally:
            preset_path.unlink(missing_ok=True)
            empty_dir.rmdir()


def _write(preset_path: Path, empty_dir: Path, preset: str) -> None:
    from llama_ai.paths import private, write_atomic

    try:
        private(empty_dir)
        write_atomic(preset_path, preset.encode())
    except OSError as error:
        raise LlamaAiError(f"cannot write {preset_path}: {error.strerror}") from error


def _announce(router: Router, log_path: Path) -> None:
    for model in router.models:
        if model.profile is not None:
            output.note(f"model    {model.name}: {model.profile.summary}")
        else:
            output.note(f"refused  {model.name}: {model.why_not}")
    output.note(f"loaded   at most {router.models_max} at once")
    output.note(f"log      {log_path}")


def _record(router: Router) -> dict[str, Any]:
    """What ``status`` shows."""
    fitting = sum(model.profile is not None for model in router.models)
    return {
        "name": "router",
        "summary": f"{fitting} models, at most {router.models_max} loaded",
        "models_max": router.models_max,
        "models": [
            {
                "name": model.name,
                "path": str(model.path),
                "summary": model.profile.summary if model.profile else None,
                "why_not": model.why_not,
            }
            for model in router.models
        ],
    }


class _Teller:
    """Prints the supervisor's events; at the first "ready" the URL."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._announced = False

    def __call__(self, event: Event) -> None:
        from llama_ai.supervisor.state import State

        if event.state is State.READY and not self._announced:
            self._announced = True
            output.note(
                f"ready    {self._url}  (OpenAI: {self._url}/v1; the request names a model)"
            )
            return
        output.note(event.message)
