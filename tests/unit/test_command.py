"""From wishes, machine and model to the engine's exact words."""

from __future__ import annotations

from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.cli.pipeline import Prepared, lesson_key
from llama_ai.cli.shrink import Shrinker
from llama_ai.command import Built, build_command
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.engine.capabilities import EngineInfo
from llama_ai.errors import DoesNotFitError, EngineNotReadyError
from llama_ai.gguf.facts import read_facts
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
from llama_ai.planning import EngineDevice, Profile, choose_target, make_profile
from llama_ai.supervisor.failures import Failure, Kind
from llama_ai.supervisor.learned import recall
from llama_ai.supervisor.state import State
from tests.support.models import write_model

MACHINES = Path(__file__).parents[1] / "machines"
HALO = "strixhalo-128-4g-z13-nixos"
NO_GPU = "vm-virtualbox-2"
THINKING = "{% if enable_thinking %}<think>{% endif %}"


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf", chat_template=THINKING)


def settings_of(environ: dict[str, str] | None = None, **values: object) -> Settings:
    return resolve(
        flags={},
        assignments=[f"{name}={value}" for name, value in values.items()],
        environ=environ or {},
        config=ConfigFile(path=Path("config.toml"), values={}, model_dirs=()),
    )


def profile_of(
    model_path: Path,
    settings: Settings,
    *,
    machine: str = HALO,
    environ: dict[str, str] | None = None,
    devices: tuple[EngineDevice, ...] | None = None,
    learned: dict[str, int | str] | None = None,
) -> Profile:
    facts = detect(Root(str(MACHINES / machine / "root")))
    return make_profile(
        read_facts(model_path),
        model_path=model_path,
        model_name="tiny",
        target=choose_target(facts, settings, environ or {}, devices),
        settings=settings,
        learned=learned,
    )


def built(
    model_path: Path,
    settings: Settings,
    *,
    machine: str = HALO,
    environ: dict[str, str] | None = None,
    known_flags: frozenset[str] | None = None,
    raw: tuple[str, ...] = (),
) -> Built:
    return build_command(
        profile_of(model_path, settings, machine=machine, environ=environ),
        settings,
        server="server",
        known_flags=known_flags,
        environ=environ or {},
        raw=raw,
    )


def value_of(flag: str, result: Built) -> str:
    argv = result.command.argv
    assert argv.count(flag) == 1
    return argv[argv.index(flag) + 1]


def test_everything_that_was_decided_is_said(model_path: Path) -> None:
    result = built(model_path, settings_of())
    assert {flag: value_of(flag, result) for flag in ("--fit", "--device", "--port", "--host")} == {
        "--fit": "off",
        "--device": "Vulkan0",
        "--port": "9090",
        "--host": "127.0.0.1",
    }
    assert value_of("--gpu-layers", result) == "3"
    assert value_of("--ctx-size", result) == "4096"
    assert value_of("--load-mode", result) == "none"
    assert value_of("--reasoning-budget", result) == "2048"
    assert value_of("--cors-origins", result) == "localhost"


def test_without_a_gpu_the_engine_is_told_so(model_path: Path) -> None:
    # The recorded machine has 2 GiB: the prompt cache must not be asked for more than there is.
    result = built(model_path, settings_of(cache_ram=16), machine=NO_GPU)
    assert value_of("--device", result) == "none"
    assert value_of("--gpu-layers", result) == "0"
    assert value_of("--load-mode", result) == "mmap"


def test_a_key_goes_through_the_environment_only(model_path: Path) -> None:
    result = built(model_path, settings_of(environ={"LLAMA_AI_API_KEY": "s3cret"}))
    assert result.command.env["LLAMA_API_KEY"] == "s3cret"
    assert "s3cret" not in " ".join(result.command.argv)
    assert "LLAMA_AI_API_KEY" not in result.command.env


def test_variables_that_would_change_the_plan_are_taken_away_and_said(model_path: Path) -> None:
    environ = {"LLAMA_ARG_CTX_SIZE": "1", "LLAMA_API_KEY": "theirs", "PATH": "/bin", "LANG": "C"}
    result = built(model_path, settings_of(), environ=environ)
    assert {name for name in result.command.env if name in environ} == {"PATH", "LANG"}
    assert any("LLAMA_ARG_CTX_SIZE" in note for note in result.notes)
    assert not any("theirs" in note for note in result.notes)


def test_the_machines_variables_are_added_and_the_users_own_stay(model_path: Path) -> None:
    name = "radv_enable_unified_heap_on_apu"
    assert built(model_path, settings_of()).command.env[name] == "true"
    theirs = built(model_path, settings_of(), environ={name: "false"})
    assert theirs.command.env[name] == "false"
    assert any(name in note for note in theirs.notes)


def test_raw_words_come_last(model_path: Path) -> None:
    assert built(model_path, settings_of(), raw=("--verbose", "x")).command.argv[-2:] == (
        "--verbose",
        "x",
    )


def test_what_an_engine_lacks_is_left_out_and_said_or_refused(model_path: Path) -> None:
    ours = built(model_path, settings_of())
    all_flags = frozenset(word for word in ours.command.argv if word.startswith("--"))
    old = (all_flags - {"--load-mode", "--cors-origins"}) | {"--no-mmap"}
    result = built(model_path, settings_of(), known_flags=old)
    assert "--no-mmap" in result.command.argv
    assert "--cors-origins" not in result.command.argv
    assert any("--cors-origins" in note for note in result.notes)
    with pytest.raises(EngineNotReadyError, match="--cache-type-k"):
        built(model_path, settings_of(), known_flags=all_flags - {"--cache-type-k"})


def test_the_engines_own_fit_gets_no_layers(model_path: Path) -> None:
    result = built(model_path, settings_of(fit="on"))
    assert value_of("--fit", result) == "on"
    assert "--gpu-layers" not in result.command.argv


def test_thoughts_are_budgeted_and_kept_only_when_asked(model_path: Path, tmp_path: Path) -> None:
    kept = built(model_path, settings_of(preserve_reasoning=True, reasoning_budget=-1))
    assert "--reasoning-preserve" in kept.command.argv
    assert value_of("--reasoning-budget", kept) == "-1"
    plain = write_model(tmp_path / "plain.gguf")
    assert "--reasoning-budget" not in built(plain, settings_of()).command.argv


def test_a_device_that_the_engine_does_not_list_is_refused(model_path: Path) -> None:
    device = EngineDevice(name="Vulkan0", description="x", total_bytes=1 << 34, free_bytes=None)
    with pytest.raises(EngineNotReadyError, match="no device Vulkan7"):
        profile_of(model_path, settings_of(device="Vulkan7"), devices=(device,))
    with pytest.raises(EngineNotReadyError, match="sees no Vulkan device"):
        profile_of(model_path, settings_of(), devices=())
    with pytest.raises(EngineNotReadyError, match="sees no rocm device"):
        profile_of(model_path, settings_of(backend="rocm"), devices=(device,))


def test_an_unknown_device_is_believed_less_a_margin_and_shares_memory(model_path: Path) -> None:
    device = EngineDevice(
        name="Vulkan0", description="llvmpipe", total_bytes=1 << 30, free_bytes=1 << 30
    )
    settings = settings_of(backend="vulkan", cache_ram=0)
    profile = profile_of(model_path, settings, machine=NO_GPU, devices=(device,))
    machine = profile.target.machine
    assert machine.gpu_budget_bytes == (1 << 30) * 90 // 100
    assert machine.pool_budget_bytes == machine.host_budget_bytes


def test_the_device_that_is_ours_is_found_by_its_description(model_path: Path) -> None:
    devices = tuple(
        EngineDevice(name=f"Vulkan{index}", description=text, total_bytes=1 << 37, free_bytes=None)
        for index, text in enumerate(["NVIDIA GeForce", "AMD Radeon 8060S (RADV GFX1151)"])
    )
    profile = profile_of(model_path, settings_of(), devices=devices)
    assert profile.target.device == devices[1]


def test_what_was_learned_narrows_where_the_user_said_nothing(model_path: Path) -> None:
    learned: dict[str, int | str] = {"label": "x", "ubatch_size": 128, "ctx_size": 1024}
    profile = profile_of(model_path, settings_of(ctx_size=2048), learned=learned)
    assert profile.plan.layout.ubatch == 128
    assert profile.plan.layout.ctx_size == 2048
    why = {reason.setting: reason.why for reason in profile.plan.reasons}
    assert "failed here" in why["ubatch_size"]
    assert why["ctx_size"] == "you asked for it"


def test_a_failure_leads_to_a_smaller_command_that_is_remembered(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "state_dir", lambda: tmp_path)
    settings = settings_of()
    profile = profile_of(model_path, settings)
    engine = EngineInfo(
        key="k",
        directory=tmp_path,
        server=tmp_path / "server",
        version=None,
        upstream_commit=None,
        patches=(),
        backends=("cpu", "vulkan"),
        flags=frozenset(
            word for word in built(model_path, settings).command.argv if word.startswith("--")
        ),
        capabilities=(),
        stock=False,
    )
    facts = detect(Root(str(MACHINES / HALO / "root")))
    prepared = Prepared(
        profile=profile, facts=facts, engine=engine, built=built(model_path, settings)
    )
    shrink = Shrinker(prepared, settings, ())
    lost = Failure(kind=Kind.DEVICE_LOST, message="device lost", state=State.READY)
    for expected in ("1024", "512"):
        smaller = shrink(lost)
        assert smaller is not None
        argv = smaller.command.argv
        assert argv[argv.index("--ubatch-size") + 1] == expected
    lessons = recall(lesson_key(facts, profile.model, engine))
    assert lessons["ubatch_size"] == 512
    again = profile_of(model_path, settings, learned=lessons)
    assert again.plan.layout.ubatch == 512


def test_noauto_takes_the_seeds_row_and_says_so(model_path: Path) -> None:
    profile = profile_of(model_path, settings_of(noauto=True))
    assert profile.legacy_name == "halo-dense"
    assert (profile.plan.layout.ubatch, profile.plan.layout.batch) == (512, 2048)
    assert profile.plan.layout.ctx_size == 4096  # not above what the model was trained for
    why = {reason.setting: reason.why for reason in profile.plan.reasons}
    assert why["ubatch_size"] == "preset halo-dense"
    own = profile_of(model_path, settings_of(noauto=True, ubatch_size=64))
    assert own.plan.layout.ubatch == 64


def test_what_cannot_fit_is_refused_with_a_cure(model_path: Path) -> None:
    with pytest.raises(DoesNotFitError) as caught:
        profile_of(model_path, settings_of(ctx_size=100_000_000, cache_ram=0), machine=NO_GPU)
    assert caught.value.hint is not None
    assert "--ctx-size" in caught.value.hint
