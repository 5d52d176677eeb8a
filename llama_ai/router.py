"""Several models on one port: the engine's router, its preset file and its command (pure).

Each model has a section with its own solved profile. The router loads what a request names, unloads
what was used least recently when ``--models-max`` are loaded, and lists all of them. A model that
does not fit has a section too, so that it is listed and a request for it is answered with the
reason; its section names no file that could be loaded.

A preset file takes ``#`` and ``;`` for the start of a comment wherever they stand, ends a section's
name at ``]``, and rewrites what follows a colon there. So a model is listed under a name without
those, with its true name as an alias, and a path that holds them is reached through a link.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from llama_ai.command import Built, Command, environment_of, spoken
from llama_ai.errors import EngineNotReadyError
from solver.together import side_by_side
from solver.types import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_ai.config import Settings
    from llama_ai.planning import Profile

_OF_THE_ROUTER: Final = frozenset({"--host", "--port", "--alias", "--api-key-file"})
"""Words that the router takes, or sets for its children itself."""
_OWN: Final = frozenset({"--kv-dir", "--kv-max-gib", "--kv-max-age-days", "--system-prompts"})
"""Our engine's own flags: no preset knows them; the router hands them on to every model."""
_OF_ONE_MODEL: Final = "--expert-"
"""The start of those of our engine's own flags that would differ from model to model."""
NO_FILE: Final = "does-not-fit"
IDLE_UNLOAD_S: Final = 1800
"""Seconds without a request after which a model gives its memory back, unless ``ttl`` says
another number: with several models somebody else may want it."""

_IN_VALUE: Final = frozenset("#;\r\n\0")
_IN_SECTION: Final = frozenset("[]:#;,\r\n\0")


@dataclass(frozen=True, kw_only=True)
class Routed:
    """A model behind the router: its profile, or why it has none."""

    name: str
    path: Path
    profile: Profile | None
    why_not: str | None = None
    aliases: tuple[str, ...] = ()
    listed_as: str = ""
    """Its ``id`` in ``/v1/models``, chosen by :func:`build_router`."""

    @property
    def asked_as(self) -> str:
        """The name for a request: its own, if the engine can be told it."""
        return self.name if _fits_alias(self.name) else self.listed_as


@dataclass(frozen=True, kw_only=True)
class Router:
    """What to start, what to write before, and how many models may be loaded at once."""

    built: Built
    models: tuple[Routed, ...]
    models_max: int
    sections: Mapping[str, str] = field(repr=False)
    """The preset file's text, by :attr:`Routed.name`."""
    links: Mapping[Path, Path] = field(default_factory=dict)
    """Links to make, and what each points to."""
    cache_ram_mib: int
    """The prompt cache of each model at most."""

    @property
    def refused(self) -> dict[str, str]:
        """Why a model does not fit, under each name that a request may give it.

        Our engine answers with it at once; another would unload a model to make room first.
        """
        return {
            name: model.why_not or "nothing fits"
            for model in self.models
            if model.profile is None
            for name in (model.listed_as, model.name, *model.aliases)
        }

    @property
    def preset(self) -> str:
        """The preset file."""
        return "\n".join(("version = 1\n", *self.sections.values()))


def build_router(
    models: Sequence[Routed],
    settings: Settings,
    *,
    server: str,
    known_flags: frozenset[str] | None,
    environ: Mapping[str, str],
    preset_path: Path,
    refused_path: Path,
    empty_dir: Path,
    link_dir: Path,
    raw: Sequence[str] = (),
) -> Router:
    """The router over ``models``, of which at least one must have a profile.

    ``preset_path`` is where the caller writes ``preset``, ``refused_path`` where ``refused``;
    ``empty_dir`` is a directory without models, so that the engine lists no others; in ``link_dir``
    the caller makes ``links``. Raises :class:`~llama_ai.errors.EngineNotReadyError` for an engine
    without a router.
    """
    if known_flags is not None and "--models-preset" not in known_flags:
        raise EngineNotReadyError(
            f"{server} cannot serve several models", hint="use our own build, or name one model"
        )
    fitting = [model.profile for model in models if model.profile is not None]
    together = side_by_side(
        fitting[0].target.machine,
        [one.plan.memory for one in fitting],
        fixed_caches=fitting[0].intent.cache_ram_mib is not None,
    )
    chosen = tuple(
        model
        if model.profile is None
        else replace(model, profile=_with_cache(model.profile, together.cache_ram_mib))
        for model in _listed(models)
    )
    sections: dict[str, str] = {}
    notes: dict[str, None] = {}
    own: dict[str, tuple[str, ...]] = {}
    links: dict[Path, Path] = {}
    for model in chosen:
        if model.profile is None:
            sections[model.name] = _refusal(model)
            continue
        words, said = spoken(model.profile, settings, server=server, known_flags=known_flags)
        notes.update(dict.fromkeys(said))
        own.update({word[0]: word for word in words if word[0] in _OWN and word[0] not in own})
        sections[model.name] = _section(model, model.profile, settings, words, link_dir, links)
        if model.asked_as != model.name:
            notes[f"{model.name!r} is served as {model.asked_as}"] = None
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
        *(part for word in own.values() for part in word),
    ]
    if known_flags is None or "--refused-models" in known_flags:
        argv += ["--refused-models", str(refused_path)]
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
        models=chosen,
        models_max=together.count,
        sections=sections,
        links=links,
        cache_ram_mib=together.cache_ram_mib,
    )


def with_profile(
    router: Router,
    name: str,
    profile: Profile,
    settings: Settings,
    *,
    server: str,
    known_flags: frozenset[str] | None,
    link_dir: Path,
) -> Router:
    """The router with another profile for one model; the sections of all others stay as they are,
    so that the engine, told to read the file again, leaves them alone."""
    profile = _with_cache(profile, router.cache_ram_mib)
    models = tuple(
        replace(model, profile=profile) if model.name == name else model for model in router.models
    )
    words, _ = spoken(profile, settings, server=server, known_flags=known_flags)
    links = dict(router.links)
    texts = {
        model.name: _section(model, profile, settings, words, link_dir, links)
        for model in models
        if model.name == name
    }
    return replace(router, models=models, sections={**router.sections, **texts}, links=links)


def _listed(models: Sequence[Routed]) -> list[Routed]:
    """Each model with a name that a section can have and no other model has."""
    taken: set[str] = {"*", "default", *(alias for model in models for alias in model.aliases)}
    names = {model.name for model in models}
    listed: list[Routed] = []
    for model in models:
        clean = "".join("-" if letter in _IN_SECTION else letter for letter in model.name)
        clean = clean.encode("utf-8", "replace").decode().strip() or "model"
        # A refusal's reason is part of its name, which makes that one its own.
        title = clean
        if model.profile is None:
            title = f"{clean} ({_title(model.why_not or 'does not fit')})"
        number = 2
        while title in taken or (title != model.name and title in names):
            title, number = f"{clean}-{number}", number + 1
        taken.add(title)
        listed.append(replace(model, listed_as=title))
    return listed


def _title(reason: str) -> str:
    plain = reason.replace(": ", ", ")
    return "".join(" " if letter in _IN_SECTION - {","} else letter for letter in plain)


def _fits_alias(name: str) -> bool:
    return _fits_value(name) and "," not in name


def _fits_value(text: str) -> bool:
    """Whether a preset file gives ``text`` back as it is."""
    if text != text.strip() or any(letter in _IN_VALUE for letter in text):
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return False
    return True


def _aliases(model: Routed) -> list[str]:
    own = (model.name,) if model.name != model.listed_as and _fits_alias(model.name) else ()
    aliases = [*own, *(alias for alias in model.aliases if _fits_alias(alias))]
    return [f"alias = {','.join(aliases)}"] if aliases else []


def _section(
    model: Routed,
    profile: Profile,
    settings: Settings,
    words: Sequence[tuple[str, ...]],
    link_dir: Path,
    links: dict[Path, Path],
) -> str:
    lines = [f"[{model.listed_as}]", *_aliases(model)]
    for word in words:
        if word[0] in _OWN or word[0] in _OF_THE_ROUTER or word[0].startswith(_OF_ONE_MODEL):
            continue
        value = word[1] if len(word) > 1 else "true"
        if not _fits_value(value):
            value = str(_linked(Path(value), profile, link_dir, links))
        lines.append(f"{word[0].lstrip('-')} = {value}")
    if settings.number("ttl") is None:
        lines.append(f"sleep-idle-seconds = {IDLE_UNLOAD_S}")
    return "\n".join(lines) + "\n"


def _linked(path: Path, profile: Profile, link_dir: Path, links: dict[Path, Path]) -> Path:
    """A plain path that leads to ``path``, and beside it to its other parts, if it has any."""
    known = next((link for link, target in links.items() if target == path), None)
    if known is not None:
        return known
    headers = [profile.model.header]
    if profile.draft is not None and profile.draft.facts is not None:
        headers.append(profile.draft.facts.header)
    parts = next(
        (header.shards for header in headers if path in {shard.path for shard in header.shards}),
        (),
    )
    folder = link_dir / str(len({link.parent for link in links}))
    for target in {path, *(shard.path for shard in parts)}:
        links[folder / _plain(target.name)] = target
    return folder / _plain(path.name)


def _plain(name: str) -> str:
    readable = name.encode("utf-8", "replace").decode().strip()
    return "".join("_" if letter in _IN_VALUE else letter for letter in readable)


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
    lines = [f"[{model.listed_as}]", *_aliases(model), f"model = {NO_FILE}", "tags = does-not-fit"]
    return "\n".join(lines) + "\n"
