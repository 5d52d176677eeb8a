"""Drafts and a projector with random weights that the engine loads and runs with the demo model.

What they propose is hardly ever taken, and what they see is noise; but greedy answers with and
without a draft must be the same, and a picture becomes as many tokens as its size says.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

WIDTH = 576  # SmolLM2-135M's
HEAD = 64


@cache
def vocabulary(model: Path) -> Mapping[str, Any]:
    """The tokenizer's values of ``model``."""
    names = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")
    wanted = {f"tokenizer.ggml.{name}" for name in names}
    fields = gguf.GGUFReader(model).fields
    return {name: fields[name].contents() for name in wanted if name in fields}


def write_draft(path: Path, target: Path, *, markov: bool = False, n_tokens: int = 0) -> Path:
    """A DFlash draft (with ``markov``: DSpark) for the demo model ``target``.

    ``n_tokens`` cuts its vocabulary, which makes it unfit.
    """
    writer = gguf.GGUFWriter(path, "dflash")
    _shape(writer, blocks=2, heads=9, heads_kv=3, feed_forward=1536)
    layers = [2, 10, 20]
    writer.add_array("dflash.target_layers", layers)
    writer.add_uint32("dflash.block_size", 8)
    writer.add_uint32("tokenizer.ggml.mask_token_id", 1)
    count = _tokenizer(writer, target, n_tokens)
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (WIDTH, WIDTH * len(layers)),
        "enc.output_norm.weight": (WIDTH,),
        "output_norm.weight": (WIDTH,),
    }
    if markov:
        shapes |= {"markov_w1.weight": (count, 32), "markov_w2.weight": (count, 32)}
    for block in range(2):
        shapes |= _attention(block, heads=9, heads_kv=3)
        shapes |= _feed_forward(block, 1536)
        shapes[f"blk.{block}.ffn_norm.weight"] = (WIDTH,)
    return _write(writer, shapes)


def write_mtp(path: Path, target: Path) -> Path:
    """A Qwen3.5 with one recurrent and one attention block, and a NextN block that drafts."""
    writer = gguf.GGUFWriter(path, "qwen35")
    _shape(writer, blocks=3, heads=9, heads_kv=3, feed_forward=512)
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    writer.add_uint32("qwen35.full_attention_interval", 2)
    writer.add_array("qwen35.rope.dimension_sections", [8, 12, 12, 0])
    for name, value in {
        "conv_kernel": 4,
        "inner_size": 4 * HEAD,
        "state_size": HEAD,
        "time_step_rank": 4,
        "group_count": 2,
    }.items():
        writer.add_uint32(f"qwen35.ssm.{name}", value)
    count = _tokenizer(writer, target, 0)
    inner, both = 4 * HEAD, 4 * HEAD + 2 * 2 * HEAD
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (count, WIDTH),
        "output_norm.weight": (WIDTH,),
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_qkv.weight": (both, WIDTH),
        "blk.0.attn_gate.weight": (inner, WIDTH),
        "blk.0.ssm_conv1d.weight": (both, 4),
        "blk.0.ssm_dt.bias": (4,),
        "blk.0.ssm_a": (4,),
        "blk.0.ssm_beta.weight": (4, WIDTH),
        "blk.0.ssm_alpha.weight": (4, WIDTH),
        "blk.0.ssm_norm.weight": (HEAD,),
        "blk.0.ssm_out.weight": (WIDTH, inner),
        "blk.2.nextn.eh_proj.weight": (WIDTH, 2 * WIDTH),
        "blk.2.nextn.enorm.weight": (WIDTH,),
        "blk.2.nextn.hnorm.weight": (WIDTH,),
    }
    for block in range(3):
        shapes[f"blk.{block}.post_attention_norm.weight"] = (WIDTH,)
        shapes |= _feed_forward(block, 512)
        if block:
            shapes |= _attention(block, heads=9, heads_kv=3, gated=True)
    return _write(writer, shapes)


PICTURE_TOKENS = 16
"""Of a picture of 64 by 64 pixels in patches of 16."""


def write_projector(path: Path) -> Path:
    """A projector of LLaVA's kind, which needs no words of its own in the vocabulary."""
    width, inner, patch = 64, 128, 16
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    for name, value in {
        "image_size": 64,
        "patch_size": patch,
        "embedding_length": width,
        "feed_forward_length": inner,
        "block_count": 2,
        "projection_dim": WIDTH,
        "attention.head_count": 2,
    }.items():
        writer.add_uint32(f"clip.vision.{name}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for name in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{name}", [0.5, 0.5, 0.5])
    shapes: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (width, 3, patch, patch),
        "v.patch_embd.bias": (width,),
        "v.position_embd.weight": ((64 // patch) ** 2, width),
        "v.post_ln.weight": (width,),
        "v.post_ln.bias": (width,),
        "mm.0.weight": (WIDTH, width),
        "mm.0.bias": (WIDTH,),
        "mm.2.weight": (WIDTH, WIDTH),
        "mm.2.bias": (WIDTH,),
    }
    for block in (f"v.blk.{index}" for index in range(2)):
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            shapes[f"{block}.{part}.weight"] = (width, width)
            shapes[f"{block}.{part}.bias"] = (width,)
        for part in ("ln1", "ln2"):
            shapes[f"{block}.{part}.weight"] = (width,)
            shapes[f"{block}.{part}.bias"] = (width,)
        shapes |= {f"{block}.ffn_up.weight": (inner, width), f"{block}.ffn_up.bias": (inner,)}
        shapes |= {f"{block}.ffn_down.weight": (width, inner), f"{block}.ffn_down.bias": (width,)}
    return _write(writer, shapes)


def _shape(
    writer: gguf.GGUFWriter, *, blocks: int, heads: int, heads_kv: int, feed_forward: int
) -> None:
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(blocks)
    writer.add_feed_forward_length(feed_forward)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads_kv)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)


def _tokenizer(writer: gguf.GGUFWriter, target: Path, n_tokens: int) -> int:
    values = vocabulary(target)
    tokens = values["tokenizer.ggml.tokens"]
    count = n_tokens or len(tokens)
    writer.add_string("tokenizer.ggml.model", values["tokenizer.ggml.model"])
    writer.add_string("tokenizer.ggml.pre", values["tokenizer.ggml.pre"])
    writer.add_token_list(tokens[:count])
    writer.add_token_types(values["tokenizer.ggml.token_type"][:count])
    writer.add_token_merges(values["tokenizer.ggml.merges"])
    for name in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id"):
        if name in values:
            writer.add_uint32(name, int(values[name]))
    return count


def _attention(
    block: int, *, heads: int, heads_kv: int, gated: bool = False
) -> dict[str, tuple[int, ...]]:
    return {
        f"blk.{block}.attn_norm.weight": (WIDTH,),
        f"blk.{block}.attn_q.weight": (heads * HEAD * (2 if gated else 1), WIDTH),
        f"blk.{block}.attn_k.weight": (heads_kv * HEAD, WIDTH),
        f"blk.{block}.attn_v.weight": (heads_kv * HEAD, WIDTH),
        f"blk.{block}.attn_output.weight": (WIDTH, heads * HEAD),
        f"blk.{block}.attn_q_norm.weight": (HEAD,),
        f"blk.{block}.attn_k_norm.weight": (HEAD,),
    }


def _feed_forward(block: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"blk.{block}.ffn_gate.weight": (inner, WIDTH),
        f"blk.{block}.ffn_up.weight": (inner, WIDTH),
        f"blk.{block}.ffn_down.weight": (WIDTH, inner),
    }


def _write(writer: gguf.GGUFWriter, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    random = np.random.default_rng(1)
    for name, shape in shapes.items():
        if name.endswith(("norm.weight", "_ln.weight", "ln1.weight", "ln2.weight")):
            data = np.ones(shape, np.float32)
        elif name.endswith("ssm_a"):
            data = -np.ones(shape, np.float32)
        else:
            data = (random.standard_normal(shape) * 0.05).astype(np.float32)
        whole = len(shape) > 1 and not any(part in name for part in ("conv1d", "position_embd"))
        writer.add_tensor(name, data.astype(np.float16) if whole else data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(str(writer.path))
