"""``scripts/install-deps`` with package managers that only write down what they are asked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install-deps"
BASICS = ("sh", "id", "awk", "sed", "env", "cat", "ls", "dirname", "touch", "chmod", "ln", "mktemp")
TOOLS = ("cc", "c++", "cmake", "ninja", "ccache", "git", "glslc")

# Package -> the programs that a fake manager makes when it "installs" it.
PROVIDES = "build-essential:cc,c++ gcc-c++:cc,c++ gcc:cc,c++ ninja-build:ninja ninja:ninja "
PROVIDES += "cmake:cmake ccache:ccache git:git"

MANAGER = """\
#!/bin/sh
echo "$(basename $0) $*" >>{log}
case "$*" in *update*) exit {update_status} ;; esac
for pair in {provides}; do
    for word in "$@"; do
        if [ "$word" = "${{pair%%:*}}" ]; then
            for tool in $(echo "${{pair#*:}}" | sed 's/,/ /g'); do
                ln -sf {bin}/sh {bin}/$tool
            done
        fi
    done
done
"""


class Machine:
    """A directory that is the whole PATH."""

    def __init__(self, place: Path) -> None:
        self.bin = place / "bin"
        self.bin.mkdir()
        self.log = place / "asked"
        self.log.touch()
        self.env = {
            "PATH": str(self.bin),
            "HOME": str(place),
            "XDG_CACHE_HOME": str(place / "cache"),
        }
        for name in (*BASICS, "basename"):
            found = shutil.which(name)
            assert found
            (self.bin / name).symlink_to(Path(found).resolve())
        python = self.bin / "python3"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)

    def have(self, *names: str) -> None:
        for name in names:
            (self.bin / name).symlink_to("sh")

    def manager(self, name: str, *, provides: str = PROVIDES, update_status: int = 0) -> None:
        path = self.bin / name
        path.write_text(
            MANAGER.format(
                log=self.log, bin=self.bin, provides=provides, update_status=update_status
            )
        )
        path.chmod(0o755)
        sudo = self.bin / "sudo"
        if not sudo.exists():
            sudo.write_text('#!/bin/sh\nexec "$@"\n')
            sudo.chmod(0o755)

    def run(self, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [SCRIPT, *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_done_where_nothing_is_missing(machine: Machine) -> None:
    machine.have(*TOOLS)
    machine.manager("apt-get")
    for words in ((), ("--check",), ("--yes",)):
        status, text = machine.run("--no-vulkan", *words)
        assert (status, text) == (0, "everything that a build needs is here\n")
    assert machine.asked == []


def test_check_names_what_is_missing(machine: Machine) -> None:
    machine.have("cc", "c++", "ninja", "git")
    machine.manager("apt-get")
    assert machine.run("--no-vulkan", "--check") == (1, "missing: cmake ccache \n")
    assert machine.asked == []


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "apt-get install --no-install-recommends build-essential cmake ninja-build"),
        ("dnf", "dnf install gcc gcc-c++ cmake ninja-build"),
        ("pacman", "pacman -S --needed gcc cmake ninja"),
        ("zypper", "zypper install gcc gcc-c++ cmake ninja"),
    ],
)
def test_each_manager_s_command_is_shown_and_a_dry_run_runs_none(
    machine: Machine, manager: str, command: str
) -> None:
    machine.have("ccache", "git")
    machine.manager(manager)
    status, text = machine.run("--no-vulkan", "--dry-run")
    assert status == 0
    assert command in text
    assert machine.asked == []


def test_without_a_terminal_it_wants_yes(machine: Machine) -> None:
    machine.manager("dnf")
    status, text = machine.run("--no-vulkan")
    assert status == 2
    assert "--yes" in text
    assert machine.asked == []


def test_it_installs_what_is_missing_and_nothing_else(machine: Machine) -> None:
    machine.have("cc", "c++", "ccache", "git")
    machine.manager("apt-get")
    status, text = machine.run("--no-vulkan", "--yes")
    assert status == 0, text
    assert text.endswith("everything that a build needs is here\n")
    update, install = machine.asked
    assert update == "apt-get -q update"
    assert install.split("--no-install-recommends ")[1] == "cmake ninja-build"
    # Every command was shown before it ran.
    assert "+ " in text
    assert "apt-get -q update" in text


def test_a_failing_foreign_source_does_not_stop_it(machine: Machine) -> None:
    machine.have("cc", "c++", "ccache", "git", "ninja")
    machine.manager("apt-get", update_status=100)
    status, text = machine.run("--no-vulkan", "--yes")
    assert status == 0, text
    assert "some package sources failed" in text


def test_what_is_still_missing_afterwards_is_told(machine: Machine) -> None:
    machine.have("cc", "c++", "ccache", "git")
    machine.manager("dnf", provides="cmake:cmake")
    status, text = machine.run("--no-vulkan", "--yes")
    assert status == 1
    assert "still missing: ninja" in text


def test_vulkan_that_cannot_be_had_leaves_a_cpu_engine(machine: Machine) -> None:
    machine.have("cc", "c++", "cmake", "ninja", "ccache", "git")
    machine.manager("dnf")
    status, text = machine.run("--yes")
    assert status == 0
    assert "still missing for Vulkan: glslc" in text
    assert "CPU only" in text
    assert any("glslc" in line for line in machine.asked)


@pytest.mark.skipif(os.geteuid() == 0, reason="root needs no sudo")
def test_without_root_the_commands_go_through_sudo(machine: Machine) -> None:
    machine.manager("dnf")
    assert "sudo dnf install" in machine.run("--no-vulkan", "--dry-run")[1]


def test_no_known_package_manager_is_told(machine: Machine) -> None:
    status, text = machine.run("--no-vulkan", "--yes")
    assert status == 1
    assert "no apt, dnf, pacman or zypper" in text


def test_an_unknown_option_is_refused(machine: Machine) -> None:
    assert machine.run("--frobnicate")[0] == 2


HEADER = """\
#define VK_HEADER_VERSION {patch}
#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, {minor}, VK_HEADER_VERSION)
"""


@pytest.mark.parametrize(
    ("minor", "patch", "enough"), [(3, 271, False), (3, 272, True), (4, 5, True), (2, 999, False)]
)
def test_private_vulkan_headers_count_when_they_are_new_enough(
    machine: Machine, minor: int, patch: int, enough: bool
) -> None:
    if Path("/usr/include/vulkan/vulkan_core.h").exists():
        pytest.skip("the system's own headers decide here")
    prefix = Path(machine.env["XDG_CACHE_HOME"]) / "llama-ai" / "vulkan-headers" / "usr"
    (prefix / "include" / "vulkan").mkdir(parents=True)
    (prefix / "include" / "vulkan" / "vulkan_core.h").write_text(
        HEADER.format(minor=minor, patch=patch)
    )
    spirv = prefix / "share" / "cmake" / "SPIRV-Headers"
    spirv.mkdir(parents=True)
    (spirv / "SPIRV-HeadersConfig.cmake").touch()
    _, text = machine.run("--check")
    assert ("headers" not in text) == enough
