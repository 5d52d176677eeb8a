"""Each store's layout: what is found there, under which name, and with what it is served."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from llama_ai import paths
from llama_ai.errors import ModelNotFoundError
from llama_ai.models import stores
from llama_ai.models.catalog import Entry, resolve, scan
from llama_ai.models.names import base_of, belongs, kind_of, quant_of, shard_of


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without anything in it."""
    monkeypatch.setattr(paths, "data_dir", lambda: tmp_path / "data")
    monkeypatch.setattr(stores, "checkout_dir", lambda: None)
    return tmp_path


def put(path: Path, size_bytes: int = 300, content: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((content or str(path)).encode()[::-1].ljust(size_bytes)[:size_bytes])
    return path


def found(home: Path, *dirs: Path, **environ: str) -> dict[str, Entry]:
    entries = scan(dirs, {"HOME": str(home), "OLLAMA_MODELS": str(home / "none"), **environ})
    assert len({entry.name for entry in entries}) == len(entries)
    return {entry.name: entry for entry in entries}


def snapshot(home: Path, repo: str, *names: str) -> Path:
    """A repository of the Hugging Face cache, as the hub's client lays it out."""
    base = home / ".cache" / "huggingface" / "hub" / f"models--{repo.replace('/', '--')}"
    commit = base / "snapshots" / ("c0" * 20)
    commit.mkdir(parents=True)
    for name in names:
        digest = hashlib.sha256(name.encode()).hexdigest()
        blob = put(base / "blobs" / digest, content=f"{repo}/{name}")
        link = commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return commit


def ollama(store: Path, name: str, **layers: str) -> dict[str, Path]:
    """A model of ollama's store: its manifest, and a blob for each layer."""
    blobs = {}
    listed = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64}]
    for kind, content in layers.items():
        digest = hashlib.sha256(content.encode()).hexdigest()
        blobs[kind] = put(store / "blobs" / f"sha256-{digest}", content=content)
        media = f"application/vnd.ollama.image.{kind}"
        listed.append({"mediaType": media, "digest": f"sha256:{digest}"})
    manifest = store / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": listed}))
    return blobs


def test_a_repository_of_the_cache_with_shards_projector_and_draft(home: Path) -> None:
    snapshot(
        home,
        "owner/big-GGUF",
        "Q4_K_M/big-Q4_K_M-00001-of-00002.gguf",
        "Q4_K_M/big-Q4_K_M-00002-of-00002.gguf",
        "big-Q8_0.gguf",
        "mmproj-BF16.gguf",
        "mmproj-F16.gguf",
        "dflash-big-Q8_0.gguf",
    )
    entries = found(home)
    assert set(entries) == {"big-Q4_K_M", "big-Q8_0"}
    whole = entries["big-Q8_0"]
    assert whole.repo == "owner/big-GGUF"
    assert whole.projector is not None
    assert whole.projector.path.name == "mmproj-F16.gguf"
    assert [draft.draft_kind for draft in whole.drafts] == ["dflash"]
    assert len(entries["big-Q4_K_M"].files) == 2
    assert resolve("owner/big-GGUF:Q4_K_M", [], {"HOME": str(home)}).name == "big-Q4_K_M"


def test_lm_studios_store_names_owner_and_repository(home: Path) -> None:
    put(home / ".lmstudio" / "models" / "owner" / "gemma-GGUF" / "gemma-3-4b-Q4_K_M.gguf")
    put(home / ".lmstudio" / "models" / "owner" / "gemma-GGUF" / "mmproj-model-f16.gguf")
    put(home / ".cache" / "lm-studio" / "models" / "old" / "old-GGUF" / "old-Q8_0.gguf")
    entries = found(home)
    gemma = entries["gemma-3-4b-Q4_K_M"]
    assert (gemma.source, gemma.repo) == ("lmstudio", "owner/gemma-GGUF")
    assert gemma.projector is not None
    assert entries["old-Q8_0"].repo == "old/old-GGUF"


def test_lm_studios_settings_move_its_store(home: Path) -> None:
    put(home / "disk" / "owner" / "repo" / "m-Q8_0.gguf")
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio" / "settings.json").write_text(
        json.dumps({"downloadsFolder": str(home / "disk")})
    )
    assert set(found(home)) == {"m-Q8_0"}


def test_ollamas_manifests_lead_to_blobs(home: Path) -> None:
    store = home / "ollama"
    library = "registry.ollama.ai/library"
    blobs = ollama(store, f"{library}/gemma3/4b", model="weights of gemma", projector="its eyes")
    ollama(store, "hf.co/owner/repo-GGUF/Q4_K_M", model="weights of repo")
    entries = found(home, OLLAMA_MODELS=str(store))
    assert set(entries) == {"gemma3:4b", "hf.co/owner/repo-GGUF:Q4_K_M"}
    gemma = entries["gemma3:4b"]
    assert gemma.path == blobs["model"]
    assert gemma.projector is not None
    assert gemma.projector.path == blobs["projector"]
    assert entries["hf.co/owner/repo-GGUF:Q4_K_M"].quant == "Q4_K_M"


@pytest.mark.parametrize(
    "manifest",
    [
        "not json",
        "[]",
        '{"layers": 3}',
        '{"layers": [3, {"mediaType": "application/vnd.ollama.image.model"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:.."}]}',
    ],
)
def test_a_manifest_that_cannot_be_used_is_passed_over(home: Path, manifest: str) -> None:
    store = home / "ollama"
    ollama(store, "registry.ollama.ai/library/good/1b", model="weights")
    bad = store / "manifests" / "registry.ollama.ai" / "library" / "bad" / "1b"
    bad.parent.mkdir()
    bad.write_text(manifest)
    assert set(found(home, OLLAMA_MODELS=str(store))) == {"good:1b"}


def test_a_blob_that_is_gone_is_named(home: Path) -> None:
    store = home / "ollama"
    blobs = ollama(store, "registry.ollama.ai/library/gone/1b", model="weights")
    blobs["model"].unlink()
    entry = found(home, OLLAMA_MODELS=str(store))["gone:1b"]
    assert entry.missing
    with pytest.raises(ModelNotFoundError, match="gone:1b is not complete"):
        resolve("gone", [], {"HOME": str(home), "OLLAMA_MODELS": str(store)})


def test_the_same_content_in_three_stores_is_one_model(home: Path) -> None:
    same = "the same weights"
    put(home / "dir" / "mine-Q8_0.gguf", content=same)
    put(home / ".lmstudio" / "models" / "o" / "r" / "theirs-Q8_0.gguf", content=same)
    blobs = ollama(home / "ollama", "registry.ollama.ai/library/it/1b", model=same)
    put(home / "dir" / "other-Q8_0.gguf", content="weights that differ")
    environ = {"HOME": str(home), "OLLAMA_MODELS": str(home / "ollama")}
    entries = {entry.name: entry for entry in scan([home / "dir"], environ)}
    assert set(entries) == {"mine-Q8_0", "other-Q8_0"}
    assert set(entries["mine-Q8_0"].other_names) == {"theirs-Q8_0", "it:1b"}
    assert blobs["model"] in entries["mine-Q8_0"].also
    assert resolve("it:1b", [home / "dir"], environ).name == "mine-Q8_0"


def test_a_companion_of_a_common_directory_serves_the_model_that_it_names(home: Path) -> None:
    for name in (
        "gemma-3-4b-it-Q4_K_M",
        "gemma-3-27b-it-Q4_K_M",
        "qwen3-8b-Q8_0",
        "mmproj-gemma-3-4b-it-f16",
        "dspark-qwen3-8b-Q8_0",
        "mmproj-F16",
    ):
        put(home / "dir" / f"{name}.gguf")
    entries = found(home, home / "dir")
    assert set(entries) == {"gemma-3-4b-it-Q4_K_M", "gemma-3-27b-it-Q4_K_M", "qwen3-8b-Q8_0"}
    assert {name: len(entry.companions) for name, entry in entries.items()} == {
        "gemma-3-4b-it-Q4_K_M": 1,
        "gemma-3-27b-it-Q4_K_M": 0,
        "qwen3-8b-Q8_0": 1,
    }


def test_a_path_finds_the_companions_beside_it(home: Path) -> None:
    model = put(home / "x" / "gemma-3-4b-it-Q4_K_M.gguf")
    put(home / "x" / "mmproj-gemma-3-4b-it-f16.gguf")
    projector = resolve(str(model), [], {"HOME": str(home)}).projector
    assert projector is not None
    assert projector.path.name == "mmproj-gemma-3-4b-it-f16.gguf"


@pytest.mark.parametrize(
    "name",
    ["模型-7b-Q4_K_M", "модель-Q8_0", "نموذج-f16", "モデル", "a b (c) [d]", "🦙-1b", "é-Q4_0"],
)
def test_names_in_any_script(home: Path, name: str) -> None:
    put(home / "dir" / f"{name}.gguf")
    assert set(found(home, home / "dir")) == {name}
    assert resolve(name[:2], [home / "dir"], {"HOME": str(home)}).name == name


def test_a_name_that_is_not_utf8(home: Path) -> None:
    raw = os.fsencode(home / "dir") + b"/\xff\xfe-Q8_0.gguf"
    put(home / "dir" / "good.gguf")
    Path(os.fsdecode(raw)).write_bytes(b"x" * 10)
    assert len(found(home, home / "dir")) == 2


def test_a_thousand_files(home: Path) -> None:
    for index in range(1000):
        put(home / "dir" / f"d{index % 10}" / f"m{index}-Q8_0.gguf", 20 + index)
    assert len(found(home, home / "dir")) == 1000


def test_an_unreadable_directory_and_links_in_a_circle_hide_nothing(home: Path) -> None:
    put(home / "dir" / "good.gguf")
    (home / "dir" / "loop").symlink_to(home / "dir")
    (home / "dir" / "self.gguf").symlink_to("self.gguf")
    put(home / "dir" / "closed" / "hidden.gguf")
    (home / "dir" / "closed").chmod(0)
    put(home / "elsewhere" / "linked.gguf")
    (home / "dir" / "there").symlink_to(home / "elsewhere")
    try:
        names = set(found(home, home / "dir", home / "not-there"))
    finally:
        (home / "dir" / "closed").chmod(0o700)
    assert {"good", "linked"} <= names


def test_two_sizes_of_one_model_are_not_confused() -> None:
    assert belongs("mmproj-qwen3-8b", "qwen3-80b-Q4_0") is False
    assert belongs("mmproj-gemma-3", "gemma-30b-Q4_0") is False
    assert belongs("mmproj-qwen3-8b-f16", "Qwen3-8B-Q4_0") is True
    assert belongs("mmproj-F16", "anything") is None


@pytest.mark.parametrize(
    ("stem", "kind"),
    [
        ("Qwen3.6-35B-A3B-MTP-Q4_K_M", "model"),
        ("mtp-Qwen3.6-35B-A3B-Q4_K_M", "draft"),
        ("Laguna-DFlash-Q8_0", "draft"),
        ("drafting-table-7b", "model"),
        ("mmproj-x", "projector"),
        ("x-lora-r16", "adapter"),
        ("exploration-7b", "model"),
    ],
)
def test_kinds_by_name(stem: str, kind: str) -> None:
    assert kind_of(stem) == kind


@pytest.mark.parametrize(
    ("stem", "quant"),
    [
        ("a-Q4_K_M", "Q4_K_M"),
        ("a-UD-Q4_K_XL", "UD-Q4_K_XL"),
        ("a.IQ2_XXS", "IQ2_XXS"),
        ("gpt-oss-20b-MXFP4", "MXFP4"),
        ("a-bf16", "bf16"),
        ("Q-star-7b", None),
        ("a-Q4_0-fixed", "Q4_0"),
    ],
)
def test_quantisations_by_name(stem: str, quant: str | None) -> None:
    assert quant_of(stem) == quant


@pytest.mark.parametrize("stem", ["a-00000-of-00002", "a-00003-of-00002", "a-00001-of-99999", "a"])
def test_what_is_no_shard(stem: str) -> None:
    assert shard_of(stem) is None


def test_base_names() -> None:
    assert base_of("mmproj-Gemma-3-4B-it-f16") == base_of("gemma-3-4b-it-Q4_K_M") == "gemma-3-4b-it"
