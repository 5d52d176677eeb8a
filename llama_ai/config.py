"""Where each value comes from: flag over environment over ``config.toml`` over default.

``config.toml`` holds settings at its top level and, beside them, the table ``[models]`` with
``dirs`` (further directories to look for models in).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from llama_ai.errors import UsageError
from llama_ai.settings import SETTINGS, Setting, Value, find

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Source = Literal["default", "system", "solver", "config", "env", "flag"]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """One setting's value, and who said so: ``detail`` is the flag, variable or file."""

    value: Value
    source: Source
    detail: str


@dataclass(frozen=True, kw_only=True)
class ConfigFile:
    """A parsed ``config.toml``; empty when the file does not exist."""

    path: Path
    values: Mapping[str, Value]
    model_dirs: tuple[Path, ...]


class Settings:
    """Resolved settings by name. Reading one that nobody set gives ``None``."""

    def __init__(self, values: Mapping[str, Resolved], config: ConfigFile) -> None:
        self._values = dict(values)
        self.config = config

    def get(self, name: str) -> Resolved | None:
        """The value with its source, or ``None``."""
        find(name)
        return self._values.get(name)

    def source(self, name: str, otherwise: Source = "solver") -> Source:
        """Who decided ``name``; ``otherwise`` when nobody did."""
        found = self.get(name)
        return found.source if found else otherwise

    def text(self, name: str) -> str | None:
        """A string setting."""
        found = self.get(name)
        return None if found is None else str(found.value)

    def number(self, name: str) -> int | None:
        """An integer setting."""
        found = self.get(name)
        return None if found is None else int(found.value)

    def fraction(self, name: str) -> float | None:
        """A setting that is a number with a fraction."""
        found = self.get(name)
        return None if found is None else float(found.value)

    def switch(self, name: str) -> bool | None:
        """A boolean setting."""
        found = self.get(name)
        return None if found is None else bool(found.value)


def read_config(path: Path) -> ConfigFile:
    """Parse ``config.toml``; :class:`~llama_ai.errors.UsageError` says what is wrong in it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return ConfigFile(path=path, values={}, model_dirs=())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}", hint="mend or remove the file") from error
    models = table.pop("models", {})
    dirs = models.get("dirs", []) if isinstance(models, dict) else None
    if not isinstance(dirs, list) or not all(isinstance(entry, str) for entry in dirs):
        raise UsageError(f"{path}: [models] dirs must be a list of strings")
    values: dict[str, Value] = {}
    for key, value in table.items():
        try:
            setting = find(key)
            values[setting.name] = setting.check(value)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint=error.hint) from error
    return ConfigFile(
        path=path,
        values=values,
        model_dirs=tuple(Path(entry).expanduser() for entry in dirs),
    )


def parse_assignments(words: Sequence[str]) -> dict[str, Value]:
    """``KEY=VALUE`` words of ``--set``, the last one of a key winning."""
    values: dict[str, Value] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set wants KEY=VALUE, not {word!r}")
        setting = find(key)
        if setting.secret:
            raise UsageError(
                f"{setting.name} does not go on a command line, where everybody can read it",
                hint=f"set {setting.variable}, or use --api-key-file",
            )
        values[setting.name] = setting.parse(text)
    return values


def resolve(
    *,
    flags: Mapping[str, Value | None],
    assignments: Sequence[str],
    environ: Mapping[str, str],
    config: ConfigFile,
) -> Settings:
    """All settings with their sources. ``flags`` holds ``None`` for a flag that was not given.

    Raises :class:`~llama_ai.errors.UsageError` naming the flag, the variable or the file.
    """
    assigned = parse_assignments(assignments)
    values: dict[str, Resolved] = {}
    for setting in SETTINGS:
        found = _resolve_one(setting, flags, assigned, environ, config)
        if found is not None:
            values[setting.name] = found
    return Settings(values, config)


def _resolve_one(
    setting: Setting,
    flags: Mapping[str, Value | None],
    assigned: Mapping[str, Value],
    environ: Mapping[str, str],
    config: ConfigFile,
) -> Resolved | None:
    flag = flags.get(setting.name)
    if flag is not None:
        value = setting.parse(str(flag)) if isinstance(flag, str) else setting.check(flag)
        return Resolved(value=value, source="flag", detail=setting.flag)
    if setting.name in assigned:
        return Resolved(value=assigned[setting.name], source="flag", detail="--set")
    found = _from_environment(setting, environ)
    if found is not None:
        text, variable = found
        try:
            return Resolved(value=setting.parse(text), source="env", detail=variable)
        except UsageError as error:
            raise UsageError(f"{variable}: {error.message}", hint=error.hint) from error
    if setting.name in config.values:
        return Resolved(value=config.values[setting.name], source="config", detail=str(config.path))
    if setting.default is not None:
        return Resolved(value=setting.default, source="default", detail="default")
    return None


def _from_environment(setting: Setting, environ: Mapping[str, str]) -> tuple[str, str] | None:
    text = environ.get(setting.variable)
    if text is not None and text != "":
        return text, setting.variable
    if setting.seed_value is not None:
        text = setting.seed_value(environ)
        return None if text is None else (text, "/".join(setting.seed_variables))
    for variable in setting.seed_variables:
        text = environ.get(variable)
        if text is not None and text != "":
            return text, variable
    return None
