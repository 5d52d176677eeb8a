"""The engine: its source, its build, what it can do, and what it measures.

:func:`~llama_ai.engine.engines.ensure_engine` gives an engine that can be started, and builds it
when it is not there.
"""
