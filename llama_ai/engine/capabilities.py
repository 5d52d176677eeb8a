"""What an engine binary is and can do: its flags, version, backends, and the devices it lists.

A binary's ``--help`` is parsed once per content. Files of a hundred megabytes are not hashed at
each start: an index in the cache maps path, size, time stamp and inode to the content's hash.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llama_ai import paths
from llama_ai.errors import EngineNotReadyError, LlamaAiError
from llama_ai.planning import EngineDevice
from llama_ai.run import CommandFailedError, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROBE_FORMAT = 1
PROBE_TIMEOUT_S = 60
DEVICES_TIMEOUT_S = 120
MIB = 1 << 20

_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*)(,\s*)?")
_VERSION = re.compile(r"^version:\s*(.+?)\s*$", re.MULTILINE)
_VERSION_COMMIT = re.compile(r"(?:\(|commit )([0-9a-f]{7,40})\)")
_DEVICE = re.compile(
    r"^\s+(?P<name>[A-Za-z][\w.:-]*): (?P<description>.*) "
    r"\((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)\s*$"
)
# Bytes that a program or library holds when a backend is in it: its log lines, its imports.
_MARKS = {"vulkan": b"ggml_vulkan: ", "rocm": b"hipMalloc", "metal": b"ggml_metal_"}

# A capability is a word for one of the engine's flags, or for a program beside it.
_BY_FLAG = {
    "load-mode": "--load-mode",
    "fit": "--fit",
    "kv-unified": "--kv-unified",
    "n-cpu-moe": "--n-cpu-moe",
    "prompt-cache": "--cache-ram",
    "slot-save": "--slot-save-path",
    "metrics": "--metrics",
    "slots": "--slots",
    "speculative": "--spec-type",
    "reasoning-budget": "--reasoning-budget",
    "router": "--models-preset",
    "rpc": "--rpc",
    "lora": "--lora",
    "multimodal": "--mmproj",
    "kv-disk": "--kv-dir",
    "system-prompts": "--system-prompts",
    "expert-tracking": "--expert-tracking",
    "expert-residency": "--expert-residency",
    "user-limits": "--max-concurrent-per-user",
    "prefill-budget": "--prefill-budget",
}
_BY_PROGRAM = {
    "memory-probe": "memory_probe",
    "bench": "llama-bench",
    "fit-params": "llama-fit-params",
    "rpc-server": "ggml-rpc-server",
}


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """An engine that can be started. Its devices depend on the environment: ask
    :func:`list_devices`."""

    key: str
    """The cache key of our build; ``external-…`` for a binary that the user named."""
    directory: Path
    server: Path
    version: str | None
    upstream_commit: str | None
    patches: tuple[str, ...]
    backends: tuple[str, ...]
    flags: frozenset[str]
    """Every spelling that ``--help`` lists, with its dashes; our own server's flags included."""
    capabilities: tuple[str, ...]
    stock: bool
    """Without our patches."""


def inspect(server: Path, *, key: str | None = None) -> EngineInfo:
    """Describe ``server``: from ``BUILD_INFO.json`` beside it, and from the binary itself.

    Raises :class:`~llama_ai.errors.EngineNotReadyError` when it cannot run or is no llama-server.
    """
    identity, probe = _probed(server)
    build_info = read_build_info(server.parent)
    backends = _words(build_info.get("backends")) or probe.backends
    commit = build_info.get("upstream_commit") or probe.commit
    patches = build_info.get("patches")
    return EngineInfo(
        key=key or str(build_info.get("key") or f"external-{identity[:12]}"),
        directory=server.parent,
        server=server,
        version=probe.version,
        upstream_commit=str(commit) if commit else None,
        patches=tuple(
            str(patch["name"]) for patch in (patches if isinstance(patches, list) else ())
        ),
        backends=backends,
        flags=probe.flags,
        capabilities=_capabilities(server.parent, probe.flags, build_info),
        stock=bool(build_info.get("stock", True)),
    )


def find_engine(word: str | os.PathLike[str]) -> Path:
    """The llama-server that the user named: a file, a directory that holds one, or a command.

    Raises :class:`~llama_ai.errors.EngineNotReadyError`.
    """
    text = os.fspath(word)
    path = Path(text).expanduser()
    if path.is_dir():
        for name in ("llama-ai-server", "llama-server"):
            if (path / name).is_file():
                path = path / name
                break
        else:
            raise EngineNotReadyError(f"there is no llama-server in {path}")
    elif os.sep not in text and not path.exists():
        found = shutil.which(text)
        if found is None:
            raise EngineNotReadyError(
                f"there is no engine {text!r}, as a file or on PATH",
                hint="give the path of a llama-server, or leave --engine out to use our build",
            )
        path = Path(found)
    if not path.is_file():
        raise EngineNotReadyError(f"the engine {path} does not exist")
    if not os.access(path, os.X_OK):
        raise EngineNotReadyError(f"the engine {path} is not executable", hint=f"chmod +x {path}")
    return path.absolute()


def list_devices(engine: EngineInfo, env: Mapping[str, str]) -> tuple[EngineDevice, ...]:
    """What the engine can compute on, in the environment that it would be started with.

    Raises :class:`~llama_ai.errors.EngineNotReadyError` when it fails or hangs (a broken driver).
    """
    try:
        done = run(
            [engine.server, "--list-devices"],
            env=scrubbed(env),
            cwd=engine.directory,
            timeout_s=DEVICES_TIMEOUT_S,
        )
    except CommandFailedError as error:
        raise EngineNotReadyError(
            f"the engine could not list its devices: {error.message}",
            hint="a GPU driver may be broken; `llama-ai doctor` looks at it, "
            "`--backend cpu` works without",
            details=error.details,
        ) from error
    return parse_devices(done.output)


def parse_devices(text: str) -> tuple[EngineDevice, ...]:
    """Read the answer to ``--list-devices``; its figures are whole MiB."""
    return tuple(
        EngineDevice(
            name=match["name"],
            description=match["description"],
            total_bytes=int(match["total"]) * MIB,
            free_bytes=int(match["free"]) * MIB,
        )
        for match in map(_DEVICE.match, text.splitlines())
        if match
    )


def parse_flags(text: str) -> frozenset[str]:
    """Every spelling of every flag in a ``--help`` text.

    An option starts in the first column; its spellings are separated by commas.
    """
    flags: set[str] = set()
    for line in text.splitlines():
        position = 0
        while match := _FLAG.match(line, position):
            flags.add(match[1])
            position = match.end()
            if match[2] is None:
                break
    return frozenset(flags)


def scrubbed(env: Mapping[str, str]) -> dict[str, str]:
    """``env`` without the variables that the engine takes as flags."""
    return {name: value for name, value in env.items() if not name.startswith("LLAMA_ARG_")}


def read_build_info(directory: Path) -> dict[str, object]:
    """``BUILD_INFO.json`` of a build of ours; empty for a foreign directory."""
    try:
        document = json.loads((directory / "BUILD_INFO.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


@dataclass(frozen=True, kw_only=True)
class _Probe:
    flags: frozenset[str]
    backends: tuple[str, ...]
    version: str | None
    commit: str | None


def _probed(server: Path) -> tuple[str, _Probe]:
    """The content's hash and what the binary said about itself, from the cache where known."""
    folder = paths.private(paths.cache_dir() / "probes")
    stamp = folder / f"stamp-{_stamp(server)}"
    try:
        identity = stamp.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        identity = ""
    if not re.fullmatch(r"[0-9a-f]{64}", identity):
        identity = _identity(server)
        paths.write_atomic(stamp, identity.encode())
    entry = folder / f"{identity}.json"
    probe = _read_probe(entry)
    if probe is None:
        probe = _ask(server)
        document = {
            "format": PROBE_FORMAT,
            "flags": sorted(probe.flags),
            "backends": probe.backends,
            "version": probe.version,
            "commit": probe.commit,
        }
        paths.write_atomic(entry, json.dumps(document).encode())
    return identity, probe


def _files(server: Path) -> list[Path]:
    # The program is often a small launcher: what it can do is in the libraries beside it.
    names = sorted(server.parent.glob("lib*"))
    return [server, *(path for path in names if ".so" in path.name or path.suffix == ".dylib")]


def _stamp(server: Path) -> str:
    digest = hashlib.sha256()
    for path in _files(server):
        try:
            status = path.stat()
        except OSError:
            continue  # a dangling link
        digest.update(f"{path} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n".encode())
    return digest.hexdigest()[:32]


def _contents(server: Path) -> Iterator[mmap.mmap | bytes]:
    for path in _files(server):
        if path.is_symlink() and path != server:
            continue
        with path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size == 0:
                yield b""
                continue
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                yield data


def _identity(server: Path) -> str:
    digest = hashlib.sha256()
    for data in _contents(server):
        digest.update(hashlib.sha256(data).digest())
    return digest.hexdigest()


def _backends(server: Path) -> tuple[str, ...]:
    found = {
        name for data in _contents(server) for name, mark in _MARKS.items() if data.find(mark) >= 0
    }
    return ("cpu", *(name for name in _MARKS if name in found))


def _read_probe(path: Path) -> _Probe | None:
    try:
        document = json.loads(path.read_bytes())
        if document["format"] != PROBE_FORMAT:
            return None
        flags = frozenset(document["flags"])
        backends = tuple(document["backends"])
        version, commit = document["version"], document["commit"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not flags or not all(isinstance(flag, str) for flag in flags):
        return None
    return _Probe(flags=flags, backends=backends, version=version, commit=commit)


def _ask(server: Path) -> _Probe:
    env = scrubbed(os.environ)
    not_one = f"{server} is not a llama-server that runs here"
    try:
        text = run([server, "--help"], env=env, cwd=server.parent, timeout_s=PROBE_TIMEOUT_S).output
        told = run([server, "--version"], env=env, cwd=server.parent, timeout_s=PROBE_TIMEOUT_S)
    except LlamaAiError as error:
        raise EngineNotReadyError(
            not_one,
            hint="give --engine the path of a llama-server, or leave it out to use our build",
            details=error.details or (error.message,),
        ) from error
    flags = parse_flags(text)
    if not {"--model", "--port", "--ctx-size"} <= flags:
        raise EngineNotReadyError(
            f"{server} runs, but its --help is not that of a llama-server",
            hint="give --engine the path of a llama-server",
        )
    version = _VERSION.search(told.output) or _VERSION.search(told.errors)
    commit = _VERSION_COMMIT.search(version[1]) if version else None
    return _Probe(
        flags=flags,
        backends=_backends(server),
        version=version[1] if version else None,
        commit=commit[1] if commit else None,
    )


def _capabilities(
    directory: Path, flags: frozenset[str], build_info: Mapping[str, object]
) -> tuple[str, ...]:
    found = [word for word, flag in _BY_FLAG.items() if flag in flags]
    found += [word for word, name in _BY_PROGRAM.items() if (directory / name).is_file()]
    if build_info:
        found.append("build-info")
    return tuple(found)


def _words(value: object) -> tuple[str, ...]:
    return tuple(str(word) for word in value) if isinstance(value, list) else ()
