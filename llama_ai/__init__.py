"""llama-ai: local LLM inference on AMD APUs."""

__version__ = "0.1.0"
