"""Profile + what the engine understands -> its exact command line and environment (pure).

Every value that the profile decides is said explicitly, so that no default of the engine, no
variable and no config file of another installation changes the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.errors import EngineNotReadyError
from llama_ai.models.names import ENGINE_TYPES
from solver.types import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_ai.config import Settings
    from llama_ai.planning import Profile

API_KEY_VARIABLE = "LLAMA_API_KEY"  # upstream's own variable: a key in argv is public

SCRUBBED_PREFIXES = ("LLAMA_ARG_",)
SCRUBBED = frozenset(
    {
        API_KEY_VARIABLE,
        "LLAMA_AI_API_KEY",
        "LLAMA_APP_CMD",
        "LLAMA_SERVER_CHILD_MODE",
        "LLAMA_SERVER_ROUTER_PORT",
        "AIP_MODE",
        "AIP_HEALTH_ROUTE",
        "AIP_PREDICT_ROUTE",
        "AIP_HTTP_PORT",
    }
)
"""Variables that the engine reads before its command line and that would change the plan."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What the supervisor starts: ``argv[0]`` is the program, ``env`` its whole environment."""

    argv: tuple[str, ...]
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Built:
    """A command and what had to be left out or taken away to make it."""

    command: Command
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Word:
    """One thing to tell the engine, in the spellings that its versions know, newest first."""

    spellings: tuple[tuple[str, ...], ...]
    needed: bool = True
    """Whether the plan breaks without it."""


def _say(*words: str) -> _Word:
    return _Word(spellings=(words,))


def _may(*words: str) -> _Word:
    return _Word(spellings=(words,), needed=False)


def build_command(
    profile: Profile,
    settings: Settings,
    *,
    server: str,
    known_flags: frozenset[str] | None,
    environ: Mapping[str, str],
    raw: Sequence[str] = (),
) -> Built:
    """The engine's command line for ``profile``.

    ``known_flags`` is what the binary's own ``--help`` lists (``None``: not asked, a dry run
    without an engine). A flag that the binary lacks is left out and noted, or, where the plan would
    break without it, refused with :class:`~llama_ai.errors.EngineNotReadyError`.
    """
    words, notes = spoken(profile, settings, server=server, known_flags=known_flags)
    argv = [server, *(part for word in words for part in word), *raw]
    env, removed = environment_of(profile, settings, environ)
    notes += [f"{name} is not passed on: it would change the plan" for name in removed]
    notes += [
        f"{kept.name}={kept.value} is yours and stays" + (f" ({kept.note})" if kept.note else "")
        for kept in profile.target.child_env.kept
    ]
    return Built(command=Command(argv=tuple(argv), env=env), notes=tuple(notes))


def spoken(
    profile: Profile, settings: Settings, *, server: str, known_flags: frozenset[str] | None
) -> tuple[list[tuple[str, ...]], list[str]]:
    """The words of :func:`build_command`, each with its value, and what had to be left out."""
    said: list[tuple[str, ...]] = []
    notes: list[str] = []
    for word in _words(profile, settings):
        chosen = next(
            (
                spelling
                for spelling in word.spellings
                if known_flags is None or spelling[0] in known_flags
            ),
            None,
        )
        if chosen is not None:
            said.append(chosen)
        elif word.needed:
            raise EngineNotReadyError(
                f"{server} does not know {word.spellings[0][0]}, which this plan needs",
                hint="use our own build (leave out --engine)",
            )
        else:
            notes.append(f"{word.spellings[0][0]} left out: this engine does not know it")
    return said, notes


def plan_environment(profile: Profile) -> dict[str, str]:
    """The variables that the plan adds to the child's environment (no secrets)."""
    return dict(profile.target.child_env.set)


def _words(profile: Profile, settings: Settings) -> list[_Word]:
    plan, layout = profile.plan, profile.plan.layout
    device = profile.target.device
    engine_fits = settings.text("fit") == "on"
    words = [
        _say("--model", str(profile.model_path)),
        _may("--alias", settings.text("alias") or profile.model_name),
        _say("--host", settings.text("host") or "127.0.0.1"),
        _say("--port", str(settings.number("port"))),
        _say("--ctx-size", str(layout.ctx_size)),
        _say("--cache-type-k", layout.kv_type_k),
        _say("--cache-type-v", layout.kv_type_v),
        _say("--flash-attn", "on" if layout.flash_attn else "off"),
        _say("--batch-size", str(layout.batch)),
        _say("--ubatch-size", str(layout.ubatch)),
        _say("--threads", str(plan.threads)),
        _say("--threads-batch", str(plan.threads_batch)),
        _say("--parallel", str(layout.n_parallel)),
        _may("--kv-unified" if layout.kv_unified else "--no-kv-unified"),
        _Word(
            spellings=(
                ("--load-mode", layout.load_mode),
                ("--mmap" if layout.load_mode == "mmap" else "--no-mmap",),
            ),
            needed=False,
        ),
        _say("--device", device.name if device else "none"),
        _may("--fit", "on" if engine_fits else "off"),
    ]
    if not engine_fits:
        # The engine's own fitting gives up when the layers are named.
        words.append(_say("--gpu-layers", str(layout.gpu_layers)))
        if layout.n_cpu_moe:
            words.append(_say("--n-cpu-moe", str(layout.n_cpu_moe)))
    if not layout.repack:
        words.append(_say("--no-repack"))
    words += _companions(profile)
    words += [
        _may("--cache-ram", str(plan.cache_ram_mib)),
        *_kv_disk(profile),
        *_experts(profile),
        _may("--no-context-shift"),
        _may("--jinja"),
        # Only from this level on does the engine say where the layers went; a few lines a request.
        _may("--verbosity", "4"),
        _may("--metrics"),
        _may("--slots"),
        _may("--no-ui"),
        _may("--cors-origins", settings.text("cors_origins") or "localhost"),
        _may("--offline"),
    ]
    if profile.model.reasons:
        words.append(_may("--reasoning-budget", str(settings.number("reasoning_budget"))))
        # The engine keeps earlier thoughts unless told otherwise.
        keep = settings.switch("preserve_reasoning")
        words.append(_may("--reasoning-preserve" if keep else "--no-reasoning-preserve"))
    ttl_s = settings.number("ttl")
    if ttl_s:
        words.append(_may("--sleep-idle-seconds", str(ttl_s)))
    key_file = settings.text("api_key_file")
    if key_file is not None:
        words.append(_say("--api-key-file", key_file))
    return words


def _kv_disk(profile: Profile) -> list[_Word]:
    """The KV cache on disk; our own engine's flags, off unless it is told where."""
    disk = profile.kv_disk
    if disk is None or not disk.enabled:
        return []
    return [
        _may("--kv-dir", str(disk.directory)),
        _may("--kv-max-gib", str(disk.max_gib)),
        _may("--kv-max-age-days", str(disk.max_age_days)),
        _may("--system-prompts", str(disk.system_prompts)),
    ]


def _experts(profile: Profile) -> list[_Word]:
    """Counting experts, and reading them from disk; our own engine's flags."""
    experts, layout = profile.experts, profile.plan.layout
    if experts is None:
        return []
    words: list[_Word] = []
    if experts.tracking:
        words += [
            _may("--expert-tracking"),
            _may("--expert-stats-file", str(experts.stats_path)),
        ]
    if layout.expert_budget_bytes is None:
        return words
    words += [
        _say("--expert-residency"),
        _say("--expert-budget-mib", str(layout.expert_budget_bytes // MIB)),
        _may("--expert-prefetch-threads", str(experts.prefetch_threads)),
        # A device would copy whole layers of experts for itself.
        _say("--no-op-offload"),
    ]
    if experts.prewarm:
        words.append(_may("--expert-prewarm"))
    return words


def _companions(profile: Profile) -> list[_Word]:
    """The projector and the draft; the plan counts their memory, so the engine must know them."""
    words: list[_Word] = []
    projector, draft = profile.companions.projector, profile.draft
    if projector is not None:
        words.append(_may("--mmproj", str(projector.path)))
        if not profile.plan.layout.gpu_layers:
            words.append(_may("--no-mmproj-offload"))
    if draft is None:
        return words
    words += [
        _say("--spec-type", ENGINE_TYPES[draft.kind]),
        _may("--spec-draft-n-max", str(draft.n_max)),
    ]
    if draft.p_min is not None:
        words.append(_may("--spec-draft-p-min", f"{draft.p_min:g}"))
    if draft.path is not None:
        device = profile.target.device
        words += [
            _say("--spec-draft-model", str(draft.path)),
            _may("--spec-draft-ngl", "999" if profile.plan.layout.gpu_layers else "0"),
            _may("--spec-draft-device", device.name if device else "none"),
        ]
    return words


def environment_of(
    profile: Profile, settings: Settings, environ: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The child's whole environment, and the names that were taken out of it."""
    removed = [name for name in environ if name in SCRUBBED or name.startswith(SCRUBBED_PREFIXES)]
    env = {name: value for name, value in environ.items() if name not in removed}
    env.update(profile.target.child_env.set)
    key = settings.text("api_key")
    if key is not None:
        env[API_KEY_VARIABLE] = key
    return env, sorted(name for name in removed if not name.startswith("LLAMA_AI_"))
