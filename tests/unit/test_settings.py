"""The settings table and where values come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_ai.config import ConfigFile, Settings, read_config, resolve
from llama_ai.errors import UsageError
from llama_ai.settings import SETTINGS, Setting, Value, find, split_kv_types

NO_CONFIG = ConfigFile(path=Path("config.toml"), values={}, model_dirs=())


def resolved(
    *,
    flags: dict[str, Value | None] | None = None,
    assignments: list[str] | None = None,
    environ: dict[str, str] | None = None,
    config: ConfigFile = NO_CONFIG,
) -> Settings:
    return resolve(
        flags=flags or {}, assignments=assignments or [], environ=environ or {}, config=config
    )


def config_with(tmp_path: Path, text: str) -> ConfigFile:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return read_config(path)


def test_flag_beats_environment_beats_seed_variable_beats_config_beats_default(
    tmp_path: Path,
) -> None:
    config = config_with(tmp_path, "ctx_size = 1000\nport = 9000\n")
    seed = {"USER_CTX_SIZE": "2000"}
    ours = {**seed, "LLAMA_AI_CTX_SIZE": "3000"}
    assigned = ["ctx_size=4000"]
    steps = [
        resolved(config=config),
        resolved(config=config, environ=seed),
        resolved(config=config, environ=ours),
        resolved(config=config, environ=ours, assignments=assigned),
        resolved(config=config, environ=ours, assignments=assigned, flags={"ctx_size": 5000}),
    ]
    assert [(step.number("ctx_size"), step.source("ctx_size")) for step in steps] == [
        (1000, "config"),
        (2000, "env"),
        (3000, "env"),
        (4000, "flag"),
        (5000, "flag"),
    ]
    assert resolved().number("port") == 9090
    assert resolved().source("port") == "default"
    assert resolved(config=config).number("port") == 9000


def test_a_setting_that_nobody_set_is_none_and_left_to_the_solver() -> None:
    settings = resolved()
    assert settings.number("ctx_size") is None
    assert settings.source("ctx_size") == "solver"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"KV_CACHE_K_OVERRIDE": "q8_0", "KV_CACHE_V_OVERRIDE": "q4_0"}, ("q8_0", "q4_0")),
        ({"KV_CACHE_K_OVERRIDE": "q8_0"}, ("q8_0", None)),
        ({"KV_CACHE_V_OVERRIDE": "q4_0"}, (None, "q4_0")),
    ],
)
def test_the_seeds_two_kv_variables_make_one_setting(
    environ: dict[str, str], expected: tuple[str | None, str | None]
) -> None:
    word = resolved(environ=environ).text("kv_cache_type")
    assert word is not None
    assert split_kv_types(word) == expected


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({"_SSD_DISABLE": "1"}, False), ({"_SSD_DISABLE": "0"}, True), ({}, None)],
)
def test_the_seeds_ssd_variable_is_negated(environ: dict[str, str], expected: bool | None) -> None:
    assert resolved(environ=environ).switch("ssd_cache") is expected


def test_every_seed_variable_of_the_contract_is_honoured() -> None:
    contract = {
        "USER_CTX_SIZE",
        "KV_CACHE_K_OVERRIDE",
        "KV_CACHE_V_OVERRIDE",
        "LLAMA_THREADS_OVERRIDE",
        "OVERRIDE_UBATCH_SIZE",
        "MOE_UBATCH_OVERRIDE",
        "OVERRIDE_CACHE_RAM",
        "_SSD_DISABLE",
        "OVERRIDE_NGL",
        "OVERRIDE_FIT",
        "OVERRIDE_REASONING_BUDGET",
        "LLAMA_HARDWARE_TIER_OVERRIDE",
        "LLAMA_IS_STRIX_HALO_OVERRIDE",
        "LLAMA_GFX_VERSION_OVERRIDE",
    }
    assert contract == {name for setting in SETTINGS for name in setting.seed_variables}


def test_names_flags_and_variables_are_one_word() -> None:
    setting = find("ctx-size")
    assert (setting.name, setting.flag, setting.variable) == (
        "ctx_size",
        "--ctx-size",
        "LLAMA_AI_CTX_SIZE",
    )
    assert len({one.name for one in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LLAMA_AI_CTX_SIZE": "many"}, "LLAMA_AI_CTX_SIZE"),
        ({"USER_CTX_SIZE": "1"}, "USER_CTX_SIZE"),
        ({"LLAMA_AI_PORT": "70000"}, "at most 65535"),
        ({"LLAMA_AI_BACKEND": "cuda"}, "one of vulkan"),
        ({"LLAMA_AI_KV_CACHE_TYPE": "q9_0"}, "q9_0"),
    ],
)
def test_a_bad_variable_is_named(environ: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolved(environ=environ)


def test_a_secret_value_is_not_repeated_in_an_error() -> None:
    setting = Setting(name="key", kind="int", help="", secret=True)
    with pytest.raises(UsageError) as caught:
        setting.parse("s3cret")
    assert "s3cret" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "ctx_size = 'big'",
        "ctx_size = true",
        "nonsense = 1",
        "port = ",
        "[models]\ndirs = 3",
        "models = 3",
        "allow_open = 1",
    ],
)
def test_a_bad_config_file_is_named_and_nothing_of_it_is_used(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.toml"):
        config_with(tmp_path, text)


def test_no_config_file_is_no_error(tmp_path: Path) -> None:
    assert read_config(tmp_path / "absent.toml").values == {}


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        find("ctx_sizes")
    assert caught.value.hint is not None
    assert "ctx_size" in caught.value.hint


def test_an_assignment_needs_a_value() -> None:
    with pytest.raises(UsageError, match="KEY=VALUE"):
        resolved(assignments=["ctx_size"])
