"""Small real GGUF files for tests, written with upstream's own package."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np


def write_model(
    path: Path,
    *,
    n_layer: int = 2,
    n_ctx_train: int = 4096,
    n_embd: int = 64,
    n_vocab: int = 32,
    chat_template: str | None = None,
) -> Path:
    """A llama-architecture file with random weights; small, valid, and of no use to talk to."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(n_ctx_train)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(2 * n_embd)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 4)
    writer.add_vocab_size(n_vocab)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{index}" for index in range(n_vocab)])
    writer.add_token_scores([0.0] * n_vocab)
    writer.add_token_types([1] * n_vocab)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    shapes = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    for layer in range(n_layer):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (n_embd,),
            f"blk.{layer}.attn_q.weight": (n_embd, n_embd),
            f"blk.{layer}.attn_k.weight": (n_embd // 2, n_embd),
            f"blk.{layer}.attn_v.weight": (n_embd // 2, n_embd),
            f"blk.{layer}.attn_output.weight": (n_embd, n_embd),
            f"blk.{layer}.ffn_norm.weight": (n_embd,),
            f"blk.{layer}.ffn_gate.weight": (2 * n_embd, n_embd),
            f"blk.{layer}.ffn_up.weight": (2 * n_embd, n_embd),
            f"blk.{layer}.ffn_down.weight": (n_embd, 2 * n_embd),
        }
    random = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(name, random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
