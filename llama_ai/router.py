"""Several models on one port: the engine's router, its preset file and its command (pure).

Each model has a section with its own solved profile. The router loads what a request names, unloads
what was used least recently when ``--models-max`` are loaded, and lists all of them. A model that
does not fit has a section too, so that it is listed and a request for it is answered with the
reason; its section names no file that could be loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from llama_ai.command import Built, Command, environment_of, spoken
from llama_ai.errors import EngineNotReadyError
from solver.together import side_by_side
from solver.types import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from llama_ai.config import Settings
    from llama_ai.planning import Profile

_OF_THE_ROUTER: Final = frozenset({"--host", "--port", "--alias", "--api-key-file"})
"""Words that the router takes, or sets for its children itself."""
_OWN: Final = frozenset({"--kv-dir", "--kv-max-gib", "--kv-max-age-days", "--system-prompts"})
"""Our engine's own flags: no preset knows them; the router hands them on to every model."""
NO_FILE: Final = "does-not-fit"


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A model behind the router: its profile, or why it has none."""

    name: str
    path: Path
    profile: Profile | None
    why_not: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def unwritable(self) -> str | None:
        """Why a preset file cannot hold it."""
        if any(letter in self.name for letter in "]\r\n,"):
            return "its name holds a bracket, a comma or a line break"
        if any(letter in str(self.path) for letter in "#;\r\n"):
            return "its path holds # or ;, which a preset file takes for a comment"
        return None


@dataclass(frozen=True, kw_only=True)
class Router:
    """What to start, what to write before, and how many models may be loaded at once."""

    built: Built
    preset: str
    models: tuple[Routed, ...]
    models_max: int


def build_router(
    models: Sequence[Routed],
    settings: Settings,
    *,
    server: str,
    known_flags: frozenset[str] | None,
    environ: Mapping[str, str],
    preset_path: Path,
    empty_dir: Path,
    raw: Sequence[str] = (),
) -> Router:
    """The router over ``models``, of which at least one must have a profile.

    ``preset_path`` is where the caller writes ``preset``; ``empty_dir`` is a directory without
    models, so that the engine lists no others. Raises
    :class:`~llama_ai.errors.EngineNotReadyError` for an engine without a router.
    """
    if known_flags is not None and "--models-preset" not in known_flags:
        raise EngineNotReadyError(
            f"{server} cannot serve several models", hint="use our own build, or name one model"
        )
    checked = [
        replace(model, profile=None, why_not=model.unwritable) if model.unwritable else model
        for model in models
    ]
    fitting = [model.profile for model in checked if model.profile is not None]
    together = side_by_side(
        fitting[0].target.machine,
        [one.plan.memory for one in fitting],
        fixed_caches=fitting[0].intent.cache_ram_mib is not None,
    )
    chosen = tuple(
        model
        if model.profile is None
        else replace(model, profile=_with_cache(model.profile, together.cache_ram_mib))
        for model in checked
    )
    sections: list[str] = ["version = 1\n"]
    notes: dict[str, None] = {}
    own: list[str] = []
    for model in chosen:
        if model.profile is None:
            sections.append(_refusal(model))
            continue
        words, said = spoken(model.profile, settings, server=server, known_flags=known_flags)
        notes.update(dict.fromkeys(said))
        lines = [f"[{model.name}]"]
        # The engine rewrites what follows a colon in a section's name ("qwen3:8b" to "qwen3:8B").
        aliases = (*((model.name,) if ":" in model.name else ()), *model.aliases)
        if aliases:
            lines.append(f"alias = {','.join(aliases)}")
        for word in words:
            if word[0] in _OWN:
                own = [*own, *word] if word[0] not in own else own
            elif word[0] not in _OF_THE_ROUTER:
                lines.append(f"{word[0].lstrip('-')} = {word[1] if len(word) > 1 else 'true'}")
        sections.append("\n".join(lines) + "\n")
    argv = [
        server,
        *("--host", settings.text("host") or "127.0.0.1"),
        *("--port", str(settings.number("port"))),
        *("--models-preset", str(preset_path)),
        *("--models-max", str(together.count)),
        "--models-autoload",
        *("--cors-origins", settings.text("cors_origins") or "localhost"),
        "--no-ui",
        "--offline",
        *own,
    ]
    key_file = settings.text("api_key_file")
    if key_file is not None:
        argv += ["--api-key-file", key_file]
    env, removed = environment_of(fitting[0], settings, environ)
    # The engine would list what it finds in the Hugging Face cache, without any plan.
    env["LLAMA_CACHE"] = str(empty_dir)
    return Router(
        built=Built(
            command=Command(argv=(*argv, *raw), env=env),
            notes=(
                *notes,
                *(f"{name} is not passed on: it would change the plan" for name in removed),
            ),
        ),
        preset="\n".join(sections),
        models=chosen,
        models_max=together.count,
    )


def _with_cache(profile: Profile, cache_ram_mib: int) -> Profile:
    """The profile with its share of what the host has left for prompt caches."""
    plan = profile.plan
    if profile.intent.cache_ram_mib is not None or plan.cache_ram_mib <= cache_ram_mib:
        return profile
    host = replace(plan.memory.host, prompt_cache_bytes=cache_ram_mib * MIB)
    return replace(
        profile,
        plan=replace(plan, cache_ram_mib=cache_ram_mib, memory=replace(plan.memory, host=host)),
    )


def _refusal(model: Routed) -> str:
    """A section that cannot load: the engine's error repeats its name, and so the reason."""
    reason = model.why_not or "does not fit"
    title = "".join(" " if letter in "[]\r\n#;" else letter for letter in reason)
    title = title.replace(": ", ", ").replace(":", "")
    name = "".join("_" if letter in "[]\r\n,:#;" else letter for letter in model.name)
    lines = [f"[{name} ({title})]", f"model = {NO_FILE}", "tags = does-not-fit"]
    if not any(letter in model.name for letter in ",\r\n#;"):
        lines.insert(1, f"alias = {model.name}")
    return "\n".join(lines) + "\n"
