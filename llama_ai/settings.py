"""One table of settings: TOML key, flag, environment variable, engine flag and help come from here.

A setting is written once. Its snake_case name is the TOML key and the word for ``--set``; its flag
is the same word in kebab-case; its environment variable is ``LLAMA_AI_<NAME>``. The variables of
the seed's script are honoured below ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from llama_ai.errors import UsageError
from solver.types import KV_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Kind = Literal["int", "float", "bool", "str", "path", "choice", "kv_types", "device_list"]
Value = int | float | bool | str

ENV_PREFIX = "LLAMA_AI_"

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of the table."""

    name: str
    kind: Kind
    help: str
    default: Value | None = None
    """``None``: nobody has decided; detection or the solver does."""
    short: str | None = None
    """A one- or two-letter flag beside the long one (``-ngl``)."""
    negative_flag: str | None = None
    """A switch's flag for "off", where it is not ``--no-<name>``."""
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    engine_flag: str | None = None
    """The engine's flag for it, where the value goes through unchanged."""
    seed_variables: tuple[str, ...] = ()
    """Variables of the seed's script, first match wins."""
    seed_value: Callable[[Mapping[str, str]], str | None] | None = None
    """For seed variables whose value needs translation; replaces ``seed_variables``' lookup."""
    secret: bool = False

    @property
    def flag(self) -> str:
        """``--ctx-size`` for ``ctx_size``."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """``LLAMA_AI_CTX_SIZE`` for ``ctx_size``."""
        return ENV_PREFIX + self.name.upper()

    def parse(self, text: str) -> Value:
        """The value that ``text`` names; raises :class:`~llama_ai.errors.UsageError`."""
        if self.kind == "int":
            return self._checked_int(text)
        if self.kind == "float":
            return self._checked_float(text)
        if self.kind == "bool":
            lowered = text.strip().lower()
            if lowered in {"1", "true", "yes", "on"}:
                return True
            if lowered in {"0", "false", "no", "off", ""}:
                return False
            raise self._bad(text, "on or off")
        if self.kind == "choice":
            if text not in self.choices:
                raise self._bad(text, "one of " + ", ".join(self.choices))
            return text
        if self.kind == "kv_types":
            split_kv_types(text)
            return text
        return text

    def check(self, value: object) -> Value:
        """A value that already has a type (from TOML), checked like :meth:`parse`."""
        if self.kind == "bool" and isinstance(value, bool):
            return value
        if self.kind == "int" and isinstance(value, int) and not isinstance(value, bool):
            return self._checked_int(str(value))
        if self.kind == "float" and isinstance(value, int | float) and not isinstance(value, bool):
            return self._checked_float(str(value))
        if self.kind not in {"bool", "int", "float"} and isinstance(value, str):
            return self.parse(value)
        wanted = {
            "bool": "true or false",
            "int": "a whole number",
            "float": "a number",
        }.get(self.kind, "a string")
        raise self._bad(str(value), wanted)

    def _checked_int(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise self._bad(text, "a whole number") from None
        return self._in_range(number, text)

    def _checked_float(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise self._bad(text, "a number") from None
        if not math.isfinite(number):
            raise self._bad(text, "a number")
        return self._in_range(number, text)

    def _in_range(self, number: _Number, text: str) -> _Number:
        if self.minimum is not None and number < self.minimum:
            raise self._bad(text, f"at least {self.minimum}")
        if self.maximum is not None and number > self.maximum:
            raise self._bad(text, f"at most {self.maximum}")
        return number

    def _bad(self, text: str, wanted: str) -> UsageError:
        shown = "that value" if self.secret else repr(text)
        return UsageError(f"{self.name} must be {wanted}, not {shown}")


def split_kv_types(text: str) -> tuple[str | None, str | None]:
    """``q8_0`` -> both, ``q8_0/q4_0`` -> K and V, ``q8_0/`` or ``/q4_0`` -> one, the other free."""
    key, slash, value = text.partition("/")
    if not slash:
        value = key
    for word in (key, value):
        if word and word not in KV_TYPES:
            raise UsageError(
                f"kv_cache_type: unknown type {word!r}", hint="one of " + ", ".join(KV_TYPES)
            )
    if not key and not value:
        raise UsageError("kv_cache_type is empty", hint="for example q8_0 or q8_0/q4_0")
    return key or None, value or None


def _seed_kv_types(env: Mapping[str, str]) -> str | None:
    key, value = env.get("KV_CACHE_K_OVERRIDE", ""), env.get("KV_CACHE_V_OVERRIDE", "")
    return f"{key}/{value}" if key or value else None


def _seed_ssd_cache(env: Mapping[str, str]) -> str | None:
    text = env.get("_SSD_DISABLE")
    if text is None:
        return None
    return "off" if text.strip().lower() in {"1", "true", "yes", "on"} else "on"


def _of_draft(kind: str, who: str, *, n_max: int, p_min: float) -> tuple[Setting, Setting]:
    """How far a draft of a kind may run ahead, and how sure it must be of a token."""
    return (
        Setting(
            name=f"{kind}_n_max",
            kind="int",
            minimum=1,
            maximum=64,
            default=n_max,
            help=f"tokens that are proposed ahead by {who}",
        ),
        Setting(
            name=f"{kind}_p_min",
            kind="float",
            minimum=0,
            maximum=1,
            default=p_min,
            help=f"least probability of a token that is proposed by {who}",
        ),
    )


SETTINGS: tuple[Setting, ...] = (
    # What the solver decides unless told.
    Setting(
        name="ctx_size",
        kind="int",
        minimum=256,
        maximum=1 << 27,
        engine_flag="--ctx-size",
        seed_variables=("USER_CTX_SIZE",),
        help="context in tokens, shared by all slots",
    ),
    Setting(
        name="kv_cache_type",
        kind="kv_types",
        seed_variables=("KV_CACHE_K_OVERRIDE", "KV_CACHE_V_OVERRIDE"),
        seed_value=_seed_kv_types,
        help="type of the KV cache, K or K/V (f16, q8_0, q4_0, ...)",
    ),
    Setting(
        name="gpu_layers",
        kind="int",
        minimum=0,
        maximum=9999,
        short="-ngl",
        engine_flag="--gpu-layers",
        seed_variables=("OVERRIDE_NGL",),
        help="layers on the GPU (99 means all)",
    ),
    Setting(
        name="moe_strategy",
        kind="choice",
        choices=("gpu", "partial", "cpu", "residency"),
        help="where a MoE model's experts live",
    ),
    Setting(
        name="expert_residency",
        kind="bool",
        help="another word for --moe-strategy residency (off: never chosen by itself)",
    ),
    Setting(
        name="expert_budget_mib",
        kind="int",
        minimum=0,
        maximum=1 << 30,
        engine_flag="--expert-budget-mib",
        help="MiB of memory for experts that are read from disk (0: the kernel's page cache)",
    ),
    Setting(
        name="expert_prefetch_threads",
        kind="int",
        minimum=1,
        maximum=64,
        default=4,
        engine_flag="--expert-prefetch-threads",
        help="experts that are read from disk at the same time",
    ),
    Setting(
        name="expert_prewarm",
        kind="bool",
        default=True,
        help="with experts on disk: read those used most before when the server starts",
    ),
    Setting(
        name="expert_tracking",
        kind="bool",
        default=True,
        help="count which experts of a MoE model are used, and remember it",
    ),
    Setting(
        name="ubatch_size",
        kind="int",
        minimum=1,
        maximum=1 << 16,
        engine_flag="--ubatch-size",
        seed_variables=("OVERRIDE_UBATCH_SIZE", "MOE_UBATCH_OVERRIDE"),
        help="tokens evaluated at once while a prompt is read",
    ),
    Setting(
        name="batch_size",
        kind="int",
        minimum=32,
        maximum=1 << 16,
        engine_flag="--batch-size",
        help="prompt tokens per logical batch",
    ),
    Setting(
        name="threads",
        kind="int",
        minimum=1,
        maximum=1024,
        engine_flag="--threads",
        seed_variables=("LLAMA_THREADS_OVERRIDE",),
        help="CPU threads while generating",
    ),
    Setting(
        name="threads_batch",
        kind="int",
        minimum=1,
        maximum=1024,
        engine_flag="--threads-batch",
        help="CPU threads while a prompt is read",
    ),
    Setting(
        name="parallel",
        kind="int",
        minimum=1,
        maximum=256,
        engine_flag="--parallel",
        help="requests answered at the same time (slots)",
    ),
    Setting(
        name="cache_ram",
        kind="int",
        minimum=0,
        engine_flag="--cache-ram",
        seed_variables=("OVERRIDE_CACHE_RAM",),
        help="MiB of system memory for the prompts of earlier conversations",
    ),
    Setting(
        name="kv_disk",
        kind="bool",
        help="keep conversations on disk, so that they survive a restart",
    ),
    Setting(
        name="kv_dir",
        kind="path",
        help="where they are kept (readable transcripts; a private directory is made)",
    ),
    Setting(
        name="kv_max_gib",
        kind="int",
        minimum=0,
        maximum=1 << 20,
        default=20,
        help="GiB that they may take, of all models together, never more than half of what is free",
    ),
    Setting(
        name="kv_ram_mib",
        kind="int",
        minimum=0,
        help="another word for --cache-ram",
    ),
    Setting(
        name="kv_max_age_days",
        kind="int",
        minimum=0,
        maximum=36500,
        default=30,
        help="days without use after which they are dropped (0: never)",
    ),
    Setting(
        name="system_prompts",
        kind="int",
        minimum=0,
        maximum=1000,
        default=8,
        help="system prompts of each model that are dropped last",
    ),
    Setting(
        name="ssd_cache",
        kind="bool",
        seed_value=_seed_ssd_cache,
        seed_variables=("_SSD_DISABLE",),
        help="another word for --kv-disk",
    ),
    Setting(
        name="fit",
        kind="choice",
        choices=("on", "off"),
        default="off",
        engine_flag="--fit",
        seed_variables=("OVERRIDE_FIT",),
        help="leave the fitting to the engine (on) or to our solver (off)",
    ),
    Setting(
        name="noauto",
        kind="bool",
        default=False,
        negative_flag="--auto",
        help="take the seed's preset table instead of solving",
    ),
    # Reasoning models.
    Setting(
        name="reasoning_budget",
        kind="int",
        minimum=-1,
        default=2048,
        engine_flag="--reasoning-budget",
        seed_variables=("OVERRIDE_REASONING_BUDGET",),
        help="tokens of thinking per answer (-1: no limit)",
    ),
    Setting(
        name="preserve_reasoning",
        kind="bool",
        default=False,
        help="keep the thinking of earlier turns in the prompt",
    ),
    # Drafts and projectors; the numbers of each kind are the seed's.
    Setting(
        name="draft",
        kind="str",
        default="auto",
        help="speculative decoding: auto (what lies beside or inside the model), off, or a FILE",
    ),
    *_of_draft("dspark", "a DSpark draft", n_max=3, p_min=0.0),
    *_of_draft("mtp", "a model's own MTP layers", n_max=2, p_min=0.0),
    *_of_draft("dflash", "a DFlash draft", n_max=7, p_min=0.6),
    Setting(
        name="mmproj",
        kind="bool",
        default=True,
        help="load the vision or audio projector that belongs to the model",
    ),
    # Several models.
    Setting(
        name="ttl",
        kind="int",
        minimum=0,
        maximum=1 << 30,
        help="seconds without a request after which a model gives its memory back (0: never; one of"
        " several: 1800)",
    ),
    # The machine.
    Setting(
        name="backend",
        kind="choice",
        choices=("vulkan", "rocm", "metal", "cpu"),
        help="compute backend",
    ),
    Setting(
        name="device",
        kind="str",
        engine_flag="--device",
        help="the engine's name of the device to use (Vulkan0)",
    ),
    Setting(
        name="gpu",
        kind="str",
        help="which GPU to plan for: card0, a PCI slot, vendor:device, integrated or discrete",
    ),
    Setting(name="engine", kind="path", help="serve with this llama-server instead of our build"),
    Setting(
        name="hardware_tier",
        kind="choice",
        choices=("halo", "standard", "handheld"),
        seed_variables=("LLAMA_HARDWARE_TIER_OVERRIDE",),
        help="plan as for this class of hardware",
    ),
    Setting(
        name="is_strix_halo",
        kind="bool",
        negative_flag="--no-strix-halo",
        seed_variables=("LLAMA_IS_STRIX_HALO_OVERRIDE",),
        help="treat this machine as a Strix Halo, or not",
    ),
    Setting(
        name="gfx_version",
        kind="str",
        seed_variables=("LLAMA_GFX_VERSION_OVERRIDE",),
        help="take this gfx version (11.0.3) instead of the detected one",
    ),
    # The server.
    Setting(
        name="host",
        kind="str",
        default="127.0.0.1",
        engine_flag="--host",
        help="address to listen on",
    ),
    Setting(
        name="port",
        kind="int",
        minimum=1,
        maximum=65535,
        default=9090,
        engine_flag="--port",
        help="port to listen on",
    ),
    Setting(
        name="api_key",
        kind="str",
        secret=True,
        help="key that clients must send (better: --api-key-file or LLAMA_AI_API_KEY)",
    ),
    Setting(
        name="api_key_file",
        kind="path",
        engine_flag="--api-key-file",
        help="file with one key a line",
    ),
    Setting(
        name="allow_open",
        kind="bool",
        default=False,
        help="listen beyond this machine without a key",
    ),
    Setting(
        name="cors_origins",
        kind="str",
        default="localhost",
        engine_flag="--cors-origins",
        help="web pages that may call the server from a browser (* for any)",
    ),
    Setting(name="alias", kind="str", engine_flag="--alias", help="model name shown to clients"),
    # The supervisor.
    Setting(
        name="start_timeout",
        kind="int",
        minimum=1,
        maximum=86400,
        default=900,
        help="seconds that the engine may take to load the model",
    ),
    Setting(
        name="max_failures",
        kind="int",
        minimum=1,
        maximum=100,
        default=5,
        help="identical failures in a row before the supervisor gives up",
    ),
)

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}


def find(name: str) -> Setting:
    """The setting of that name; raises :class:`~llama_ai.errors.UsageError` with near names."""
    key = name.strip().replace("-", "_")
    if key in BY_NAME:
        return BY_NAME[key]
    import difflib

    near = difflib.get_close_matches(key, BY_NAME, n=3)
    hint = "did you mean " + " or ".join(near) + "?" if near else "see `llama-ai serve --help`"
    raise UsageError(f"there is no setting {name!r}", hint=hint)
