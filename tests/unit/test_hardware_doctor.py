"""``doctor`` on a live machine: engine, devices, paths, disk and port beside the other checks."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from llama_ai.cli import doctor, doctor_checks, pipeline
from llama_ai.config import Settings
from llama_ai.engine import capabilities
from llama_ai.engine.capabilities import EngineInfo
from llama_ai.errors import EngineNotReadyError
from llama_ai.hardware import access
from llama_ai.hardware.access import DiskFacts
from llama_ai.hardware.budgets import GIB
from llama_ai.hardware.facts import HardwareFacts
from llama_ai.hardware.root import Root
from llama_ai.planning import EngineDevice
from tests.support.cli import llama_ai, private_env
from tests.support.hardware_trees import apu

if TYPE_CHECKING:
    from llama_ai.hardware.checks import Check

MACHINES = Path(__file__).parents[1] / "machines"

ENGINE = EngineInfo(
    key="abc",
    directory=Path("/engines/abc"),
    server=Path("/engines/abc/llama-ai-server"),
    version="1 (abc)",
    upstream_commit="abc",
    patches=("one", "two"),
    backends=("cpu", "vulkan"),
    flags=frozenset(),
    capabilities=(),
    stock=False,
)


def test_engine() -> None:
    assert doctor_checks.engine(None, apu()).status == "WARN"
    assert doctor_checks.engine(ENGINE, apu()).status == "PASS"
    assert "2 patches" in doctor_checks.engine(ENGINE, apu()).observed
    cpu_only = replace(ENGINE, backends=("cpu",), stock=True)
    assert doctor_checks.engine(cpu_only, apu()).status == "FAIL"
    assert doctor_checks.engine(cpu_only, HardwareFacts()).status == "PASS"


@pytest.mark.parametrize(
    ("free", "rotational", "status"),
    [
        (100 * GIB, False, "PASS"),
        (100 * GIB, None, "UNKNOWN"),
        (100 * GIB, True, "WARN"),
        (1 * GIB, False, "WARN"),
        (None, None, "UNKNOWN"),
    ],
)
def test_disk(free: int | None, rotational: bool | None, status: str) -> None:
    facts = DiskFacts(directory="/x", free_bytes=free, rotational=rotational, device="nvme0n1")
    assert doctor_checks.disk(facts).status == status


def test_port() -> None:
    assert doctor_checks.port(9090, holder=None, ours=False, hint=None).status == "PASS"
    other = doctor_checks.port(9090, holder="held by nginx", ours=False, hint="stop it")
    assert (other.status, other.hint) == ("WARN", "stop it")
    assert doctor_checks.port(9090, holder="held by us", ours=True, hint="x").status == "PASS"


def test_places() -> None:
    good, bad = doctor_checks.places(
        [
            doctor_checks.Place(use="cache", path="/c", writable=True),
            doctor_checks.Place(use="state", path="/s", writable=False),
        ]
    )
    assert (good.id, good.status, bad.id, bad.status) == (
        "path-cache",
        "PASS",
        "path-state",
        "FAIL",
    )


class LiveRoot(Root):
    """A recorded machine that takes itself for the live one."""

    def path(self, *parts: str) -> Path:
        return self._resolve("/".join(parts))


def examine(
    slug: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, devices: list[EngineDevice] | None
) -> dict[str, Check]:
    def list_devices(engine: EngineInfo, env: dict[str, str]) -> tuple[EngineDevice, ...]:
        assert env["radv_enable_unified_heap_on_apu"] == "true"
        if devices is None:
            raise EngineNotReadyError("the driver crashed", hint="update it")
        return tuple(devices)

    for name in ("CONFIG", "CACHE", "STATE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    monkeypatch.setattr(capabilities, "list_devices", list_devices)
    monkeypatch.setattr(pipeline, "built_engine", lambda settings: ENGINE)
    monkeypatch.setattr(access, "DEV", tmp_path)
    (tmp_path / "renderD128").write_text("")
    root = LiveRoot(MACHINES / slug / "root")
    root.is_live = True
    settings: Settings = pipeline.read_settings({}, [])
    _, _, checks = doctor.examine(root, settings)
    return {check.id: check for check in checks}


def test_the_engines_devices_are_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = EngineDevice(
        name="Vulkan0",
        description="AMD Radeon 780M (RADV PHOENIX)",
        total_bytes=33 * GIB,
        free_bytes=33 * GIB,
    )
    checks = examine("phoenix-64-4g", monkeypatch, tmp_path, [device])
    assert checks["engine-device"].status == "PASS"
    assert checks["engine-memory"].status == "PASS"
    assert checks["render-node"].status == "PASS"
    assert {"path-cache", "disk", "port"} <= set(checks)


def test_an_engine_that_sees_no_gpu_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = examine("phoenix-64-4g", monkeypatch, tmp_path, [])
    assert checks["engine-device"].status == "FAIL"


def test_a_driver_that_crashes_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checks = examine("phoenix-64-4g", monkeypatch, tmp_path, None)
    assert checks["engine-device"].status == "FAIL"
    assert checks["engine-device"].observed == "the driver crashed"


def test_this_machine(tmp_path: Path) -> None:
    """The whole command as a user runs it; the port is one that another program holds."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        env = private_env(tmp_path, LLAMA_AI_PORT=str(port))
        done = llama_ai("doctor", "--json", env=env)
    assert done.returncode in (0, 5), done.stderr
    document = json.loads(done.stdout)
    checks = {check["id"]: check for check in document["checks"]}
    failed = [id_ for id_, check in checks.items() if check["status"] == "FAIL"]
    assert done.returncode == (5 if failed else 0)
    assert checks["port"]["status"] == "WARN"
    assert str(port) in checks["port"]["expected"]
    assert checks["path-cache"]["observed"].startswith(str(tmp_path))
    assert document["machine"]["ram_bytes"] > 0
    assert document["machine"]["cores_logical"] > 0


def test_a_directory_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    checks = examine_paths(monkeypatch, tmp_path)
    assert checks["path-cache"].status == "FAIL"


def examine_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Check]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    root = Root("/")
    checks = doctor._system_checks(root, pipeline.read_settings({}, []))
    return {check.id: check for check in checks}
