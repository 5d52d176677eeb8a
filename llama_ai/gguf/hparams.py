"""The engine's view of a model: per-layer attention, windows, recurrent state, caches.

This follows what the engine derives from the metadata when it loads a file, including what it
assumes where a key is missing (key length from the embedding width, ``head_count_kv`` from
``head_count``, sliding patterns that are implied by the architecture's name).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from llama_ai.gguf import arch as known
from llama_ai.gguf.errors import BadModelFileError
from llama_ai.gguf.parse import Skipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from llama_ai.gguf.parse import Value

MAX_LAYERS: Final = 512
_MAX_NUMBER: Final = (1 << 32) - 1


class Keys:
    """Typed access to the metadata of one architecture; errors name the file and the key."""

    def __init__(self, kv: Mapping[str, Value], architecture: str, name: str) -> None:
        self._kv = kv
        self._architecture = architecture
        self._name = name

    def fail(self, what: str) -> BadModelFileError:
        return BadModelFileError(
            f"{self._name}: {what}",
            hint="the file's metadata is broken or newer than this engine; download it again",
        )

    def raw(self, key: str) -> Value | None:
        return self._kv.get(f"{self._architecture}.{key}")

    def has(self, key: str) -> bool:
        return self.raw(key) is not None

    def number(self, key: str, default: int | None = None) -> int:
        """A count; ``default`` where the key is missing, an error where there is none."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        return self._checked(key, value)

    def optional(self, key: str) -> int | None:
        value = self.raw(key)
        return None if value is None else self._checked(key, value)

    def length(self, key: str) -> int:
        """How many elements an array has; 0 without it."""
        value = self.raw(key)
        if isinstance(value, Skipped):
            return value.length
        return len(value) if isinstance(value, tuple) else 0

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """An array of counts or flags; ``None`` where the key is missing or not an array."""
        value = self.raw(key)
        if not isinstance(value, tuple) or isinstance(value, Skipped):
            return None
        return tuple(
            int(item) if isinstance(item, bool) else self._checked(key, item) for item in value
        )

    def per_layer(self, key: str, count: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """A value that is given once for all layers or once a layer."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, Skipped):
            raise self.fail(f"{self._architecture}.{key} has {value.length} elements")
        array = self.numbers(key)
        if array is None:
            return (self._checked(key, value),) * count
        if len(array) < count:
            raise self.fail(
                f"{self._architecture}.{key} has {len(array)} elements for {count} layers"
            )
        return array[:count]

    def _checked(self, key: str, value: object) -> int:
        if value is None:
            raise self.fail(f"metadata key {self._architecture}.{key} is missing")
        if isinstance(value, bool):
            return int(value)
        if not isinstance(value, int) or not 0 <= value <= _MAX_NUMBER:
            raise self.fail(f"metadata key {self._architecture}.{key} is {str(value)[:80]!r}")
        return value


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerHparams:
    """One block. Widths are elements of a cache row (0: the layer has no such cache)."""

    index: int
    nextn: bool
    """Belongs to the file's own draft (multi-token prediction), not to the trunk."""
    sliding: bool
    recurrent: bool
    n_head: int
    n_head_kv: int
    head_k: int
    head_v: int
    n_ff: int
    n_ff_expert: int
    n_expert_used: int
    kv_reused: bool
    """Attends to the cache of an earlier layer (shared KV)."""
    k_width: int
    v_width: int
    indexer_width: int
    """Row of the sparse-attention indexer's key cache."""
    indexer_v_width: int
    compress_ratio: int
    state_r: int
    """f32 values of convolution or token-shift state a sequence."""
    state_s: int
    """f32 values of recurrent state a sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Hparams:
    """What the engine takes from the metadata before it looks at a tensor."""

    architecture: str
    n_ctx_train: int
    n_embd: int
    n_embd_out: int
    n_vocab: int
    n_layer_nextn: int
    n_expert: int
    n_expert_shared: int
    n_ff_shared: int
    n_swa: int
    mla: bool
    head_k_mla: int
    head_v_mla: int
    indexer_heads: int
    indexer_head_size: int
    indexer_top_k: int
    indexer_pool: int
    """Tokens whose index keys are pooled into one; 0: not pooled."""
    hyper_connections: int
    n_embd_per_layer: int
    ssm_inner: int
    ssm_conv: int
    ssm_state: int
    layers: tuple[LayerHparams, ...] = field(default=())

    @property
    def n_layer(self) -> int:
        """Blocks of the trunk, without NextN."""
        return len(self.layers) - self.n_layer_nextn


def read_hparams(
    kv: Mapping[str, Value], architecture: str, name: str, tensor_names: frozenset[str]
) -> Hparams:
    """Derive :class:`Hparams`; ``name`` is used in errors.

    Raises :class:`BadModelFileError` when a required key is missing or a value is impossible.
    """
    keys = Keys(kv, architecture, name)
    count = keys.number("block_count")
    nextn = keys.number("nextn_predict_layers", 0)
    if not 0 < count <= MAX_LAYERS or nextn > count:
        raise keys.fail(
            f"{count} layers ({nextn} of them NextN): at most {MAX_LAYERS} are possible"
        )
    if architecture == "deepseek4" and nextn:
        # The files of this architecture name a draft that they usually do not contain.
        probe = f"blk.{count - nextn}.nextn.eh_proj.weight"
        nextn = nextn if probe in tensor_names else 0
    heads = keys.per_layer("attention.head_count", count, (0,) * count)
    kv_heads = keys.per_layer("attention.head_count_kv", count, heads)
    ff = keys.per_layer("feed_forward_length", count, (0,) * count)
    if architecture == "graniteswitch":
        # A last layer with one head holds which adapter each token selected.
        heads, kv_heads, ff = (*heads, 1), (*kv_heads, 1), (*ff, 0)
        nextn, count = 1, count + 1
    loops = keys.number("num_loops", 1) if architecture == "nanbeige" else 1
    if loops * count > MAX_LAYERS or loops < 1:
        raise keys.fail(f"{loops} loops over {count} layers")
    n_expert = keys.number("expert_count", 0)
    if n_expert <= 1 and architecture in {"hunyuan_vl", "hunyuan-dense"}:
        n_expert = 0
    shape = _Shape(keys, architecture, count, nextn, heads, kv_heads, ff)
    layers = shape.layers()
    if loops > 1:
        layers = tuple(
            _at(layer, loop * count + layer.index) for loop in range(loops) for layer in layers
        )
    n_embd = keys.number("embedding_length")
    hyper = keys.number("hyper_connection.count", 0)
    n_embd_out = keys.number("embedding_length_out", n_embd)
    if architecture in {"deepseek4", "qwen4exp"}:
        n_embd_out = hyper * n_embd
    return Hparams(
        architecture=architecture,
        n_ctx_train=keys.number("context_length"),
        n_embd=n_embd,
        n_embd_out=n_embd_out,
        n_vocab=_vocabulary(kv, keys),
        n_layer_nextn=nextn,
        n_expert=n_expert,
        n_expert_shared=keys.number("expert_shared_count", 0),
        n_ff_shared=keys.number("expert_shared_feed_forward_length", 0),
        n_swa=shape.n_swa,
        mla=shape.mla,
        head_k_mla=shape.head_k_mla,
        head_v_mla=shape.head_v_mla,
        indexer_heads=keys.number("attention.indexer.head_count", 0),
        indexer_head_size=shape.indexer_size,
        indexer_top_k=keys.number("attention.indexer.top_k", 0),
        indexer_pool=keys.number("attention.indexer.kpool", 0),
        hyper_connections=hyper,
        n_embd_per_layer=keys.number("embedding_length_per_layer_input", 0),
        ssm_inner=keys.number("ssm.inner_size", 0),
        ssm_conv=keys.number("ssm.conv_kernel", 0),
        ssm_state=keys.number("ssm.state_size", 0),
        layers=layers,
    )


def _at(layer: LayerHparams, index: int) -> LayerHparams:
    values = {name: getattr(layer, name) for name in LayerHparams.__slots__}
    return LayerHparams(**{**values, "index": index})


def _vocabulary(kv: Mapping[str, Value], keys: Keys) -> int:
    tokens = kv.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.length
    if isinstance(tokens, tuple):
        return len(tokens)
    return keys.number("vocab_size", 0)


class _Shape:
    """The per-layer part, in the order in which the engine derives it."""

    def __init__(
        self,
        keys: Keys,
        architecture: str,
        count: int,
        nextn: int,
        heads: tuple[int, ...],
        kv_heads: tuple[int, ...],
        ff: tuple[int, ...],
    ) -> None:
        self.keys = keys
        self.architecture = architecture
        self.count = count
        self.trunk = count - nextn
        self.has_nextn = nextn > 0
        self.heads = heads
        self.kv_heads = kv_heads
        self.ff = ff
        self.indexer_size = keys.number("attention.indexer.key_length", 0)
        self.head_k_mla = keys.number("attention.key_length_mla", 0)
        self.head_v_mla = keys.number("attention.value_length_mla", 0)
        self.mla = architecture in known.MLA and self.head_k_mla > 0 and self.head_v_mla > 0
        self.n_swa, self.sliding = self._windows()
        self.recurrent = self._recurrent()
        self.head_k, self.head_v = self._head_sizes()
        self.kv_layers = self._kv_from_start()

    def _windows(self) -> tuple[int, tuple[bool, ...]]:
        keys, none = self.keys, (0, (False,) * self.count)
        tokens = keys.optional("attention.sliding_window")
        if self.architecture in {"lfm2", "lfm2moe"}:
            # The short-convolution hybrid slides in all its attention layers; its MoE form never.
            if self.architecture == "lfm2moe" or not tokens:
                return none
            slides = tuple(i < self.trunk and n > 0 for i, n in enumerate(self.kv_heads))
            return tokens, slides
        window = known.WINDOWS.get(self.architecture)
        if window is None or (window.when == "positive" and not tokens):
            return none
        if self.architecture == "llama4" and tokens == 0:
            return none
        if self.architecture == "exaone4" and self.trunk != 64:
            return none
        if window.tokens is not None:
            tokens = window.tokens
        if tokens is None:
            if window.default is None:
                raise keys.fail(f"{self.architecture}.attention.sliding_window is missing")
            tokens = window.default
        return tokens, self._pattern(window)

    def _pattern(self, window: known.Window) -> tuple[bool, ...]:
        key = "attention.sliding_window_pattern"
        # DeepSeek-V4 slides everywhere and compresses what is older.
        array = None if self.architecture == "deepseek4" else self.keys.numbers(key)
        if array is not None:
            flags = [bool(flag) for flag in array[: self.count]]
            return tuple(flags + [False] * (self.count - len(flags)))
        if window.period is None:
            raise self.keys.fail(f"{self.architecture}.{key} is missing")
        period = window.period
        if period and (scalar := self.keys.optional(key)) is not None:
            period = scalar
        if period == 0:
            return (True,) * (self.count if self.architecture == "deepseek4" else self.trunk) + (
                False,
            ) * (0 if self.architecture == "deepseek4" else self.count - self.trunk)
        dense = 0 if window.dense_first else period - 1
        return tuple(i < self.trunk and i % period != dense for i in range(self.count))

    def _recurrent(self) -> tuple[bool, ...]:
        name = self.architecture
        if name in known.RECURRENT or name == "falcon-h1":
            return (True,) * self.count
        if name in known.RECURRENT_WITHOUT_KV_HEADS:
            limit = self.count if name == "glm5-next" else self.trunk
            return tuple(i < limit and n == 0 for i, n in enumerate(self.kv_heads))
        if name in known.NEMOTRON_H:
            return tuple(
                i < self.trunk and self.kv_heads[i] == 0 and self.ff[i] == 0
                for i in range(self.count)
            )
        if name in known.RECURRENT_BY_INTERVAL:
            flags = self.keys.numbers("attention.recurrent_layers")
            if flags is not None:
                if len(flags) < self.count:
                    raise self.keys.fail(f"{name}.attention.recurrent_layers is too short")
                return tuple(bool(flag) for flag in flags[: self.count])
            interval = self.keys.number(
                "full_attention_interval", known.RECURRENT_BY_INTERVAL[name]
            )
            if interval < 1:
                raise self.keys.fail(f"{name}.full_attention_interval is {interval}")
            return tuple(i < self.trunk and (i + 1) % interval != 0 for i in range(self.count))
        return (False,) * self.count

    def _head_sizes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        keys = self.keys
        k = v = 0
        if self.heads[0] > 0:
            k = v = keys.number("embedding_length") // self.heads[0]
            k = keys.number("attention.key_length", k)
            v = keys.number("attention.value_length", v)
        elif self.architecture == "plamo2":
            k = keys.number("attention.key_length", 0)
            v = keys.number("attention.value_length", 0)
        k_swa = keys.number("attention.key_length_swa", k)
        v_swa = keys.number("attention.value_length_swa", v)
        return (
            tuple(k_swa if slides else k for slides in self.sliding),
            tuple(v_swa if slides else v for slides in self.sliding),
        )

    def _kv_from_start(self) -> int:
        """How many layers, from the first, have a cache of their own."""
        if self.architecture == "gemma3n":
            return min(20, self.count)
        if self.architecture == "gemma4":
            shared = self.keys.number("attention.shared_kv_layers", 0)
            if shared > self.count:
                raise self.keys.fail(f"{shared} of {self.count} layers share their cache")
            return self.count - shared
        return self.count

    def _attends(self, index: int) -> bool:
        """Has its own attention cache in the main or the draft context."""
        name = self.architecture
        if name in known.RECURRENT or name in known.NO_CACHE or index >= self.kv_layers:
            return False
        if name == "falcon-h1":
            return True
        if name in known.NEMOTRON_H:
            return not self.recurrent[index] and self.ff[index] == 0
        return not self.recurrent[index]

    def _indexer(self, index: int) -> tuple[int, int]:
        """Row widths of the sparse-attention indexer's cache: keys, and values where it has any."""
        name, size = self.architecture, self.indexer_size
        if name == "minimax-m3":
            lead = self.keys.number("leading_dense_block_count", 0)
            return (size, self.head_v[index]) if index >= lead else (0, 0)
        if index >= self.trunk or not self._attends(index):
            return (0, 0)
        if name in {"deepseek32", "qwen4exp"}:
            return (size, 0)
        if name in {"glm-dsa", "dots3note", "hy_v4", "glm5-next"}:
            if name == "hy_v4" and self.keys.number("attention.indexer.top_k", 0) == 0:
                return (0, 0)
            pooled = 3 if name == "glm5-next" else 1  # key, gate and pooled value
            return (size * pooled, 0) if self._owns_indexer(index) else (0, 0)
        return (0, 0)

    def _owns_indexer(self, index: int) -> bool:
        flags = self.keys.numbers("attention.indexer.types")
        if flags is not None:
            return index < len(flags) and bool(flags[index])
        scalar = self.keys.optional("attention.indexer.types")
        if scalar is not None:
            return bool(scalar)
        if self.architecture == "glm5-next":
            return True
        if self.architecture == "glm-dsa":
            # GLM 5.2 (a million tokens) owns an indexer in the first three layers and then in
            # each fourth; before it each layer did.
            if self.keys.number("context_length") < 1 << 20:
                return True
            return index < 3 or (index - 2) % 4 == 0
        return False

    def _states(self, index: int) -> tuple[int, int]:
        """f32 values of state a sequence: the convolution's or token shift's, the recurrence's."""
        keys = self.keys
        if not self.recurrent[index] or index >= self.trunk:
            return (0, 0)
        width = keys.number("embedding_length")
        if self.architecture in {"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}:
            shift = keys.number("token_shift_count", 2)
            return (shift * width, width * keys.number("wkv.head_size"))
        if self.architecture in {"lfm2", "lfm2moe"}:
            return (width * max(keys.number("shortconv.l_cache") - 1, 0), 0)
        conv = keys.number("ssm.conv_kernel", 0)
        heads = self.heads[0]
        if self.architecture in {"kimi-linear", "kimi-k3", "bailingmoe3", "glm5-next"}:
            size = keys.number("kda.head_dim")
            return (3 * (conv - 1 if conv > 0 else 3) * heads * size, size * size * heads)
        if self.architecture == "minimax-01":
            size = self.head_k[0]
            return (0, size * size * heads)
        inner = keys.number("ssm.inner_size")
        state = keys.number("ssm.state_size")
        groups = keys.number("ssm.group_count", 0)
        if self.architecture in {"mamba", "jamba"}:
            groups = 0
        r = max(conv - 1, 0) * (inner + 2 * groups * state)
        if self.architecture == "qwen4exp" and index in (keys.numbers("ple.layers") or ()):
            # The n-gram embedding's convolution keeps its own history.
            kernel = keys.number("ple.conv_kernel")
            ngram = keys.number("ple.ngram_size")
            streams = keys.number("hyper_connection.count")
            r += max(kernel - 1, 0) * ngram * streams * width
        return (r, state * inner)

    def layers(self) -> tuple[LayerHparams, ...]:
        keys, count, zero = self.keys, self.count, (0,) * self.count
        ff_expert = keys.per_layer("expert_feed_forward_length", count, zero)
        used = keys.per_layer("expert_used_count", count, zero)
        ratios = keys.numbers("attention.compress_ratios") or ()
        if self.architecture == "deepseek4" and len(ratios) < count:
            raise keys.fail("deepseek4.attention.compress_ratios is shorter than block_count")
        k_only = self.mla or self.architecture == "deepseek4"
        layers: list[LayerHparams] = []
        for i in range(count):
            attends = self._attends(i)
            indexer, indexer_v = self._indexer(i)
            state_r, state_s = self._states(i)
            layers.append(
                LayerHparams(
                    index=i,
                    nextn=self.has_nextn
                    and i >= self.trunk
                    and self.architecture != "graniteswitch",
                    sliding=self.sliding[i],
                    recurrent=self.recurrent[i],
                    n_head=self.heads[i],
                    n_head_kv=self.kv_heads[i],
                    head_k=self.head_k[i],
                    head_v=self.head_v[i],
                    n_ff=self.ff[i],
                    n_ff_expert=ff_expert[i],
                    n_expert_used=used[i],
                    kv_reused=i >= self.kv_layers,
                    k_width=self.head_k[i] * self.kv_heads[i] if attends else 0,
                    v_width=self.head_v[i] * self.kv_heads[i] if attends and not k_only else 0,
                    indexer_width=indexer,
                    indexer_v_width=indexer_v,
                    compress_ratio=ratios[i] if self.architecture == "deepseek4" else 0,
                    state_r=state_r,
                    state_s=state_s,
                )
            )
        return tuple(layers)
