"""Synthetic mixture-of-experts models whose use of experts is known beforehand.

    make_moe.py OUT.gguf [--layers 26] [--experts 64] [--used 4] [--embedding 2048]
                [--feed-forward 768] [--quant q4_0|q4_k_m] [--zipf 1.0] [--topics 1] [--seed 1]

A model of random weights for the engine (architecture ``qwen3moe``), any size, written as a
stream: a 4 GB file takes some seconds and little memory. It says nothing sensible, but it does
everything that a real one does: it tokenises, attends to its history, routes, samples.

What is controlled
    Token embeddings are random, apart from one number per *topic*: dimension ``t`` holds
    ``TOPIC_LEVEL`` for the tokens of topic ``t``, nothing for others. A router's row is random
    too (so each token has its own choice), and holds in dimension ``t`` the expert's *bias* in
    that topic. The biases are solved for, by simulation, so that an expert of rank r is chosen
    for a share of tokens proportional to r^-zipf, at most for every token; ``zipf`` 0 is uniform.
    The order of the experts is drawn anew for each layer and each topic. The head prefers the
    topic of the last token, so a text stays in its topic; a prompt of another range of tokens
    (``topic_of``) changes it: use then drifts.
What is not
    Successive layers choose independently, apart from the token they share: co-activation shows
    only what popularity explains. The hidden state of one layer resembles the next one's, by
    ``gain``: a router applied one layer early is right as often as in real models or more.

``measure_use`` fits the exponent that recorded counts show.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from dataclasses import asdict, dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

Kind = gguf.GGMLQuantizationType
ARCHITECTURE = "qwen3moe"
# Large beside the other numbers of an embedding (standard deviation 1), small beside their sum.
TOPIC_LEVEL = 8.0
LOGIT_DEVIATION = 2.0
# A wrong topic must lose against the best of thousands of random logits.
TOPIC_BONUS = 6.0 * LOGIT_DEVIATION
SIMULATED_TOKENS = 40_000
NOTE_KEY = "llama_ai.synthetic"


@dataclass(frozen=True, kw_only=True)
class Moe:
    """One model. Sizes in elements; ``embedding`` and ``feed_forward`` multiples of 32 (256 for
    K-quants); ``gain`` is what one layer adds, beside an embedding of 1."""

    layers: int = 26
    experts: int = 64
    used: int = 4
    embedding: int = 2048
    feed_forward: int = 768
    heads: int = 8
    kv_heads: int = 2
    head_size: int = 128
    vocabulary: int = 16384
    quant: Literal["q4_0", "q4_k_m"] = "q4_0"
    zipf: float = 1.0
    topics: int = 1
    gain: float = 0.35
    seed: int = 1

    def __post_init__(self) -> None:
        block = 32 if self.quant == "q4_0" else 256
        sizes = (self.embedding, self.feed_forward, self.heads * self.head_size)
        if any(size <= 0 or size % block for size in sizes):
            raise ValueError(f"{self.quant} needs sizes that are multiples of {block}: {sizes}")
        if not 0 < self.used < self.experts:
            raise ValueError(f"{self.used} of {self.experts} experts: use fewer than there are")
        if not 0 < self.topics <= self.embedding // 8:
            raise ValueError(f"{self.topics} topics do not fit {self.embedding} dimensions")
        if not 258 <= self.vocabulary <= 60_000:
            raise ValueError(f"a vocabulary of {self.vocabulary}: use 258 to 60000 tokens")
        if self.zipf < 0 or self.layers < 1:
            raise ValueError("the exponent is 0 or more, and there is at least one layer")

    def topic_of(self, token: int) -> int:
        """The topic of a token: equal ranges of the vocabulary, in order."""
        return token * self.topics // self.vocabulary

    def tokens_of(self, topic: int) -> range:
        """The tokens of one topic that mean text (not the end mark)."""
        first = math.ceil(topic * self.vocabulary / self.topics)
        last = math.ceil((topic + 1) * self.vocabulary / self.topics)
        return range(first, min(last, self.vocabulary - 1))

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The asked share of tokens for each rank, hottest first; they add up to ``used``."""
        weights = np.arange(1, self.experts + 1, dtype=np.float64) ** -self.zipf
        shares = np.zeros(self.experts)
        for full in range(self.used + 1):  # as many as are chosen for every token
            shares[:full] = 1.0
            shares[full:] = weights[full:] * (self.used - full) / weights[full:].sum()
            if shares.max() <= 1.0:
                break
        return shares

    @cached_property
    def routing(self) -> tuple[NDArray[np.float64], float]:
        """Biases by rank, and the mean of the sum of squares of the experts' weights.

        Fixed-point iteration on simulated tokens: too rarely chosen raises a bias. Noise of the
        logits has deviation 1.
        """
        random = np.random.default_rng(self.seed)
        noise = random.standard_normal((SIMULATED_TOKENS, self.experts))
        bias = np.zeros(self.experts)
        wanted = np.clip(self.shares, None, 0.995)
        for _ in range(60 if self.zipf else 0):
            chosen = np.argpartition(noise + bias, -self.used)[:, -self.used :]
            got = np.bincount(chosen.ravel(), minlength=self.experts) / SIMULATED_TOKENS
            got = np.clip(got, 0.5 / SIMULATED_TOKENS, 1 - 0.5 / SIMULATED_TOKENS)
            odds = np.log(wanted / (1 - wanted)) - np.log(got / (1 - got))
            bias += 0.35 * odds
            bias -= bias.mean()
        top = np.sort(noise + bias)[:, -self.used :]
        weights = np.exp(top - top.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return bias, float((weights**2).sum(axis=1).mean())

    def rms(self, layer: int) -> float:
        """Expected root mean square of the residual stream at a layer's router."""
        level = (self.embedding - self.topics + TOPIC_LEVEL**2) / self.embedding
        return math.sqrt(level + layer * self.gain**2)


# ---- weights ----------------------------------------------------------------------------------


def _random_of(moe: Moe, name: str) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64([moe.seed, zlib.crc32(name.encode())]))


def _halves(values: NDArray[np.float64] | float, count: int) -> Bytes:
    """``count`` 16-bit floats as bytes, shape (count, 2)."""
    return (
        np.broadcast_to(np.asarray(values, np.float16), count).copy().view(np.uint8).reshape(-1, 2)
    )


def random_blocks(
    kind: Kind, elements: int, deviation: float, random: np.random.Generator
) -> Bytes:
    """Valid random blocks of a quantisation, mean 0, with this standard deviation; flat bytes.

    No float is ever quantised: a block's small integers are random bits, its scale is fixed.
    """
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    count = elements // per_block
    blocks = np.frombuffer(bytearray(random.bytes(count * size)), np.uint8).reshape(count, size)
    signs = np.where(blocks[:, 0] & 1, 1.0, -1.0)
    if kind == Kind.Q4_0:
        # d * (q - 8): the mean square of -8..7 is 21.5; the sign of d makes it symmetric.
        blocks[:, :2] = _halves(signs * deviation / math.sqrt(21.5), count)
    elif kind == Kind.Q4_K:
        # d * scale * q - dmin * minimum: with dmin = 7.5 d and equal six-bit numbers it is
        # d * scale * (q - 7.5), whose mean square is 21.25; scales are uniform in 32..63.
        scale_square = (np.arange(32, 64) ** 2).mean()
        step = float(np.float16(deviation / math.sqrt(21.25 * scale_square)))
        blocks[:, :2] = _halves(step, count)
        blocks[:, 2:4] = _halves(7.5 * step, count)
        scales = blocks[:, 4:12] & 31 | 32
        low, high = scales[:, :4], scales[:, 4:]
        blocks[:, 4:8] = low | (high >> 4) << 6
        blocks[:, 8:12] = blocks[:, 4:8]
        blocks[:, 12:16] = high & 15 | (high & 15) << 4
    elif kind == Kind.Q6_K:
        # d * scale * (q - 32): the mean square of -32..31 is 341.5; scales are 64..127, signed.
        raw = blocks[:, 192:208]
        magnitude = (raw & 63 | 64).astype(np.int8)
        blocks[:, 192:208] = np.where(raw & 64, magnitude, -magnitude).view(np.uint8)
        scale_square = (np.arange(64, 128) ** 2).mean()
        step = deviation / math.sqrt(341.5 * scale_square)
        blocks[:, 208:] = _halves(step, count)
    else:
        raise ValueError(f"no random blocks for {kind.name}")
    return blocks.reshape(-1)


def _gauss(random: np.random.Generator, rows: int, columns: int) -> Floats:
    return random.standard_normal((rows, columns), np.float32)


def _embedding(moe: Moe) -> Floats:
    values = _gauss(_random_of(moe, "embedding"), moe.vocabulary, moe.embedding)
    topics = np.arange(moe.vocabulary) * moe.topics // moe.vocabulary
    values[:, : moe.topics] = 0
    values[np.arange(moe.vocabulary), topics] = TOPIC_LEVEL
    return values


def _head(moe: Moe) -> Floats:
    values = _gauss(_random_of(moe, "head"), moe.vocabulary, moe.embedding)
    values *= LOGIT_DEVIATION / math.sqrt(moe.embedding)
    topics = np.arange(moe.vocabulary) * moe.topics // moe.vocabulary
    values[:, : moe.topics] = 0
    if moe.topics > 1:
        bonus = TOPIC_BONUS * moe.rms(moe.layers) / TOPIC_LEVEL
        values[np.arange(moe.vocabulary), topics] = bonus
    return values


def router_rows(moe: Moe, layer: int) -> Floats:
    """A layer's router, (experts, embedding)."""
    random = _random_of(moe, f"router {layer}")
    rows = _gauss(random, moe.experts, moe.embedding)
    rows[:, : moe.topics] = 0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)  # the noise of a logit has deviation 1
    bias, _ = moe.routing
    for topic in range(moe.topics):
        ranks = random.permutation(moe.experts)
        rows[:, topic] = bias[ranks] * moe.rms(layer) / TOPIC_LEVEL
    return rows


def _uses_more_bits(layer: int, layers: int) -> bool:
    """The layers whose ``down`` gets Q6_K in the usual Q4_K_M mix: the first and the last eighth,
    and every third between."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """``shape`` as numpy has it: rows last but one, elements of a row last."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    data: Callable[[], Bytes | Floats]


def _tensors(moe: Moe) -> Iterator[_Tensor]:
    n, ff, experts = moe.embedding, moe.feed_forward, moe.experts
    query, key = moe.heads * moe.head_size, moe.kv_heads * moe.head_size
    plain = Kind.Q4_0 if moe.quant == "q4_0" else Kind.Q4_K

    def blocks(name: str, shape: tuple[int, ...], deviation: float, kind: Kind) -> _Tensor:
        return _Tensor(
            name=name,
            shape=shape,
            kind=kind,
            data=lambda: random_blocks(
                kind, math.prod(shape), deviation, _random_of(moe, name)
            ).reshape(gguf.quant_shape_to_byte_shape(shape, kind)),
        )

    def floats(name: str, values: Callable[[], Floats], *shape: int) -> _Tensor:
        return _Tensor(name=name, shape=shape, kind=Kind.F32, data=values)

    def eights(name: str, values: Callable[[], Floats]) -> _Tensor:
        return _Tensor(
            name=name,
            shape=(moe.vocabulary, n),
            kind=Kind.Q8_0,
            data=lambda: gguf.quants.quantize(values(), Kind.Q8_0),
        )

    def ones(size: int) -> Callable[[], Floats]:
        return lambda: np.ones(size, np.float32)

    def no_topics() -> Floats:
        # Attention mixes all but the topics, or it would shift every router by a constant.
        values = np.ones(n, np.float32)
        values[: moe.topics] = 0
        return values

    yield eights("token_embd.weight", lambda: _embedding(moe))
    yield floats("output_norm.weight", ones(n), n)
    yield eights("output.weight", lambda: _head(moe))
    # A neuron's output is silu(g) * u with g and u normal: their mean square, then the sum over
    # the neurons and over the experts with their weights.
    normal = np.random.default_rng(0).standard_normal(1 << 20)
    square = float(((normal / (1 + np.exp(-normal))) ** 2).mean())
    down_deviation = moe.gain / math.sqrt(ff * square * moe.routing[1])
    for layer in range(moe.layers):
        at = f"blk.{layer}"
        down = Kind.Q6_K if plain == Kind.Q4_K and _uses_more_bits(layer, moe.layers) else plain
        yield floats(f"{at}.attn_norm.weight", no_topics, n)
        yield blocks(f"{at}.attn_q.weight", (query, n), n**-0.5, plain)
        yield blocks(f"{at}.attn_k.weight", (key, n), n**-0.5, plain)
        yield blocks(f"{at}.attn_v.weight", (key, n), n**-0.5, plain)
        yield blocks(f"{at}.attn_output.weight", (n, query), moe.gain * query**-0.5, plain)
        yield floats(f"{at}.attn_q_norm.weight", ones(moe.head_size), moe.head_size)
        yield floats(f"{at}.attn_k_norm.weight", ones(moe.head_size), moe.head_size)
        yield floats(f"{at}.ffn_norm.weight", ones(n), n)
        yield floats(f"{at}.ffn_gate_inp.weight", partial(router_rows, moe, layer), experts, n)
        yield blocks(f"{at}.ffn_gate_exps.weight", (experts, ff, n), n**-0.5, plain)
        yield blocks(f"{at}.ffn_up_exps.weight", (experts, ff, n), n**-0.5, plain)
        yield blocks(f"{at}.ffn_down_exps.weight", (experts, n, ff), down_deviation, down)


# ---- the vocabulary ---------------------------------------------------------------------------


def _byte_letters() -> list[str]:
    """The letter that a byte-level tokeniser shows for each byte: itself where it prints, else
    one of the letters from 256 on, in order."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in prints]
    return [chr(byte) if byte in prints else chr(256 + hidden.index(byte)) for byte in range(256)]


def vocabulary(size: int) -> tuple[list[str], list[str]]:
    """``size`` tokens (bytes, pairs of bytes, one end mark) and the merges that make the pairs."""
    letters = _byte_letters()
    order = [*range(32, 127), *(byte for byte in range(256) if not 32 <= byte < 127)]
    numbered = ((max(i, j), i, j) for i in range(256) for j in range(256))
    pairs = [(letters[order[i]], letters[order[j]]) for _, i, j in sorted(numbered)]
    pairs = pairs[: size - 257]
    tokens = [*letters, *(first + second for first, second in pairs), "<|end|>"]
    return tokens, [f"{first} {second}" for first, second in pairs]


# ---- the file ---------------------------------------------------------------------------------


def write_moe(path: Path, moe: Moe) -> int:
    """Write the model; returns the file's size in bytes. The file appears when it is whole."""
    part = path.with_name(path.name + ".part")
    writer = gguf.GGUFWriter(part, ARCHITECTURE)
    writer.add_name(f"synthetic {moe.layers}x{moe.experts} top-{moe.used} zipf {moe.zipf:g}")
    writer.add_string(NOTE_KEY, json.dumps(asdict(moe)))
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_Q4_0 if moe.quant == "q4_0" else gguf.LlamaFileType.MOSTLY_Q4_K_M
    )
    writer.add_block_count(moe.layers)
    writer.add_context_length(32768)
    writer.add_embedding_length(moe.embedding)
    writer.add_feed_forward_length(moe.feed_forward * moe.used)
    writer.add_expert_feed_forward_length(moe.feed_forward)
    writer.add_expert_count(moe.experts)
    writer.add_expert_used_count(moe.used)
    writer.add_head_count(moe.heads)
    writer.add_head_count_kv(moe.kv_heads)
    writer.add_key_length(moe.head_size)
    writer.add_value_length(moe.head_size)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(moe.vocabulary)
    tokens, merges = vocabulary(moe.vocabulary)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)
    for tensor in _tensors(moe):
        size = math.prod(gguf.quant_shape_to_byte_shape(tensor.shape, tensor.kind))
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size, tensor.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in _tensors(moe):
        writer.write_tensor_data(tensor.data())
    writer.close()
    part.replace(path)
    return path.stat().st_size


@cache
def read_moe(path: Path) -> Moe | None:
    """What a file was made with; None when it is not one of ours."""
    field = gguf.GGUFReader(path).get_field(NOTE_KEY)
    return None if field is None else Moe(**json.loads(field.contents()))


# ---- what use a recording shows ---------------------------------------------------------------


def measure_use(counts: NDArray[np.int64]) -> float:
    """The Zipf exponent of one layer's counts, whatever the order of the experts.

    The most likely exponent for counts that fall by rank; a recording that is short beside the
    number of experts looks more skewed than it is.
    """
    falling = np.sort(counts)[::-1].astype(np.float64)
    logs = np.log(np.arange(1, len(falling) + 1))
    mean = float((falling * logs).sum() / falling.sum())
    low, high = -1.0, 8.0
    for _ in range(60):  # the mean log of the rank falls as the exponent grows
        middle = (low + high) / 2
        weights = np.exp(-middle * logs)
        if float((weights * logs).sum() / weights.sum()) > mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("out", type=Path)
    plain = Moe()
    for name, value in asdict(plain).items():
        choices = ("q4_0", "q4_k_m") if name == "quant" else None
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(value), default=value, choices=choices)
    words = vars(parser.parse_args())
    path = words.pop("out")
    try:
        moe = Moe(**words)
    except ValueError as error:
        parser.error(str(error))
    size = write_moe(path, moe)
    sys.stdout.write(json.dumps({"file": path.name, "bytes": size, **asdict(moe)}) + "\n")


if __name__ == "__main__":
    main()
