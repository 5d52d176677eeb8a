"""``memory_probe`` on a small model of the test's own, and on everything that can go wrong."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gguf import GGUFWriter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

LAYERS, HEADS, KV_HEADS, HEAD, FFN, VOCAB = 3, 4, 2, 64, 96, 8192
EMBED = HEADS * HEAD


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama of zeros: f32 weights, no tokenizer."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(EMBED)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("none")
    kv = KV_HEADS * HEAD
    shapes = {"token_embd": (VOCAB, EMBED), "output_norm": (EMBED,), "output": (VOCAB, EMBED)}
    for i in range(LAYERS):
        shapes |= {
            f"blk.{i}.attn_norm": (EMBED,),
            f"blk.{i}.attn_q": (EMBED, EMBED),
            f"blk.{i}.attn_k": (kv, EMBED),
            f"blk.{i}.attn_v": (kv, EMBED),
            f"blk.{i}.attn_output": (EMBED, EMBED),
            f"blk.{i}.ffn_norm": (EMBED,),
            f"blk.{i}.ffn_gate": (FFN, EMBED),
            f"blk.{i}.ffn_up": (FFN, EMBED),
            f"blk.{i}.ffn_down": (EMBED, FFN),
        }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def probe(
    native_bin: Path, model: Path | str, layouts: object, *words: str
) -> subprocess.CompletedProcess[str]:
    text = layouts if isinstance(layouts, str) else json.dumps(layouts)
    # No Vulkan device: the figures below are those of the CPU alone.
    env = {**os.environ, "GGML_VK_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [native_bin / "memory_probe", model, *words],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=env,
    )


def rows(native_bin: Path, model: Path, layouts: object) -> list[dict[str, Any]]:
    done = probe(native_bin, model, layouts)
    assert (done.returncode, done.stderr) == (0, "")
    result: list[dict[str, Any]] = json.loads(done.stdout)["layouts"]
    return result


def test_weights_and_kv_cache_to_the_byte(native_bin: Path, model: Path) -> None:
    """K and V hold ``head size * KV heads`` a layer and token; q8_0 is 34 bytes for 32 values."""
    base = {"parallel": 1, "flash_attn": "on", "device": "none"}
    f16, q8, mixed, default = rows(
        native_bin,
        model,
        [
            {**base, "name": "f16", "ctx_size": 1024},
            {
                **base,
                "name": "q8",
                "ctx_size": 2048,
                "cache_type_k": "q8_0",
                "cache_type_v": "q8_0",
            },
            {**base, "name": "mixed", "ctx_size": 1024, "cache_type_k": "q8_0"},
            {"name": "default", "ctx_size": 1024, "cache_type_k": None},
        ],
    )
    values = LAYERS * 2 * KV_HEADS * HEAD
    assert f16["host"]["context_bytes"] == 1024 * values * 2
    assert q8["host"]["context_bytes"] == 2048 * values * 34 // 32
    assert mixed["host"]["context_bytes"] == 1024 * values // 2 * 2 + 1024 * values // 2 * 34 // 32
    assert default["host"]["context_bytes"] == f16["host"]["context_bytes"]

    weights = 2 * VOCAB * EMBED + EMBED
    weights += LAYERS * (
        2 * EMBED + 2 * EMBED * EMBED + 2 * KV_HEADS * HEAD * EMBED + 3 * FFN * EMBED
    )
    assert {row["host"]["model_bytes"] for row in (f16, q8, mixed, default)} == {weights * 4}
    assert f16["host"]["compute_bytes"] > 0
    assert f16["host"]["total_bytes"] > 0
    assert [row["name"] for row in (f16, q8, mixed, default)] == ["f16", "q8", "mixed", "default"]
    assert (f16["devices"], f16["layers"], f16["experts"]) == ([], LAYERS, 0)
    assert (f16["ctx_size"], f16["ctx_size_train"]) == (1024, 4096)
    assert "draft" not in f16["host"]


def test_logits_are_reserved_as_the_server_does(native_bin: Path, model: Path) -> None:
    """The server reserves one row of logits a slot; a row for each token would be 16 MiB here."""
    one, large = rows(
        native_bin,
        model,
        [
            {"ctx_size": 512, "parallel": 1, "ubatch_size": 512},
            {"ctx_size": 2048, "parallel": 1, "ubatch_size": 2048, "batch_size": 2048},
        ],
    )
    assert one["host"]["compute_bytes"] < 512 * VOCAB * 4
    assert large["host"]["compute_bytes"] > 2 * one["host"]["compute_bytes"]


def test_a_draft_model_is_counted_beside_the_model(native_bin: Path, model: Path) -> None:
    alone, drafted, moved = rows(
        native_bin,
        model,
        [
            {"ctx_size": 1024, "parallel": 1},
            {"ctx_size": 1024, "parallel": 1, "spec_draft_model": str(model)},
            {
                "ctx_size": 1024,
                "parallel": 1,
                "spec_draft_model": str(model),
                "spec_draft_type_k": "q8_0",
            },
        ],
    )
    assert drafted["host"]["draft"]["model_bytes"] == alone["host"]["model_bytes"]
    assert drafted["host"]["draft"]["context_bytes"] == alone["host"]["context_bytes"]
    assert drafted["host"]["context_bytes"] == alone["host"]["context_bytes"]
    assert moved["host"]["draft"]["context_bytes"] < alone["host"]["context_bytes"]


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"cache_type_k": "q9_9"}, "cache_type_k: Unsupported cache type: q9_9"),
        ({"ctx_sise": 1}, "ctx_sise: not a setting that changes memory"),
        ({"model": "other.gguf"}, "model: not a setting that changes memory"),
        ({"ctx_size": "1x"}, "ctx_size: expected a whole number"),
        ({"ctx_size": 1.5}, "ctx_size: expected a whole number"),
        ({"kv_unified": "yes"}, "kv_unified: expected true or false"),
        ({"device": "Vulkan7"}, "device: invalid device: Vulkan7"),
        ({"override_tensor": ["x=Nowhere"]}, "override_tensor: unknown buffer type"),
        ({"override_tensor": [{}]}, "override_tensor: expected a string"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "requires flash_attn"),
        ({"ctx_size": 2_000_000_000, "parallel": 1}, "cannot make a context"),
        ({"spec_draft_model": "/nowhere.gguf"}, "cannot load the draft model /nowhere.gguf"),
        ({"spec_type": "draft-mtp"}, "cannot make the draft's context"),
        # Upstream aborts when an RPC server does not answer.
        ({"rpc": "127.0.0.1:1"}, "the engine was ended by Aborted"),
        (7, "a layout is an object"),
    ],
)
def test_a_wrong_layout_has_an_error_and_the_others_are_measured(
    native_bin: Path, model: Path, layout: object, why: str
) -> None:
    named = {"name": "wrong", **layout} if isinstance(layout, dict) else layout
    good = {"ctx_size": 256, "parallel": 1}
    before, wrong, after = rows(native_bin, model, [good, named, good])
    assert why in wrong["error"]
    assert "\n" not in wrong["error"]
    assert wrong["name"] == ("wrong" if isinstance(layout, dict) else None)
    assert before["host"]["context_bytes"] == after["host"]["context_bytes"] > 0


@pytest.mark.parametrize("kind", ["empty", "garbage", "header", "data", "future"])
def test_a_bad_file_is_an_error_and_no_abort(
    native_bin: Path, model: Path, tmp_path: Path, kind: str
) -> None:
    data = model.read_bytes()
    path = tmp_path / "bad.gguf"
    path.write_bytes(
        {
            "empty": b"",
            "garbage": bytes(range(256)) * 20,
            "header": data[:200],
            "data": data[:-100_000],
            "future": data[:4] + b"\xff\0\0\0" + data[8:],
        }[kind]
    )
    done = probe(native_bin, path, [{"name": "a"}, {"name": "b"}])
    assert (done.returncode, done.stderr) == (5, "")
    for row in json.loads(done.stdout)["layouts"]:
        assert row["error"].startswith("the engine cannot load this model: ")


def test_usage(native_bin: Path, model: Path, tmp_path: Path) -> None:
    for words, layouts, code, why in [
        ((), "{}", 2, "not a JSON list"),
        ((), "[", 2, "not a JSON list"),
        (("-x",), "[]", 2, "unknown option -x"),
        (("a", "b"), "[]", 2, "usage:"),
        ((str(tmp_path / "none.json"),), "", 2, "cannot read"),
    ]:
        done = probe(native_bin, model, layouts, *words)
        assert (done.returncode, done.stdout) == (code, "")
        assert why in done.stderr
    for missing in (tmp_path / "none.gguf", tmp_path):
        done = probe(native_bin, missing, [{}])
        assert (done.returncode, done.stdout) == (4, "")
        assert str(missing) in done.stderr
    (tmp_path / "layouts.json").write_text("[]")
    done = probe(native_bin, model, "", str(tmp_path / "layouts.json"))
    assert (done.returncode, json.loads(done.stdout)["layouts"]) == (0, [])


def test_the_engines_log_is_shown_only_when_asked_for(native_bin: Path, model: Path) -> None:
    quiet = probe(native_bin, model, [{"ctx_size": 256}])
    loud = probe(native_bin, model, [{"ctx_size": 256}], "-v")
    assert quiet.stderr == ""
    assert "llama_model_loader" in loud.stderr
    assert json.loads(loud.stdout)["layouts"][0]["host"]["context_bytes"] > 0
