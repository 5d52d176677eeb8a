"""The router's preset file and command, and how many models may be loaded at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_ai import paths
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.errors import EngineNotReadyError
from llama_ai.gguf.facts import read_facts
from llama_ai.hardware.detect import detect
from llama_ai.hardware.root import Root
from llama_ai.planning import Profile, choose_target, make_profile
from llama_ai.router import IDLE_UNLOAD_S, Routed, Router, build_router, with_profile
from solver.together import CACHE_EACH_MIB, side_by_side
from solver.types import MIB, Components, Machine, Memory
from tests.support.models import write_model
from tests.unit.test_gguf_header import split

LINKS = Path("/run/x.links")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")


def settings(**flags: int | str) -> Settings:
    config = ConfigFile(path=Path("config.toml"), values={}, model_dirs=())
    return resolve(flags={"backend": "cpu", **flags}, assignments=[], environ={}, config=config)


def profile(path: Path, wishes: Settings) -> Profile:
    return make_profile(
        read_facts(path),
        model_path=path,
        model_name=path.stem,
        target=choose_target(detect(Root("/")), wishes, {}, None),
        settings=wishes,
    )


def routed(path: Path, wishes: Settings, aliases: tuple[str, ...] = ()) -> Routed:
    return Routed(name=path.stem, path=path, profile=profile(path, wishes), aliases=aliases)


def built(models: list[Routed], wishes: Settings, known: frozenset[str] | None = None) -> Router:
    return build_router(
        models,
        wishes,
        server="engine",
        known_flags=known,
        environ={"LLAMA_CACHE": "/the/users", "PATH": "/bin"},
        preset_path=Path("/run/x.ini"),
        refused_path=Path("/run/x.json"),
        empty_dir=Path("/run/x.models"),
        link_dir=LINKS,
    )


def sections(preset: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in preset.splitlines():
        if line.startswith("["):
            current = found.setdefault(line[1:-1], {})
        elif "=" in line:
            key, _, value = line.partition(" = ")
            current[key] = value
    return found


def test_each_model_has_its_own_profile(tmp_path: Path) -> None:
    wishes = settings(ttl=60)
    one = write_model(tmp_path / "one.gguf", n_ctx_train=2048)
    two = write_model(tmp_path / "two.gguf", n_ctx_train=1024)
    router = built([routed(one, wishes), routed(two, wishes, aliases=("o/r:Q8_0",))], wishes)
    found = sections(router.preset)
    assert {name: section["ctx-size"] for name, section in found.items()} == {
        "one": "2048",
        "two": "1024",
    }
    assert found["two"]["alias"] == "o/r:Q8_0"
    assert found["one"]["sleep-idle-seconds"] == "60"
    assert found["one"]["model"] == str(one)
    for section in found.values():
        assert not {"host", "port", "kv-dir", "api-key-file"} & set(section)


def test_the_router_itself_is_told_nothing_that_would_override_a_profile(tmp_path: Path) -> None:
    wishes = settings(kv_dir=str(tmp_path / "kv"), port=9123)
    model = write_model(tmp_path / "one.gguf")
    argv = built([routed(model, wishes)], wishes).built.command.argv
    assert argv[argv.index("--models-preset") + 1] == "/run/x.ini"
    assert argv[argv.index("--port") + 1] == "9123"
    assert argv[argv.index("--kv-dir") + 1] == str(tmp_path / "kv")
    assert not {"--ctx-size", "--model", "--gpu-layers", "--cache-ram"} & set(argv)
    # No models of the user's cache are listed without a plan.
    assert built([routed(model, wishes)], wishes).built.command.env["LLAMA_CACHE"] == (
        "/run/x.models"
    )


def test_a_model_that_does_not_fit_is_listed_with_the_reason_and_no_file(tmp_path: Path) -> None:
    wishes = settings()
    good = routed(write_model(tmp_path / "good.gguf"), wishes)
    bad = Routed(
        name="bad", path=tmp_path / "bad.gguf", profile=None, why_not="nothing fits: 3 GiB over"
    )
    found = sections(built([good, bad], wishes).preset)
    section = found["bad (nothing fits, 3 GiB over)"]
    assert section["alias"] == "bad"
    assert section["model"] == "does-not-fit"
    router = built([good, bad], wishes)
    assert router.refused == dict.fromkeys(("bad", "bad (nothing fits, 3 GiB over)"), bad.why_not)
    argv = router.built.command.argv
    assert argv[argv.index("--refused-models") + 1] == "/run/x.json"


def test_a_model_gives_its_memory_back_unless_told_otherwise(tmp_path: Path) -> None:
    model = write_model(tmp_path / "one.gguf")
    found = sections(built([routed(model, settings())], settings()).preset)
    assert found["one"]["sleep-idle-seconds"] == str(IDLE_UNLOAD_S)
    never = settings(ttl=0)
    assert "sleep-idle-seconds" not in sections(built([routed(model, never)], never).preset)["one"]


@pytest.mark.parametrize(
    "folder",
    [
        "a#b",
        "a;b",
        " edge",
        "line\nbreak",
        "Übung 漢字",
        b"\xff\xfe".decode(errors="surrogateescape"),
    ],
)
def test_any_path_is_served_through_a_link_if_need_be(tmp_path: Path, folder: str) -> None:
    wishes = settings()
    place = tmp_path / folder
    place.mkdir()
    odd = routed(write_model(place / "odd.gguf"), wishes)
    router = built([odd], wishes)
    named = Path(sections(router.preset)["odd"]["model"])
    assert router.links.get(named, named) == place / "odd.gguf"
    assert (named in router.links) is (folder not in {"Übung 漢字", " edge"})
    assert named.name == "odd.gguf"


def test_all_parts_of_a_split_model_are_linked(tmp_path: Path) -> None:
    wishes = settings()
    place = tmp_path / "a#b"
    place.mkdir()
    parts = split(place)
    router = built([routed(parts[0], wishes)], wishes)
    [section] = sections(router.preset).values()
    first = Path(section["model"])
    assert {link.name: target for link, target in router.links.items()} == {
        part.name: part for part in parts
    }
    assert first.name == parts[0].name
    assert {link.parent for link in router.links} == {first.parent}


@pytest.mark.parametrize(
    ("name", "listed", "asked"),
    [
        ("plain", "plain", "plain"),
        ("qwen3:8b-q4_K_M", "qwen3-8b-q4_K_M", "qwen3:8b-q4_K_M"),
        ("a]b", "a-b", "a]b"),
        ("a#b", "a-b", "a-b"),
        ("a,b", "a-b", "a-b"),
        ("Übung 漢字 مثال", "Übung 漢字 مثال", "Übung 漢字 مثال"),
        ("*", "*-2", "*"),
        ("\udcff", "?", "?"),
    ],
)
def test_every_name_has_one_to_ask_for(tmp_path: Path, name: str, listed: str, asked: str) -> None:
    wishes = settings()
    model = replace(routed(write_model(tmp_path / "x.gguf"), wishes), name=name)
    router = built([model], wishes)
    [one] = router.models
    assert (one.listed_as, one.asked_as) == (listed, asked)
    section = sections(router.preset)[listed]
    assert (section.get("alias") == name) is (asked == name != listed)
    assert router.preset.encode()
    told = [note for note in router.built.notes if "is served as" in note]
    assert bool(told) is (asked != name)


def test_names_that_look_alike_in_a_preset_stay_apart(tmp_path: Path) -> None:
    wishes = settings()
    path = write_model(tmp_path / "x.gguf")
    names = ["q:8b-q4_K_M", "q-8b-q4_K_M", "q;8b-q4_K_M"]
    router = built([replace(routed(path, wishes), name=name) for name in names], wishes)
    assert len(sections(router.preset)) == 3
    assert len({model.asked_as for model in router.models}) == 3


def test_another_profile_changes_its_own_section_alone(tmp_path: Path) -> None:
    wishes = settings()
    one = routed(write_model(tmp_path / "one.gguf", n_ctx_train=2048), wishes)
    two = routed(write_model(tmp_path / "two.gguf", n_ctx_train=2048), wishes)
    before = built([one, two], wishes)
    smaller = profile(tmp_path / "one.gguf", settings(ctx_size=512))
    after = with_profile(
        before, "one", smaller, wishes, server="engine", known_flags=None, link_dir=LINKS
    )
    assert sections(after.preset)["one"]["ctx-size"] == "512"
    assert sections(after.preset)["two"] == sections(before.preset)["two"]
    assert [model.profile and model.profile.plan.layout.ctx_size for model in after.models] == [
        512,
        2048,
    ]


def test_an_engine_without_a_router_is_refused(tmp_path: Path) -> None:
    wishes = settings()
    model = routed(write_model(tmp_path / "x.gguf"), wishes)
    with pytest.raises(EngineNotReadyError, match="several models"):
        built([model], wishes, frozenset({"--model"}))


def machine(host: int, gpu: int | None = None, pool: int | None = None) -> Machine:
    return Machine(
        tier="none",
        backend="cpu" if gpu is None else "vulkan",
        device=None,
        gpu_budget_bytes=gpu,
        host_budget_bytes=host,
        pool_budget_bytes=pool,
        ram_bytes=host,
        os_reserve_bytes=0,
        cores_physical=1,
        cores_logical=1,
        on_ac=None,
    )


def need(host: int, gpu: int = 0, cache: int = 0) -> Memory:
    return Memory(
        gpu=Components(weights_bytes=gpu),
        host=Components(weights_bytes=host, prompt_cache_bytes=cache),
    )


def test_the_largest_ones_decide() -> None:
    each = CACHE_EACH_MIB * MIB
    three = [need(10 * each), need(20 * each), need(30 * each, cache=99 * each)]
    assert side_by_side(machine(52 * each), three).count == 2
    assert side_by_side(machine(52 * each - 1), three).count == 1
    assert side_by_side(machine(63 * each), three).count == 3


def test_a_cache_that_the_user_fixed_counts_as_it_is() -> None:
    each = CACHE_EACH_MIB * MIB
    two = [need(10 * each, cache=4 * each), need(10 * each, cache=4 * each)]
    assert side_by_side(machine(27 * each), two).count == 2
    assert side_by_side(machine(27 * each), two, fixed_caches=True).count == 1


@given(
    st.lists(st.tuples(st.integers(0, 1 << 35), st.integers(0, 1 << 35)), min_size=1, max_size=6),
    st.integers(1 << 30, 1 << 37),
    st.integers(1 << 30, 1 << 37),
    st.data(),
)
def test_any_selection_fits(
    sizes: list[tuple[int, int]], host: int, gpu: int, data: st.DataObject
) -> None:
    """Law: every selection of ``count`` > 1 models, with its caches, fits all budgets."""
    here = machine(host, gpu, max(host, gpu))
    needs = [need(a, b) for a, b in sizes]
    together = side_by_side(here, needs)
    assert 1 <= together.count <= len(needs)
    chosen = data.draw(
        st.lists(st.sampled_from(range(len(needs))), unique=True, max_size=together.count)
    )
    if together.count == 1:
        return
    cache = together.cache_ram_mib * MIB
    on_host = sum(sizes[index][0] + cache for index in chosen)
    on_gpu = sum(sizes[index][1] for index in chosen)
    assert on_host <= host
    assert on_gpu <= gpu
    assert on_host + on_gpu <= max(host, gpu)
