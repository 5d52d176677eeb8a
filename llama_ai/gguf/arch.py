"""What the engine knows of each architecture that its metadata does not say.

Names and rules are those of the pinned engine (``llama-arch.cpp`` and the ``load_arch_hparams`` of
``src/models``). Where a rule depends on a key of the file, :mod:`llama_ai.gguf.hparams` reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from solver.model import SparseKind


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# An architecture that is not listed is refused by the engine.
KNOWN: Final = _names("""
    afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom
    chameleon chatglm clip codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek
    deepseek2 deepseek2-ocr deepseek32 deepseek4 dflash dots1 dots3note dream eagle3 ernie4_5
    ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2
    gemma3 gemma3n gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox
    granite granite_swa granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense
    hunyuan-moe hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3
    kimi-linear laguna lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba mamba2
    maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3 mistral3 mistral4
    modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert
    nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo
    plamo2 plamo3 plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe
    qwen3next qwen3tts qwen3vl qwen3vlmoe qwen4exp refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss
    smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 t5 t5encoder talkie
    wavtokenizer-dec xverse
""")

RECURRENT: Final = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
"""Every layer holds recurrent state, none a KV cache."""

NO_CACHE: Final = _names("""
    bert jina-bert-v2 jina-bert-v3 nomic-bert nomic-bert-moe neo-bert eurobert wavtokenizer-dec
    modern-bert gemma-embedding dream llada llada-moe rnd1
""")
"""Encoders and diffusion models: the engine keeps no cache for them."""

ENCODERS: Final = _names("""
    bert jina-bert-v2 jina-bert-v3 nomic-bert nomic-bert-moe neo-bert eurobert wavtokenizer-dec
    modern-bert
""")
"""No output matrix, so a missing one does not mean that the embedding is used twice."""

DRAFT_ONLY: Final = frozenset({"eagle3", "dflash", "gemma4-assistant"})
"""Drafts that cannot run without the model that they draft for."""

NOT_LANGUAGE: Final = frozenset({"clip", "wavtokenizer-dec"})
"""Projectors and codecs."""

RECURRENT_WITHOUT_KV_HEADS: Final = _names("""
    jamba granitehybrid lfm2 lfm2moe plamo2 kimi-linear kimi-k3 bailingmoe3 glm5-next
""")
"""A layer whose ``head_count_kv`` is 0 is recurrent."""

RECURRENT_BY_INTERVAL: Final = {
    "qwen3next": 4,
    "qwen35": 4,
    "qwen35moe": 4,
    "qwen4exp": 4,
    "minimax-01": 8,
}
"""All layers but each N-th are recurrent; the default of ``full_attention_interval``."""

SPARSE: Final[dict[str, SparseKind]] = {
    "deepseek32": "selected",
    "glm-dsa": "selected",
    "dots3note": "selected",
    "hy_v4": "selected",
    "glm5-next": "pooled",
    "deepseek4": "compressed",
    "minimax-m3": "blocks",
    "qwen4exp": "experimental",
}
"""Attention that selects which cached rows it reads."""

INDEXER_ROTATED: Final = _names("deepseek32 deepseek4 glm-dsa dots3note")
"""The indexer's keys are rotated whatever the type of the cache."""

SELECTIVE_SCAN: Final = _names(
    "mamba mamba2 jamba plamo2 falcon-h1 granitehybrid nemotron_h nemotron_h_moe"
)
"""Recurrent layers of the Mamba kind, whose scan not every device has."""

NEMOTRON_H: Final = frozenset({"nemotron_h", "nemotron_h_moe"})

MLA: Final = _names("""
    deepseek2 deepseek32 glm-dsa dots3note kimi-linear kimi-k3 bailingmoe3 glm5-next hy_v4 mistral4
""")
"""Caches compressed rows (K only) when the file has the ``*_mla`` keys."""

ROLLBACK: Final = _names("""
    kimi-k3 qwen35 qwen35moe qwen4exp deepseek4 glm5-next nemotron_h nemotron_h_moe lfm2 lfm2moe
    bailingmoe3
""")
"""Keeps further copies of recurrent state for speculative decoding."""

MTP_ON_REQUEST: Final = _names("""
    bailingmoe3 cohere2moe deepseek2 mistral4 deepseek32 deepseek4 glm-dsa glm4moe glm5-next hy_v3
    mimo2 nemotron_h nemotron_h_moe qwen35 qwen35moe qwen3next step35
""")
"""NextN layers are loaded when multi-token prediction is switched on, and can draft."""

FLASH_ATTENTION_OFF: Final = frozenset({"grok"})
"""The engine switches flash attention off whatever was asked for."""


class Window(NamedTuple):
    """How the engine derives which layers slide.

    ``when``: ``always``, or ``positive`` (only with ``sliding_window`` > 0). ``period`` and
    ``dense_first`` are the pattern used without ``sliding_window_pattern``: of each ``period``
    layers one attends to everything, the first or the last; ``None``: the file must list them;
    0: all slide. ``tokens`` replaces the file's window, ``default`` stands in for a missing one.
    """

    when: Literal["always", "positive"]
    period: int | None
    dense_first: bool = False
    default: int | None = None
    tokens: int | None = None


WINDOWS: Final[dict[str, Window]] = {
    "afmoe": Window("positive", 4),
    "cohere2": Window("always", 4),
    "cohere2moe": Window("always", 4, dense_first=True),
    "deepseek4": Window("always", 0),
    "dflash": Window("positive", None),
    "dots3note": Window("always", None),
    "exaone-moe": Window("always", 4, default=128),
    "exaone4": Window("always", 4, default=4096),  # of 64 layers only: see hparams
    "gemma-embedding": Window("always", 6),
    "gemma2": Window("always", 2, default=4096),
    "gemma3": Window("positive", 6),
    "gemma3n": Window("always", 5),
    "gemma4": Window("always", None),
    "gemma4-assistant": Window("always", None),
    "gpt-oss": Window("always", 2),
    "granite_swa": Window("always", None),
    "laguna": Window("positive", 4, dense_first=True),
    "llama4": Window("always", 4, tokens=8192),  # switched off by an explicit 0: see hparams
    "maple": Window("always", None),
    "mellum": Window("positive", 4),
    "mimo2": Window("always", None),
    "modern-bert": Window("positive", 3, dense_first=True),
    "muse-glimmer": Window("always", 4),
    "olmo2": Window("positive", 4),
    "plamo3": Window("positive", 8),
    "smallthinker": Window("positive", 4, dense_first=True, tokens=4096),
    "spark2_5": Window("always", None),
    "step35": Window("always", None),
}
