"""``scripts/llama-ai``: the real script, venv and pip, with a small project in place of ours."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"

PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "llama-ai"
version = "1"
"""

# Makes an editable wheel whose program says what it was given. Needs no other package.
BACKEND = """\
import pathlib, zipfile, os, sys

PROGRAM = '''
import os, sys
def main():
    print(os.getpid(), sys.argv[1:])
    sys.exit(7 if "fail" in sys.argv else 0)
'''

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    if pathlib.Path(__file__).with_name("broken").exists():
        sys.exit("the backend is broken")
    here = pathlib.Path(__file__).parent
    (here / "built").open("a").write("x")
    name = "llama_ai-1-py3-none-any.whl"
    info = "llama_ai-1.dist-info/"
    files = {
        "tiny_program.py": PROGRAM,
        info + "METADATA": "Metadata-Version: 2.1\\nName: llama-ai\\nVersion: 1\\n",
        info + "WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
        info + "entry_points.txt": "[console_scripts]\\nllama-ai = tiny_program:main\\n",
    }
    record = "".join(f"{path},,\\n" for path in [*files, info + "RECORD"])
    with zipfile.ZipFile(pathlib.Path(wheel_directory, name), "w") as wheel:
        for path, text in {**files, info + "RECORD": record}.items():
            wheel.writestr(path, text)
    return name
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    checkout = tmp_path / "check out"  # a path with a space, as people have
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy2(SCRIPTS / "llama-ai", checkout / "scripts" / "llama-ai")
    (checkout / "pyproject.toml").write_text(PYPROJECT)
    (checkout / "backend.py").write_text(BACKEND)
    return checkout


def environment(checkout: Path, **more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    env.update(
        XDG_DATA_HOME=str(checkout.parent / "data"),
        PIP_CONFIG_FILE="/dev/null",
        PIP_NO_INDEX="1",
        PYTHON=sys.executable,
    )
    env.pop("PYTHONPATH", None)
    return {**env, **more}


def start(checkout: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [checkout / "scripts" / "llama-ai", *words],
        env=environment(checkout, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def run(checkout: Path, *words: str, **more: str) -> tuple[int, str, str]:
    process = start(checkout, *words, **more)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def store(checkout: Path) -> Path:
    return checkout.parent / "data" / "llama-ai" / "venvs"


def times_built(checkout: Path) -> int:
    return len((checkout / "built").read_text())


def test_the_first_use_sets_up_and_later_ones_only_run(checkout: Path) -> None:
    status, output, errors = run(checkout, "a b", "--c")
    assert (status, output.split(" ", 1)[1]) == (0, "['a b', '--c']\n"), errors
    assert "setting up llama-ai (first use)" in errors
    # The program takes the script's place: signals and the exit status are its own.
    process = start(checkout, "fail")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output.split()[0], errors) == (7, str(process.pid), "")
    assert times_built(checkout) == 1


def test_it_works_through_a_symbolic_link(checkout: Path, tmp_path: Path) -> None:
    run(checkout)
    link = tmp_path / "llama-ai"
    link.symlink_to(checkout / "scripts" / "llama-ai")
    env = environment(checkout)
    assert subprocess.run([link], env=env, capture_output=True, check=False).returncode == 0
    assert times_built(checkout) == 1


def test_another_pyproject_or_a_replaced_python_is_set_up_anew(checkout: Path) -> None:
    run(checkout)
    (checkout / "pyproject.toml").write_text(PYPROJECT + "# other dependencies\n")
    assert run(checkout)[0] == 0
    assert times_built(checkout) == 2
    for entry in (path for path in store(checkout).iterdir() if path.is_file()):
        place, _interpreter = entry.read_text().splitlines()
        entry.write_text(f"{place}\n/usr/bin/python-of-yesterday\n")
    assert run(checkout)[0] == 0
    assert times_built(checkout) == 3
    # A lost environment as well.
    for path in store(checkout).iterdir():
        if path.is_dir():
            shutil.rmtree(path)
    assert run(checkout)[0] == 0


def test_two_at_once_both_work_and_leave_one_environment(checkout: Path) -> None:
    processes = [start(checkout, "x") for _ in range(2)]
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert (process.returncode, output.split(" ", 1)[1]) == (0, "['x']\n"), errors
    assert len([path for path in store(checkout).iterdir() if path.is_dir()]) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupt_leaves_nothing_behind(checkout: Path, number: signal.Signals) -> None:
    process = start(checkout)
    deadline = time.monotonic() + 60
    while not list(store(checkout).glob("*/bin")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert list(store(checkout).iterdir()) == []
    assert run(checkout)[0] == 0


def test_a_failing_pip_shows_its_last_words_and_the_log(checkout: Path) -> None:
    (checkout / "broken").touch()
    status, output, errors = run(checkout)
    assert (status, output) == (5, "")
    assert "error: setting up llama-ai failed" in errors
    log = store(checkout) / "last-failure.log"
    assert str(log) in errors
    assert "the backend is broken" in log.read_text()
    assert [path for path in store(checkout).iterdir() if path.is_dir()] == []
    (checkout / "broken").unlink()
    assert run(checkout)[0] == 0


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ('case "$2" in *version_info*) exit 1 ;; esac', "needs Python 3.11 or newer (too old:"),
        ('case "$2" in *ensurepip*) exit 1 ;; esac', "run scripts/install-deps (on Debian"),
    ],
)
def test_a_python_that_will_not_do_is_told(checkout: Path, answer: str, told: str) -> None:
    tools = checkout / "tools"
    tools.mkdir()
    for name in ("sh", "readlink", "cksum", "cat", "mkdir", "chmod"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    python = tools / "python3"
    python.write_text(f"#!/bin/sh\n{answer}\nexit 0\n")
    python.chmod(0o755)
    status, _, errors = run(checkout, PATH=str(tools), PYTHON="")
    assert status == 5
    assert told in errors
    assert not store(checkout).exists()
