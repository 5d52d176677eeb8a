"""The KV cache on disk: whether and how an engine keeps one, and what is in it."""
