"""The command line's contract: exit codes, messages, what is imported, what is hidden."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llama_ai.__main__ import hide_api_key
from tests.support.cli import llama_ai, private_env

HEAVY = ("textual", "httpx", "numpy", "gguf", "rich", "huggingface_hub")


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["profile", "--help"]])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\n"
        "from llama_ai.__main__ import run_cli\n"
        f"code = run_cli({words!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.stderr.write(f'{code} {heavy}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == "0 []"
    assert "Usage: llama-ai" in done.stdout


def test_help_names_every_setting_once(tmp_path: Path) -> None:
    from llama_ai.settings import SETTINGS

    text = llama_ai("serve", "--help", env=private_env(tmp_path)).stdout
    for setting in SETTINGS:
        assert setting.flag in text, setting.name


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nonsense"], 2, "No such command"),
        (["serve", "--no-such-flag"], 2, "No such option"),
        (["serve", "--port", "x"], 2, "port must be a whole number"),
        (["serve", "--port", "99999"], 2, "at most 65535"),
        (["serve", "--kv-cache-type", "q9"], 2, "unknown type"),
        (["serve", "--demo", "model"], 2, "exclude each other"),
        (["serve", "--set", "nonsense=1"], 2, "no setting 'nonsense'"),
        (["serve", "--root", "/", "m"], 2, "--print-profile"),
        (["serve", "--host", "0.0.0.0", "m"], 2, "without a key"),
        (["profile", "--format", "xml", "m"], 2, "no format 'xml'"),
        (["profile", "no-such-model"], 4, "no model 'no-such-model'"),
        (["serve", "no-such-model"], 4, "no model 'no-such-model'"),
        (["serve"], 4, "no models here"),
        (["models", "--", "--flag"], 2, "only serve and profile"),
        (["pull", "a/b/c"], 2, "not a repository's name"),
    ],
)
def test_a_mistake_is_one_message_with_the_contracts_code(
    tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    done = llama_ai(*words, env=private_env(tmp_path))
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = llama_ai("--debug", "profile", "no-such-model", env=private_env(tmp_path))
    assert "Traceback" in done.stderr


def test_a_bad_config_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config" / "llama-ai").mkdir(parents=True)
    (tmp_path / "config" / "llama-ai" / "config.toml").write_text("port = 'high'")
    done = llama_ai("profile", "m", env=private_env(tmp_path))
    assert done.returncode == 2
    assert "config.toml: port must be a whole number" in done.stderr


@pytest.mark.parametrize("word", ["model.gguf", "empty.gguf"])
def test_a_file_that_is_no_model_is_said_in_two_lines(tmp_path: Path, word: str) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model at all")
    (tmp_path / "empty.gguf").touch()
    done = llama_ai("profile", str(tmp_path / word), env=private_env(tmp_path))
    assert done.returncode == 4
    assert len(done.stderr.strip().splitlines()) <= 2


def test_models_json_is_one_object_with_a_schema(tmp_path: Path) -> None:
    (tmp_path / "data" / "llama-ai" / "models").mkdir(parents=True)
    (tmp_path / "data" / "llama-ai" / "models" / "tiny-Q4_0.gguf").write_bytes(b"GGUF")
    document = json.loads(llama_ai("models", "--json", env=private_env(tmp_path)).stdout)
    assert document["schema"] == "llama-ai.models/1"
    entry = document["models"][-1]
    assert (entry["name"], entry["quant"], entry["size_bytes"]) == ("tiny-Q4_0", "Q4_0", 4)


@pytest.mark.parametrize(
    ("words", "kept", "key"),
    [
        (["serve", "--api-key", "k", "m"], ["serve", "m"], "k"),
        (["serve", "--api-key=k", "m"], ["serve", "m"], "k"),
        (["serve", "m"], ["serve", "m"], None),
        (["serve", "m", "--", "--api-key", "k"], ["serve", "m", "--", "--api-key", "k"], None),
        (["serve", "--api-key"], ["serve", "--api-key"], None),
        (["serve", "--api-key-file", "f"], ["serve", "--api-key-file", "f"], None),
    ],
)
def test_the_key_is_taken_out_of_the_words(
    words: list[str], kept: list[str], key: str | None
) -> None:
    assert hide_api_key(words) == (kept, key)


def test_a_key_on_the_command_line_is_moved_before_anything_else(tmp_path: Path) -> None:
    """The process that does the work has the key in its environment and not in its argv."""
    program = "import os, sys; print(sys.argv[1:], os.environ.get('LLAMA_AI_API_KEY'))"
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "import llama_ai.__main__ as main\n"
        "def shown(words):\n"
        f"    {program}\n"
        "    return 0\n"
        "main.run_cli = shown\n"
        "main.main()\n"
    )
    env = private_env(tmp_path)
    env["PYTHONPATH"] += f":{tmp_path}"
    done = subprocess.run(
        [sys.executable, "-m", "llama_ai", "serve", "--api-key", "s3cret", "m"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines()[0] == "['serve', 'm'] s3cret", done.stderr


def test_a_key_is_refused_as_an_assignment(tmp_path: Path) -> None:
    done = llama_ai("profile", "m", "--set", "api_key=s3cret", env=private_env(tmp_path))
    assert done.returncode == 2
    assert "s3cret" not in done.stderr


def test_completion_is_there_for_the_usual_shells(tmp_path: Path) -> None:
    env = private_env(tmp_path, _LLAMA_AI_COMPLETE="complete_bash")
    env |= {"COMP_WORDS": "llama-ai ser", "COMP_CWORD": "1"}
    assert llama_ai(env=env).stdout.split() == ["serve", "service"]
