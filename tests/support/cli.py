"""Run the command line as a user does: a process, its output and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def private_env(home: Path, **more: str) -> dict[str, str]:
    """An environment whose every directory lies below ``home``, without settings of ours."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LLAMA_", "HF_", "XDG_", "GGML_"))
    }
    env.update(
        {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / "config"),
            "XDG_DATA_HOME": str(home / "data"),
            "XDG_STATE_HOME": str(home / "state"),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_RUNTIME_DIR": str(home / "run"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
    )
    (home / "run").mkdir(exist_ok=True, mode=0o700)
    env.update(more)
    return env


def llama_ai(
    *words: str, env: dict[str, str], timeout_s: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run ``llama-ai`` with ``words`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "llama_ai", *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
