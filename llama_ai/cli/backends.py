"""``llama-ai backends``: the engines built here, what they can do, and the devices they see."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption
from llama_ai.errors import EngineNotReadyError

if TYPE_CHECKING:
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.planning import EngineDevice


def backends(json: JsonOption = False) -> None:
    """Show the engines that are built here, with their devices and capabilities."""
    from llama_ai.engine.engines import installed_engines

    found = [(engine, _devices(engine)) for engine in installed_engines()]
    if json:
        output.print_json("backends", {"engines": [_row(*pair) for pair in found]})
        return
    if not found:
        output.line("no engine is built yet: run `llama-ai build`")
    for index, (engine, devices) in enumerate(found):
        if index:
            output.line()
        _show(engine, devices)


def _devices(engine: EngineInfo) -> tuple[EngineDevice, ...] | None:
    from llama_ai.engine.capabilities import list_devices

    try:
        return list_devices(engine, os.environ)
    except EngineNotReadyError as error:
        output.note(f"note: {engine.key}: {error.message}")
        return None


def _row(engine: EngineInfo, devices: tuple[EngineDevice, ...] | None) -> dict[str, object]:
    return {
        "key": engine.key,
        "dir": str(engine.directory),
        "server": str(engine.server),
        "version": engine.version,
        "upstream_commit": engine.upstream_commit,
        "patches": list(engine.patches),
        "backends": list(engine.backends),
        "devices": None
        if devices is None
        else [
            {
                "name": device.name,
                "description": device.description,
                "total_bytes": device.total_bytes,
                "free_bytes": device.free_bytes,
            }
            for device in devices
        ],
        "capabilities": list(engine.capabilities),
        "stock": engine.stock,
    }


def _show(engine: EngineInfo, devices: tuple[EngineDevice, ...] | None) -> None:
    output.line(f"{engine.key}  {', '.join(engine.backends)}{'  (stock)' if engine.stock else ''}")
    output.line(f"  server        {engine.server}")
    output.line(f"  version       {engine.version or 'unknown'}")
    output.line(f"  upstream      {engine.upstream_commit or 'unknown'}")
    output.line(f"  patches       {', '.join(engine.patches) or 'none'}")
    output.line(f"  capabilities  {', '.join(engine.capabilities)}")
    if devices is None:
        output.line("  devices       could not be listed")
    elif not devices:
        output.line("  devices       the CPU")
    for device in devices or ():
        total, free = output.bytes_text(device.total_bytes), output.bytes_text(device.free_bytes)
        output.line(f"  {device.name:<12}  {device.description}, {total}, {free} free")
