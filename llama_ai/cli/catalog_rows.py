"""The catalog with what each model is and whether it fits here: names, headers and the solver.

An answer is remembered by the files' sizes and times and by everything that it depends on, so that
a second look opens no model.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from llama_ai import __version__, paths
from llama_ai.cli.output import bytes_text
from llama_ai.cli.pipeline import detect_machine, model_disk, named_engine, no_residency
from llama_ai.errors import DoesNotFitError, LlamaAiError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from llama_ai.companions import Companions
    from llama_ai.config import Settings
    from llama_ai.gguf.facts import ModelFacts
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.models.catalog import Entry
    from llama_ai.planning import Profile, Target
    from solver.types import Disk

_FORMAT: Final = 1
_MAX_CACHE_BYTES: Final = 16 << 20
WORTH_A_PROCESS: Final = 6
"""Models for which starting a process pays."""
MAX_WORKERS: Final = 8


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a model fits this machine, and how it would be served; ``why_not`` when it does not.

    ``decode_tokens_s`` is the solver's estimate for an empty context.
    """

    fits: bool
    why_not: str | None = None
    over_by_bytes: int | None = None
    strategy: str | None = None
    ctx_size: int | None = None
    kv_type_k: str | None = None
    kv_type_v: str | None = None
    gpu_layers: int | None = None
    draft: str | None = None
    decode_tokens_s: float | None = None

    @property
    def text(self) -> str:
        """A few words: ``gpu 128K f16, ~21 t/s``."""
        if not self.fits:
            if self.over_by_bytes is None:
                return f"no: {self.why_not}"
            return f"no: {bytes_text(self.over_by_bytes)} too large"
        kv_type = self.kv_type_k or ""
        if self.kv_type_v != self.kv_type_k:
            kv_type += f"/{self.kv_type_v}"
        speed = f", ~{self.decode_tokens_s:.3g} t/s" if self.decode_tokens_s else ""
        return f"{self.strategy} {tokens_text(self.ctx_size)} {kv_type}{speed}"


@dataclass(frozen=True, kw_only=True)
class About:
    """What a header says, in the words of the table."""

    kind: str
    """``model``, or what else the file is: ``projector``, ``draft``, ``adapter``, ``other``."""
    architecture: str | None = None
    quant: str | None = None
    n_params: int | None = None
    n_expert: int | None = None
    n_expert_used: int | None = None
    n_ctx_train: int | None = None
    has_chat_template: bool | None = None
    reasons: bool | None = None
    has_mtp: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Row:
    """One model of the catalog; ``problem`` says why ``about`` or ``fit`` is not known."""

    entry: Entry
    about: About | None
    fit: Fit | None
    problem: str | None = None


def catalog_rows(entries: Sequence[Entry], settings: Settings) -> list[Row]:
    """A row for each entry, from the cache where nothing changed."""
    facts = detect_machine(settings, None)
    key = _key(settings, facts)
    known = _load(key)
    stamps = [_stamp(entry) for entry in entries]
    rows: list[Row | None] = []
    for entry, stamp in zip(entries, stamps, strict=True):
        cached = known.get(str(entry.path))
        rows.append(_from_cache(entry, cached) if cached and cached["stamp"] == stamp else None)
    unknown = [index for index, row in enumerate(rows) if row is None]
    if unknown:
        target, problem = target_of(settings, facts)
        answers = _describe_all([entries[index] for index in unknown], target, settings, problem)
        for index, row in zip(unknown, answers, strict=True):
            rows[index] = row
    found = [row for row in rows if row is not None]
    if unknown or len(known) != len(found):
        _store(
            key,
            {
                str(row.entry.path): {
                    "stamp": stamp,
                    "about": asdict(row.about) if row.about else None,
                    "fit": asdict(row.fit) if row.fit else None,
                    "problem": row.problem,
                }
                for row, stamp in zip(found, stamps, strict=True)
            },
        )
    return found


def _describe_all(
    entries: Sequence[Entry], target: Target | None, settings: Settings, problem: str | None
) -> list[Row]:
    """:func:`describe` for each; many of them on all cores, for a vocabulary takes 10 to 50 ms."""
    work = partial(describe, target=target, settings=settings, problem=problem)
    workers = min(os.cpu_count() or 1, len(entries) // WORTH_A_PROCESS, MAX_WORKERS)
    if workers < 2:
        return [work(entry) for entry in entries]
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(work, entries, chunksize=1))


def _from_cache(entry: Entry, cached: Mapping[str, Any]) -> Row:
    return Row(
        entry=entry,
        about=About(**cached["about"]) if cached["about"] else None,
        fit=Fit(**cached["fit"]) if cached["fit"] else None,
        problem=cached["problem"],
    )


def describe(
    entry: Entry, target: Target | None, settings: Settings, problem: str | None = None
) -> Row:
    """Read the header and solve; what cannot be read is a row with its problem."""
    from llama_ai.gguf.facts import facts_of

    if entry.missing:
        return Row(
            entry=entry, about=None, fit=None, problem=f"incomplete: {', '.join(entry.missing)}"
        )
    try:
        from llama_ai.gguf.cache import read_header_cached

        header = read_header_cached(entry.path)
        kind = kind_of_header(header.kv, has_tensors=bool(header.tensors))
        if kind != "model":
            return Row(entry=entry, about=About(kind=kind), fit=None)
        facts = facts_of(header)
    except LlamaAiError as error:
        problem = error.message.removeprefix(f"{entry.path}: ")
        return Row(entry=entry, about=None, fit=None, problem=problem)
    about = about_of(facts)
    if target is None:
        return Row(entry=entry, about=about, fit=None, problem=problem)
    return Row(entry=entry, about=about, fit=fit_of(facts, entry, target, settings))


def kind_of_header(kv: Any, *, has_tensors: bool) -> str:
    """What a file is by its own words, whatever it is called."""
    from llama_ai.gguf.arch import DRAFT_ONLY

    declared, architecture = kv.get("general.type"), kv.get("general.architecture")
    if declared == "adapter":
        return "adapter"
    if declared == "mmproj" or architecture == "clip":
        return "projector"
    if architecture in DRAFT_ONLY:
        return "draft"
    return "model" if has_tensors and declared in {None, "model"} else "other"


def about_of(facts: ModelFacts) -> About:
    """The table's view of a model."""
    used = max((layer.n_expert_used for layer in facts.hparams.layers), default=0)
    return About(
        kind="model",
        architecture=facts.architecture,
        quant=facts.quant,
        n_params=facts.n_params,
        n_expert=facts.hparams.n_expert if facts.is_moe else None,
        n_expert_used=used if facts.is_moe else None,
        n_ctx_train=facts.n_ctx_train,
        has_chat_template=facts.chat_template is not None,
        reasons=facts.reasons,
        has_mtp=facts.has_mtp,
    )


def fit_of(facts: ModelFacts, entry: Entry, target: Target, settings: Settings) -> Fit:
    """The solver's verdict, with the draft and the projector that would be loaded."""
    from llama_ai.companions import choose_companions

    projector = entry.projector
    try:
        companions = choose_companions(
            facts, entry.companions, projector.path if projector else None, settings
        )
    except UsageError as error:
        return Fit(fits=False, why_not=error.message)
    return fit_with(facts, companions, entry.name, target, settings, disk=model_disk(entry.path))


def fit_with(
    facts: ModelFacts,
    companions: Companions,
    name: str,
    target: Target,
    settings: Settings,
    *,
    disk: Disk | None = None,
) -> Fit:
    """The same for a model that need not be on this machine."""
    from llama_ai.planning import make_profile

    try:
        profile = make_profile(
            facts,
            model_path=facts.path,
            model_name=name,
            target=target,
            settings=settings,
            companions=companions,
            disk=disk,
        )
    except DoesNotFitError as error:
        why_not = error.message.removeprefix(f"{name}: ")
        return Fit(fits=False, why_not=why_not, over_by_bytes=error.over_by_bytes)
    return fit_from(profile)


def fit_from(profile: Profile) -> Fit:
    """The verdict of a profile."""
    plan, layout = profile.plan, profile.plan.layout
    speed = plan.speed.decode_tokens_s
    return Fit(
        fits=True,
        strategy=plan.strategy,
        ctx_size=layout.ctx_size,
        kv_type_k=layout.kv_type_k,
        kv_type_v=layout.kv_type_v,
        gpu_layers=layout.gpu_layers,
        draft=profile.draft.kind if profile.draft else None,
        decode_tokens_s=None if speed is None else round(speed, 1),
    )


def tokens_text(count: int | None) -> str:
    """``128K`` for 131072, ``40960`` for an odd number."""
    if count is None:
        return "-"
    return f"{count // 1024}K" if count >= 1024 and count % 1024 == 0 else str(count)


def params_text(count: int | None) -> str:
    """``30.5B``, ``135M``."""
    if count is None:
        return "-"
    for unit, letter in ((10**9, "B"), (10**6, "M")):
        if count >= unit:
            return f"{count / unit:.3g}{letter}"
    return str(count)


def target_here(settings: Settings) -> tuple[Target | None, str | None]:
    """Where models would run here, without asking an engine; or why that is not known."""
    return target_of(settings, detect_machine(settings, None))


def target_of(settings: Settings, facts: HardwareFacts) -> tuple[Target | None, str | None]:
    """The same for facts that were read already."""
    from llama_ai.planning import choose_target

    try:
        why_not = no_residency(named_engine(settings))
        return choose_target(facts, settings, os.environ, None, no_residency=why_not), None
    except LlamaAiError as error:
        return None, error.message


def _key(settings: Settings, facts: HardwareFacts) -> str:
    """Everything but the model that an answer depends on: machine, wishes, our own code.

    Nothing of the code is imported for this: a second look needs neither the solver nor a header.
    """
    from llama_ai.hardware.disk_speed import cache_path
    from llama_ai.settings import SETTINGS

    wishes = {
        setting.name: str(found.value)
        for setting in SETTINGS
        if not setting.secret and (found := settings.get(setting.name)) is not None
    }
    package = Path(__file__).resolve().parent.parent
    code = [
        max((path.stat().st_mtime_ns for path in directory.glob("*.py")), default=0)
        for directory in (
            package,
            package / "gguf",
            package / "hardware",
            package.parent / "solver",
        )
    ]
    # Without what changes all the time, and without a set, whose order is another in each process.
    still = replace(
        facts,
        memory=replace(facts.memory, ram_available_bytes=None),
        cpu=replace(facts.cpu, flags=frozenset()),
    )
    flags = None if facts.cpu.flags is None else sorted(facts.cpu.flags)
    of_drivers = {
        name: value
        for name, value in os.environ.items()
        if name.lower().startswith(("ggml_", "radv_", "vk_", "hsa_", "amd_", "hip_", "rocr_"))
    }
    measured = _stamp_of(cache_path())
    return json.dumps(
        [__version__, code, repr(still), flags, wishes, of_drivers, measured], sort_keys=True
    )


def _stamp(entry: Entry) -> list[list[Any]]:
    companions = (companion.path for companion in entry.companions)
    return [_stamp_of(path) for path in (*entry.files, *companions)]


def _stamp_of(path: Path) -> list[Any]:
    try:
        status = path.stat()
    except OSError:
        return [str(path), 0, 0]
    return [str(path), status.st_size, status.st_mtime_ns]


def _cache_path() -> Path:
    return paths.cache_dir() / "catalog.json"


def _load(key: str) -> dict[str, Any]:
    try:
        if _cache_path().stat().st_size > _MAX_CACHE_BYTES:
            return {}
        data = json.loads(_cache_path().read_bytes())
        rows = data["rows"] if (data["format"], data["key"]) == (_FORMAT, key) else {}
        for row in rows.values():
            # A row that another version or another hand wrote is not trusted half.
            About(**row["about"]) if row["about"] else None
            Fit(**row["fit"]) if row["fit"] else None
            _ = row["stamp"], row["problem"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return rows if isinstance(rows, dict) else {}


def _store(key: str, rows: dict[str, Any]) -> None:
    data = json.dumps({"format": _FORMAT, "key": key, "rows": rows}, ensure_ascii=True)
    try:
        paths.private(_cache_path().parent)
        paths.write_atomic(_cache_path(), data.encode(), durable=False)
    except (OSError, LlamaAiError):
        return  # the next look is slower, nothing else
