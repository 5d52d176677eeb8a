"""A small mixture-of-experts model with two sizes of experts; servers and zoo are kv's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.kv.conftest import Server, numbers, serve, zoo

__all__ = ["Server", "answers", "serve", "shim", "tiny", "tiny_copy", "zoo"]

MAKER = Path(__file__).parents[3] / "benchmarks" / "make_moe.py"
PLAIN = ("--no-repack",)
RESIDENT = (*PLAIN, "--expert-residency")

# Between the engine and its files: reads past a place fail or take long, as a file says.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static ssize_t faulty(ssize_t (*real)(int, void *, size_t, off_t), int fd, void * to, size_t size,
                      off_t at) {
    char kind = 0;
    long value = 0;
    FILE * order = fopen(getenv("SHIM_ORDER"), "re");
    if (order) {
        if (fscanf(order, "%c %ld", &kind, &value) != 2) {
            kind = 0;
        }
        fclose(order);
    }
    if (kind == 'e' && size >= 4096) {
        errno = (int) value;
        return -1;
    }
    if (kind == 's' && size >= 4096) {
        usleep((useconds_t) value * 1000);
    }
    return real(fd, to, size, at);
}
ssize_t pread(int fd, void * to, size_t size, off_t at) {
    return faulty((ssize_t (*)(int, void *, size_t, off_t)) dlsym(RTLD_NEXT, "pread"), fd, to, size,
                  at);
}
ssize_t pread64(int fd, void * to, size_t size, off_t at) {
    return faulty((ssize_t (*)(int, void *, size_t, off_t)) dlsym(RTLD_NEXT, "pread64"), fd, to,
                  size, at);
}
"""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """33 MB: 8 layers of 32 experts, four a token, Q4_K with some matrices in Q6_K."""
    path = tmp_path_factory.mktemp("moe") / "tiny.gguf"
    words = "--layers 8 --experts 32 --used 4 --embedding 256 --feed-forward 256 --heads 4"
    words += " --kv-heads 2 --head-size 64 --vocabulary 2048 --quant q4_k_m --zipf 1"
    subprocess.run([sys.executable, MAKER, path, *words.split()], check=True, capture_output=True)
    return path


@pytest.fixture
def tiny_copy(tiny: Path, tmp_path: Path) -> Path:
    """One to be damaged."""
    return Path(shutil.copy(tiny, tmp_path / "copy.gguf"))


@pytest.fixture
def shim(tmp_path: Path) -> tuple[dict[str, str], Path]:
    """The environment that puts the shim before the C library, and the file that orders faults."""
    source, library, order = (tmp_path / name for name in ("shim.c", "shim.so", "order"))
    source.write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "SHIM_ORDER": str(order)}, order


def answers(server: Server, *, slots: int = 1) -> list[Any]:
    """Tokens and log probabilities of a few greedy answers: everything that could differ."""
    found = []
    for seed, (length, count) in enumerate([(1, 24), (40, 8), (2000, 4), (300, 8)]):
        for slot in range(slots):
            result = server.whole_answer(
                numbers(length, seed), count, n_probs=3, id_slot=slot, cache_prompt=False
            )
            found.append((result["tokens"], result["completion_probabilities"]))
    return found
