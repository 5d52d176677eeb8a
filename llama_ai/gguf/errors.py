"""The one error that a bad model file leads to."""

from __future__ import annotations

from llama_ai.errors import ModelNotFoundError


class BadModelFileError(ModelNotFoundError):
    """The file is not a GGUF that the engine could load: wrong magic, truncated, or it lies."""
