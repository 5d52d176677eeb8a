"""What is chosen for the seed's machines and the recorded models, one table a machine.

``UPDATE_GOLDEN=1`` writes them anew; read the difference before you keep it. What differs from the
seed's published choices, and why, stands in ``profiles/NOTES.md``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llama_ai.cli.output import bytes_text
from llama_ai.cli.pipeline import Prepared, command_for
from llama_ai.cli.profile import print_text
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.errors import DoesNotFitError
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
from llama_ai.planning import Profile, choose_target, make_profile
from tests.support.recorded import Recorded, model, recorded

HERE = Path(__file__).parent
MACHINES = HERE / "machines"
GOLDEN = HERE / "profiles"
SLUGS = sorted(path.name for path in MACHINES.iterdir())


def settings() -> Settings:
    return resolve(
        flags={},
        assignments=[],
        environ={},
        config=ConfigFile(path=Path("config.toml"), values={}, model_dirs=()),
    )


def prepared(slug: str, one: Recorded) -> Prepared:
    facts = detect(Root(str(MACHINES / slug / "root")))
    chosen = settings()
    profile = make_profile(
        one.facts,
        model_path=Path(f"{one.name}.gguf"),
        model_name=one.name,
        target=choose_target(facts, chosen, {}, None),
        settings=chosen,
    )
    built = command_for(profile, chosen, None, ())
    return Prepared(profile=profile, facts=facts, engine=None, built=built)


def line(one: Recorded, profile: Profile) -> str:
    plan, layout = profile.plan, profile.plan.layout
    experts = f", {plan.strategy}, {layout.n_cpu_moe} on the CPU" if profile.model.is_moe else ""
    if layout.expert_budget_bytes is not None:
        experts += f", {layout.expert_budget_bytes >> 20} MiB of experts in memory"
    return (
        f"{one.name}: {layout.gpu_layers} layers{experts}; {layout.ctx_size} tokens, "
        f"{layout.kv_type_k}/{layout.kv_type_v}; batch {layout.batch}/{layout.ubatch}; "
        f"threads {plan.threads}/{plan.threads_batch}; cache {plan.cache_ram_mib} MiB; "
        f"GPU {bytes_text(plan.memory.gpu.total_bytes)}, "
        f"host {bytes_text(plan.memory.host.total_bytes)}; "
        f"score {plan.score} ({profile.legacy_name})"
    )


def check(path: Path, text: str) -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("slug", SLUGS)
def test_the_choice_for_every_model(slug: str) -> None:
    lines = []
    for one in recorded("headers"):
        try:
            lines.append(line(one, prepared(slug, one).profile))
        except DoesNotFitError as error:
            lines.append(f"{error.message}; {error.hint}")
    check(GOLDEN / f"{slug}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("slug", "name"),
    [
        ("nimo-axis-gtt104", "Qwen3.6-35B"),
        ("ayaneo-flip-kb", "Qwen3.6-35B"),
        ("minisforum-um580", "Meta-Llama"),
    ],
)
def test_the_whole_text(slug: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_text(prepared(slug, model("headers", name)))
    check(GOLDEN / f"{slug}-{name}.txt", capsys.readouterr().out)


def test_the_same_call_twice_gives_the_same_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        print_text(prepared("ayaneo-flip-kb", model("headers", "gemma-3-27b")))
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
