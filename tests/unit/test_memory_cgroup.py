"""The benchmarks' memory cgroup: a limit that holds, figures that are right, nothing left over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.memory_cgroup import MemoryCgroup

MB = 1_000_000


@pytest.fixture(autouse=True)
def allowed() -> None:
    try:
        MemoryCgroup(None).close()
    except OSError as error:
        pytest.skip(f"no memory cgroup for us here: {error}")


def run_in(group: MemoryCgroup, text: str) -> subprocess.Popen[bytes]:
    words = group.argv([sys.executable, "-c", text])
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_a_process_that_takes_more_than_the_limit_is_killed_and_counted() -> None:
    with MemoryCgroup(100 * MB) as group:
        assert group.usage().oom_kills == 0
        with run_in(group, "bytearray(200_000_000)") as child:
            assert child.wait(30) == -9
        assert group.usage().oom_kills == 1


def test_anonymous_memory_and_page_cache_are_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "file"
    text = f"kept = b'x' * 50_000_000; open({str(file)!r}, 'wb').write(kept[:20_000_000])"
    with MemoryCgroup(200 * MB) as group:
        child = run_in(group, text + "; print(1, flush=True); import time; time.sleep(60)")
        assert child.stdout is not None
        child.stdout.readline()
        usage = group.usage()
        assert 50 * MB <= usage.anonymous_bytes < 80 * MB
        assert 20 * MB <= usage.page_cache_bytes < 40 * MB
        assert usage.peak_bytes is None or usage.peak_bytes >= 70 * MB
        child.stdout.close()
    assert child.wait(10) == -9, "what still runs at the end is killed"
    assert not group.path.exists()


def test_it_is_removed_after_an_error_too() -> None:
    group = MemoryCgroup(None)
    with pytest.raises(RuntimeError), group:
        raise RuntimeError
    assert not group.path.exists()
