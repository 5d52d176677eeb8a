"""What ``serve`` and ``profile`` share: words -> settings -> model, machine, engine -> profile."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.cli import output
from llama_ai.command import Built, build_command
from llama_ai.config import read_config, resolve
from llama_ai.errors import EngineNotReadyError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_ai.config import Settings
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.gguf.facts import ModelFacts
    from llama_ai.hardware.facts import HardwareFacts, Overrides
    from llama_ai.models.catalog import Entry
    from llama_ai.planning import EngineDevice, Profile
    from llama_ai.settings import Value
    from solver.types import Disk, Layout, Rejected


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A profile and the command that serves it."""

    profile: Profile
    facts: HardwareFacts
    engine: EngineInfo | None
    built: Built


def read_settings(flags: Mapping[str, Value | None], assignments: Sequence[str]) -> Settings:
    """All settings with their sources; also checks those that depend on one another."""
    settings = resolve(
        flags=flags,
        assignments=assignments,
        environ=os.environ,
        config=read_config(paths.config_dir() / "config.toml"),
    )
    check_open(settings)
    return settings


def check_open(settings: Settings) -> None:
    """Refuse to listen beyond this machine without a key, unless the user said so."""
    host = settings.text("host") or ""
    if is_loopback(host) or settings.switch("allow_open"):
        return
    if settings.text("api_key") is None and settings.text("api_key_file") is None:
        raise UsageError(
            f"listening on {host} would open the server to the network without a key",
            hint="give --api-key-file FILE (or LLAMA_AI_API_KEY), or say --allow-open",
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``; a name but ``localhost`` counts as open."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_api_key(settings: Settings) -> str | None:
    """The key that our own health checks send; raises UsageError for a key file without a key."""
    key = settings.text("api_key")
    if key is not None:
        return key
    name = settings.text("api_key_file")
    if name is None:
        return None
    try:
        lines = Path(name).expanduser().read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the key file {name}: {error}") from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise UsageError(f"the key file {name} holds no key", hint="one key a line")
    return keys[0]


def find_model(word: str | None, settings: Settings) -> Entry:
    """The model that is meant; without a word, the only one of the catalog."""
    from llama_ai.models.catalog import resolve as resolve_model
    from llama_ai.models.catalog import scan

    dirs = settings.config.model_dirs
    if word is not None:
        return resolve_model(word, dirs, os.environ)
    entries = [entry for entry in scan(dirs, os.environ) if not entry.missing]
    if len(entries) == 1:
        return entries[0]
    if not entries:
        raise ModelNotFoundError(
            "there are no models here",
            hint="try `llama-ai serve --demo`, or put a GGUF file into models/",
        )
    names = ", ".join(sorted({entry.name for entry in entries})[:8])
    raise ModelNotFoundError("which model?", hint=f"name one of: {names}")


def detect_machine(settings: Settings, root: str | None) -> HardwareFacts:
    """This machine's facts, or those of a recorded one; the user's overrides applied."""
    from llama_ai.hardware.detect import detect
    from llama_ai.hardware.root import Root, open_root

    overrides = overrides_from(settings)
    if root is None:
        return detect(Root("/"), overrides)
    with open_root(root) as recorded:
        return detect(recorded, overrides)


def overrides_from(settings: Settings) -> Overrides:
    """What the user says about the machine."""
    from llama_ai.hardware.facts import parse_overrides

    return parse_overrides(
        hardware_tier=settings.text("hardware_tier"),
        is_strix_halo=settings.switch("is_strix_halo"),
        gfx_version=settings.text("gfx_version"),
        gpu=settings.text("gpu"),
    )


def ready_engine(settings: Settings, facts: HardwareFacts) -> EngineInfo:
    """The engine to serve with: the user's, or ours, built now if need be (progress on stderr)."""
    from llama_ai.cli.engine_progress import EngineProgress
    from llama_ai.engine.engines import ensure_engine

    with EngineProgress() as progress:
        return ensure_engine(
            backend=settings.text("backend"),
            engine_path=settings.text("engine"),
            gfx=facts.gpu.gfx if facts.gpu else None,
            on_progress=progress.show,
        )


def prepare(
    settings: Settings,
    *,
    entry: Entry,
    facts: HardwareFacts,
    engine: EngineInfo | None,
    raw: Sequence[str],
    as_asked: bool = False,
    verify: bool = False,
    live: bool = True,
    alone: bool = True,
) -> Prepared:
    """Solve for the model ``entry`` and build the command. ``engine`` is ``None`` in a dry run.

    ``verify`` has the engine measure the plan before it is used, where it can. ``live``: ``facts``
    are this machine's. ``alone``: no other model is served beside it (of many, what the engine
    measured earlier is believed).
    """
    from llama_ai.cli.verify import verified
    from llama_ai.companions import choose_companions
    from llama_ai.experts.choice import stats_path
    from llama_ai.experts.use import read_use
    from llama_ai.gguf.facts import read_facts
    from llama_ai.planning import choose_target, make_profile
    from llama_ai.supervisor.learned import recall

    model = read_facts(entry.path)
    projector = entry.projector
    companions = choose_companions(
        model, entry.companions, projector.path if projector else None, settings
    )
    for text in companions.notes:
        output.note(f"note: {text}")
    target = choose_target(
        facts,
        settings,
        os.environ,
        _devices(settings, facts, engine),
        no_residency=no_residency(engine, alone=alone),
    )
    learned = recall(lesson_key(facts, model, engine)) if engine and not as_asked else None

    disk = model_disk(entry.path) if live else None
    use = read_use(stats_path(model.path, model.size_bytes)) if live and model.is_moe else None

    def make(refused: Mapping[Layout, Rejected]) -> Profile:
        return make_profile(
            model,
            model_path=model.path,
            model_name=entry.name,
            companions=companions,
            target=target,
            settings=settings,
            learned=learned,
            as_asked=as_asked,
            refused=refused,
            disk=disk,
            expert_use=use,
        )

    profile = verified(engine, make, known=not alone) if verify and engine is not None else make({})
    return Prepared(
        profile=profile,
        facts=facts,
        engine=engine,
        built=command_for(profile, settings, engine, raw),
    )


def model_disk(path: Path) -> Disk | None:
    """The disk of this machine that ``path`` is on, as far as it is known."""
    from llama_ai.hardware.disk_speed import disk_of
    from llama_ai.hardware.root import Root

    return disk_of(Root("/"), path)


def no_residency(engine: EngineInfo | None, *, alone: bool = True) -> str | None:
    """Why experts cannot be read from disk; without an engine, ours is going to be built."""
    if not alone:
        # The engine takes one expert budget, and the router starts every model with the same flags.
        return "it serves one model only: name this one alone"
    if engine is not None and "expert-residency" not in engine.capabilities:
        return "this engine cannot do it; our own build can"
    return None


def command_for(
    profile: Profile, settings: Settings, engine: EngineInfo | None, raw: Sequence[str]
) -> Built:
    """The command that serves ``profile`` with ``engine`` (``None``: a dry run without one)."""
    return build_command(
        profile,
        settings,
        server=str(engine.server) if engine else "llama-ai-server",
        known_flags=engine.flags if engine else None,
        environ=os.environ,
        raw=raw,
    )


def lesson_key(facts: HardwareFacts, model: ModelFacts, engine: EngineInfo) -> str:
    """What a lesson holds for: this machine, this model, this engine."""
    from llama_ai.supervisor.learned import key

    gpu = facts.gpu
    return key(
        gpu.device if gpu else None,
        gpu.vram_bytes if gpu else None,
        gpu.gtt_bytes if gpu else None,
        facts.memory.ram_bytes,
        facts.cpu.model,
        model.path.name,
        model.size_bytes,
        engine.key,
    )


def refuse_early(settings: Settings, entry: Entry, facts: HardwareFacts) -> None:
    """Solve without an engine; raises what no engine would change: a bad model, nothing fits."""
    try:
        prepare(settings, entry=entry, facts=facts, engine=None, raw=())
    except EngineNotReadyError:
        return  # devices are known only once there is an engine


def forget_lessons(facts: HardwareFacts, model_path: Path, engine: EngineInfo) -> None:
    """Drop what was learned for this machine, model and engine, and say so."""
    from llama_ai.gguf.facts import read_facts
    from llama_ai.supervisor.learned import forget

    if forget(lesson_key(facts, read_facts(model_path), engine)):
        output.note("note: forgot what earlier failures of this model had taught")


def _devices(
    settings: Settings, facts: HardwareFacts, engine: EngineInfo | None
) -> tuple[EngineDevice, ...] | None:
    """What the engine lists, asked only where the answer matters: it costs a driver start."""
    from llama_ai.engine.capabilities import list_devices
    from llama_ai.hardware.childenv import child_env

    backend = settings.text("backend")
    if engine is None or backend == "cpu":
        return None
    if backend is None and settings.text("device") is None and facts.gpu is None:
        return None
    env = {
        **os.environ,
        **child_env(facts, user_env=os.environ, backend=backend or "vulkan").set,
    }
    return list_devices(engine, env)


def show_notes(built: Built) -> None:
    """What was left out or taken away, on stderr."""
    for text in built.notes:
        output.note(f"note: {text}")


def named_engine(settings: Settings) -> EngineInfo | None:
    """The engine that the user named, if one was; our own can do what a plan may need."""
    return None if settings.text("engine") is None else built_engine(settings)


def built_engine(settings: Settings) -> EngineInfo | None:
    """The engine for a dry run: the user's, or one that is already built; never built for this."""
    from llama_ai.engine.engines import ensure_engine, installed_engines

    path, backend = settings.text("engine"), settings.text("backend")
    if path is not None:
        return ensure_engine(backend=backend, engine_path=path)
    for engine in installed_engines():
        if not engine.stock and (backend is None or backend in engine.backends):
            return engine
    return None
