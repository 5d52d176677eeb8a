"""Our table of tensor types against upstream's."""

from __future__ import annotations

import gguf

from llama_ai.gguf.quants import TENSOR_TYPES

# The package is behind the engine: Q8_1 has had 36 bytes since its sums became two f16, and Q2_0
# is too new for it.
_PACKAGE_IS_OLD = {"Q8_1"}


def test_every_type_of_upstream_is_here_with_its_sizes() -> None:
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name not in _PACKAGE_IS_OLD:
            ours = TENSOR_TYPES[int(kind)]
            assert (ours.name, ours.block_elements, ours.block_bytes) == (
                kind.name.lower(),
                elements,
                size,
            )


def test_the_exceptions_are_still_exceptions() -> None:
    assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_1] == (32, 40)
    theirs = {int(kind) for kind in gguf.GGML_QUANT_SIZES}
    assert {TENSOR_TYPES[number].name for number in set(TENSOR_TYPES) - theirs} <= {"q2_0"}
