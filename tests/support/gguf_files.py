"""GGUF bytes made by hand, so that a test can also write what no writer would."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
_CODES = {
    U8: "B",
    I8: "b",
    U16: "H",
    I16: "h",
    U32: "I",
    I32: "i",
    F32: "f",
    BOOL: "B",
    U64: "Q",
    I64: "q",
    F64: "d",
}


@dataclass(kw_only=True)
class File:
    """A file to write. ``kv``: type and value, of an array its element type and a sequence.

    ``tensors``: name, shape, type and offset (``None``: where it belongs), with f32 data of zeros.
    """

    kv: Mapping[str, tuple[int, object]] = field(default_factory=dict)
    tensors: Sequence[tuple[str, Sequence[int], int, int | None]] = ()
    order: str = "<"
    version: int = 3
    magic: bytes = b"GGUF"
    n_kv: int | None = None
    n_tensors: int | None = None
    alignment: int = 32
    data_bytes: int | None = None

    def header(self) -> bytes:
        """Everything before the tensors' data, padded."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.kv) if self.n_kv is None else self.n_kv
        out = bytearray(self.magic)
        out += struct.pack(self.order + "IQQ", self.version, n_tensors, n_kv)
        for key, (kind, value) in self.kv.items():
            out += self.text(key) + self.value(kind, value)
        expected = 0
        for name, shape, kind, offset in self.tensors:
            size = 4
            for dim in shape:
                size *= dim
            out += self.text(name) + struct.pack(self.order + "I", len(shape))
            out += struct.pack(f"{self.order}{len(shape)}Q", *shape)
            out += struct.pack(self.order + "IQ", kind, expected if offset is None else offset)
            expected += -(-size // self.alignment) * self.alignment
        out += bytes(-len(out) % self.alignment)
        self.expected_bytes = expected
        return bytes(out)

    def data(self) -> bytes:
        """The file."""
        header = self.header()
        return header + bytes(self.expected_bytes if self.data_bytes is None else self.data_bytes)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.data())
        return path

    def text(self, text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return struct.pack(self.order + "Q", len(raw)) + raw

    def value(self, kind: int, value: object) -> bytes:
        head = struct.pack(self.order + "I", kind)
        if kind == ARR:
            assert isinstance(value, tuple)
            element, items = value
            head += struct.pack(self.order + "IQ", element, len(items))
            return head + b"".join(self._item(element, item) for item in items)
        return head + self._item(kind, value)

    def _item(self, kind: int, value: object) -> bytes:
        if kind == STR:
            assert isinstance(value, str | bytes)
            return self.text(value)
        return struct.pack(self.order + _CODES[kind], value)


def llama_kv(
    n_layer: int = 2, more: Mapping[str, tuple[int, object]] | None = None
) -> dict[str, tuple[int, object]]:
    """Metadata of a small model."""
    return {
        "general.architecture": (STR, "llama"),
        "llama.block_count": (U32, n_layer),
        "llama.context_length": (U32, 4096),
        "llama.embedding_length": (U32, 64),
        "llama.feed_forward_length": (U32, 128),
        "llama.attention.head_count": (U32, 4),
        "llama.attention.head_count_kv": (U32, 2),
        "llama.vocab_size": (U32, 32),
        **(more or {}),
    }


def llama_tensors(n_layer: int = 2) -> list[tuple[str, list[int], int, int | None]]:
    """Its tensors, all f32."""
    rows = {"token_embd.weight": [64, 32], "output_norm.weight": [64]}
    for layer in range(n_layer):
        rows |= {
            f"blk.{layer}.attn_norm.weight": [64],
            f"blk.{layer}.attn_q.weight": [64, 64],
            f"blk.{layer}.attn_k.weight": [64, 32],
            f"blk.{layer}.attn_v.weight": [64, 32],
            f"blk.{layer}.attn_output.weight": [64, 64],
            f"blk.{layer}.ffn_norm.weight": [64],
            f"blk.{layer}.ffn_gate.weight": [64, 128],
            f"blk.{layer}.ffn_up.weight": [64, 128],
            f"blk.{layer}.ffn_down.weight": [128, 64],
        }
    return [(name, shape, 0, None) for name, shape in rows.items()]


def llama(n_layer: int = 2) -> File:
    """A small model that the engine could load (but for its vocabulary)."""
    return File(kv=llama_kv(n_layer), tensors=llama_tensors(n_layer))
