"""``llama-ai pull`` as a user runs it, against a hub on loopback that serves real files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.support.cli import llama_ai, private_env
from tests.support.hub import HubServer, Repo, hub_server
from tests.support.models import write_model


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


@pytest.fixture
def env(tmp_path: Path, hub: HubServer) -> dict[str, str]:
    home = tmp_path / "home"
    home.mkdir()
    return private_env(home, HF_ENDPOINT=hub.url, LLAMA_AI_BACKEND="cpu")


def split_giant(
    directory: Path, shards: int, shard_bytes: int, n_vocab: int, name: str = "giant"
) -> dict[str, Path]:
    """A llama model in sparse shards: headers are real, the tensors' data is a hole."""
    directory.mkdir()
    n_embd, n_ff = 8192, 28672
    tokens = [f"token-{index}-{'x' * 8}" for index in range(n_vocab)]
    layer_bytes = 4 * n_embd * n_ff * 3
    layers = max(1, (shard_bytes - (1 << 26)) // layer_bytes)
    n_layer = layers * shards
    names: dict[str, Path] = {}
    for shard in range(shards):
        file = f"giant-F32-{shard + 1:05d}-of-{shards:05d}.gguf"
        path = directory / file
        writer = gguf.GGUFWriter(path, "llama")
        rows: dict[str, tuple[int, ...]] = {}
        if shard == 0:
            writer.add_name(name)
            writer.add_context_length(32768)
            writer.add_embedding_length(n_embd)
            writer.add_block_count(n_layer)
            writer.add_feed_forward_length(n_ff)
            writer.add_head_count(64)
            writer.add_head_count_kv(8)
            writer.add_layer_norm_rms_eps(1e-5)
            writer.add_vocab_size(n_vocab)
            writer.add_tokenizer_model("gpt2")
            writer.add_token_list(tokens)
            writer.add_token_merges([f"{token} m" for token in tokens])
            rows = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
        if shards > 1:
            writer.add_uint16("split.no", shard)
            writer.add_uint16("split.count", shards)
            writer.add_int32("split.tensors.count", 9 * n_layer + 2)
        for layer in range(shard * layers, (shard + 1) * layers):
            rows |= {
                f"blk.{layer}.attn_norm.weight": (n_embd,),
                f"blk.{layer}.attn_q.weight": (n_embd, n_embd),
                f"blk.{layer}.attn_k.weight": (1024, n_embd),
                f"blk.{layer}.attn_v.weight": (1024, n_embd),
                f"blk.{layer}.attn_output.weight": (n_embd, n_embd),
                f"blk.{layer}.ffn_norm.weight": (n_embd,),
                f"blk.{layer}.ffn_gate.weight": (n_ff, n_embd),
                f"blk.{layer}.ffn_up.weight": (n_ff, n_embd),
                f"blk.{layer}.ffn_down.weight": (n_embd, n_ff),
            }
        size = 0
        for row, shape in rows.items():
            count = 4
            for dim in shape:
                count *= dim
            size += -(-count // 32) * 32
            writer.add_tensor_info(row, shape, np.dtype(np.float32), count)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        with path.open("r+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.truncate(-(-end // 32) * 32 + size)
        names[file] = path
    return names


def test_the_list_reads_headers_alone_and_agrees_with_the_local_catalog(
    hub: HubServer, env: dict[str, str], tmp_path: Path
) -> None:
    files = split_giant(tmp_path / "models", 4, 15 << 30, 150_000)
    assert sum(path.stat().st_size for path in files.values()) > 50e9
    hub.repos["owner/giant-GGUF"] = Repo(files=files)
    done = llama_ai("pull", "owner/giant-GGUF", "--list", "--json", env=env)
    assert done.returncode == 0, done.stderr
    [remote] = json.loads(done.stdout)["models"]
    assert hub.transferred_bytes < 20_000_000

    config = Path(env["XDG_CONFIG_HOME"]) / "llama-ai" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f"[models]\ndirs = [{json.dumps(str(tmp_path / 'models'))}]\n")
    done = llama_ai("models", "--json", env=env)
    [local] = [m for m in json.loads(done.stdout)["models"] if m["name"] == "giant-F32"]
    for key in ("name", "size_bytes", "n_params", "architecture", "n_ctx_train", "fit"):
        assert remote[key] == local[key], key


def test_a_vocabulary_is_read_once_for_all_quantisations(
    hub: HubServer, env: dict[str, str], tmp_path: Path
) -> None:
    files: dict[str, Path] = {}
    for index in range(6):
        # Names of different lengths: the vocabulary starts at another place in each file.
        directory = tmp_path / f"q{index}"
        one = split_giant(directory, 1, (index + 2) << 30, 150_000, name="x" * (1 + 7 * index))
        files[f"giant-Q{index}_0.gguf"] = one["giant-F32-00001-of-00001.gguf"]
    header = 7_000_000
    hub.repos["owner/giant-GGUF"] = Repo(files=files)
    done = llama_ai("pull", "owner/giant-GGUF", "--list", "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert header < hub.transferred_bytes < 2 * header
    found = json.loads(done.stdout)["models"]
    for one in found:
        path = files[one["files"][0]]
        local = json.loads(llama_ai("profile", str(path), "--format", "json", env=env).stdout)
        assert one["size_bytes"] == local["model"]["size_bytes"]
        assert one["fit"]["ctx_size"] == local["profile"]["ctx_size"]


def test_another_vocabulary_in_the_same_repository_is_read_by_itself(
    hub: HubServer, env: dict[str, str], tmp_path: Path
) -> None:
    one = split_giant(tmp_path / "a", 1, 2 << 30, 50_000)
    two = split_giant(tmp_path / "b", 1, 3 << 30, 60_000)
    name = "giant-F32-00001-of-00001.gguf"
    hub.repos["owner/g-GGUF"] = Repo(files={"g-Q4_0.gguf": one[name], "g-Q8_0.gguf": two[name]})
    done = llama_ai("pull", "owner/g-GGUF", "--list", "--json", env=env)
    found = json.loads(done.stdout)["models"]
    assert [model["problem"] for model in found] == [None, None]
    assert found[0]["n_params"] != found[1]["n_params"]


def test_list_marks_the_best_that_fits(hub: HubServer, env: dict[str, str], tmp_path: Path) -> None:
    small = write_model(tmp_path / "s.gguf")
    large = write_model(tmp_path / "l.gguf", n_layer=4)
    hub.repos["owner/r-GGUF"] = Repo(
        files={"r-Q4_0.gguf": small, "r-Q8_0.gguf": large, "broken-F16.gguf": Path(__file__)}
    )
    done = llama_ai("pull", "owner/r-GGUF", "--list", "--json", env=env)
    document = json.loads(done.stdout)
    assert document["schema"] == "llama-ai.pull-list/1"
    assert {m["quant"]: m["best"] for m in document["models"]} == {
        "Q4_0": False,
        "Q8_0": True,
        "F16": False,
    }
    assert next(m["problem"] for m in document["models"] if m["quant"] == "F16")
    text = llama_ai("pull", "owner/r-GGUF", "--list", env=env).stdout
    marked = next(line for line in text.splitlines() if "best that fits" in line)
    assert marked.split()[1] == "Q8_0"


def test_pull_then_the_catalog_has_it(hub: HubServer, env: dict[str, str], tmp_path: Path) -> None:
    model = write_model(tmp_path / "s.gguf")
    hub.repos["owner/r-GGUF"] = Repo(files={"r-Q4_0.gguf": model})
    done = llama_ai("pull", "owner/r-GGUF:q4_0", "--json", env=env)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert Path(answer["path"]).read_bytes() == model.read_bytes()
    [row] = json.loads(llama_ai("models", "--json", env=env).stdout)["models"]
    assert (row["repo"], row["quant"], row["fit"]["fits"]) == ("owner/r-GGUF", "Q4_0", True)
    profile = llama_ai("profile", "owner/r-GGUF:Q4_0", "--format", "argv", env=env)
    assert answer["path"] in profile.stdout


def test_a_quantisation_that_is_not_there_is_an_error(
    hub: HubServer, env: dict[str, str], tmp_path: Path
) -> None:
    hub.repos["owner/r-GGUF"] = Repo(files={"r-Q4_0.gguf": write_model(tmp_path / "s.gguf")})
    done = llama_ai("pull", "owner/r-GGUF:Q4_1", env=env)
    assert done.returncode == 4
    assert "it has: Q4_0" in done.stderr
    assert not hub.transferred_bytes


def test_the_seeds_words(hub: HubServer, env: dict[str, str], tmp_path: Path) -> None:
    model = write_model(tmp_path / "s.gguf")
    hub.repos["owner/Tiny-1B-GGUF"] = Repo(files={"Tiny-1B-Q4_K_M.gguf": model})
    hub.repos["other/Tiny-1B-extra-GGUF"] = Repo(files={})
    done = llama_ai("serve", "--download", "Tiny-1B", "--quant", "Q4_K_M", env=env)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.rpartition(": ")[2].strip()).read_bytes() == model.read_bytes()


def test_words_that_name_several_repositories_are_listed(
    hub: HubServer, env: dict[str, str]
) -> None:
    hub.repos["a/tiny-x-GGUF"] = Repo(files={}, downloads=1)
    hub.repos["b/tiny-y-GGUF"] = Repo(files={}, downloads=2)
    done = llama_ai("pull", "tiny", env=env)
    assert done.returncode == 2
    assert "b/tiny-y-GGUF" in done.stdout
    listed = json.loads(llama_ai("pull", "tiny", "--json", env=env).stdout)
    assert [one["repo"] for one in listed["repositories"]] == ["b/tiny-y-GGUF", "a/tiny-x-GGUF"]


def test_ctrl_c_keeps_what_was_loaded_and_says_how_to_go_on(
    hub: HubServer, env: dict[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "big-Q8_0.gguf"
    source.write_bytes(os.urandom(20_000_000))
    hub.repos["owner/big-GGUF"] = Repo(files={source.name: source})
    hub.faults.chunk_delay_s = 0.02
    process = subprocess.Popen(
        [sys.executable, "-m", "llama_ai", "pull", "owner/big-GGUF:Q8_0"],
        env=env,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    while hub.transferred_bytes < 2_000_000:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "llama-ai pull owner/big-GGUF:Q8_0" in errors
    [part] = Path(env["HOME"]).rglob("*.incomplete")
    kept = part.stat().st_size
    assert kept > 1_000_000
    hub.faults.chunk_delay_s = 0
    before = len(hub.requests)
    done = llama_ai("pull", "owner/big-GGUF:Q8_0", env=env)
    assert done.returncode == 0, done.stderr
    sent = sum(r.sent_bytes for r in hub.requests[before:] if r.path.startswith("/cdn/"))
    assert sent == 20_000_000 - kept
    assert Path(done.stdout.rpartition(": ")[2].strip()).read_bytes() == source.read_bytes()
