"""``llama-ai-server`` without a model: what it says of itself, our route, and that it can move."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from llama_ai.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]

BUILD_INFO = '{"upstream_commit": "abc", "patches": []}\n'


def run(
    program: Path, *words: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


@contextlib.contextmanager
def router(binaries: Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """A server without a model, in router mode; ends it with SIGTERM and expects status 0."""
    models = binaries.parent / "models"
    models.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--models-dir", str(models), "--host", "127.0.0.1", "--port", str(port)]
    with (
        (binaries.parent / "server.log").open("w") as log,
        subprocess.Popen(
            [binaries / "llama-ai-server", *words],
            stdout=log,
            stderr=log,
            env={**os.environ, **(env or {})},
        ) as server,
    ):
        url = f"http://127.0.0.1:{port}"
        try:
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(httpx.TransportError):
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                assert server.poll() is None, (binaries.parent / "server.log").read_text()
                assert time.monotonic() < deadline, "the server did not become ready"
                time.sleep(0.05)
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                status = server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
                raise
    assert status == 0


def test_build_info_is_the_file_beside_the_binary(moved_bin: Path) -> None:
    server = moved_bin / "llama-ai-server"
    (moved_bin / "BUILD_INFO.json").unlink(missing_ok=True)
    missing = run(server, "--build-info")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert str(moved_bin / "BUILD_INFO.json") in missing.stderr
    (moved_bin / "BUILD_INFO.json").write_text("not JSON")
    assert run(server, "--build-info").returncode == 1
    (moved_bin / "BUILD_INFO.json").write_text(BUILD_INFO)
    found = run(server, "--port", "1", "--build-info")
    assert (found.returncode, found.stdout, found.stderr) == (0, BUILD_INFO, "")


def test_every_flag_of_the_settings_table_is_known(moved_bin: Path) -> None:
    told = run(moved_bin / "llama-ai-server", "--help").stdout
    known = {word.strip(",") for word in told.split() if word.startswith("-")}
    flags = {setting.engine_flag for setting in SETTINGS if setting.engine_flag is not None}
    assert flags
    assert flags - known == set()


def test_version_and_unknown_flags_are_upstreams(moved_bin: Path) -> None:
    server = moved_bin / "llama-ai-server"
    version = run(server, "--version")
    assert version.returncode == 0
    assert "commit 0c1e57098" in version.stdout + version.stderr
    unknown = run(server, "--build-information")
    assert unknown.returncode == 1
    assert "invalid argument: --build-information" in unknown.stderr


def test_our_route_stands_behind_the_api_key(moved_bin: Path) -> None:
    """The key comes from the environment. In router mode no model is needed."""
    (moved_bin / "BUILD_INFO.json").write_text(BUILD_INFO)
    with router(moved_bin, {"LLAMA_API_KEY": "secret"}) as url:
        assert httpx.get(f"{url}/build-info").status_code == 401
        answer = httpx.get(f"{url}/build-info", headers={"Authorization": "Bearer secret"})
        assert (answer.status_code, answer.text) == (200, BUILD_INFO)
        assert answer.headers["content-type"].startswith("application/json")
    log = (moved_bin.parent / "server.log").read_text()
    assert "secret" not in log


def test_our_route_without_the_file(moved_bin: Path) -> None:
    (moved_bin / "BUILD_INFO.json").unlink(missing_ok=True)
    with router(moved_bin) as url:
        answer = httpx.get(f"{url}/build-info")
    assert answer.status_code == 503
    assert "BUILD_INFO.json" in answer.json()["error"]["message"]


def test_a_broken_vulkan_loader_costs_only_the_vulkan_backend(
    moved_bin: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "libvulkan.so.1").write_bytes(b"no library")
    env = {"LD_LIBRARY_PATH": str(broken), "GGML_VK_VISIBLE_DEVICES": "0"}
    listed = run(moved_bin / "llama-ai-server", "--list-devices", env=env)
    assert listed.returncode == 0, listed.stderr
    assert "Vulkan0" not in listed.stdout
    (moved_bin.parent / "x.gguf").write_bytes(b"no model")
    probed = subprocess.run(
        [moved_bin / "memory_probe", moved_bin.parent / "x.gguf"],
        input=json.dumps([{}]),
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    # The CPU backend is there: it is the file that is refused.
    assert "invalid magic" in json.loads(probed.stdout)["layouts"][0]["error"]
