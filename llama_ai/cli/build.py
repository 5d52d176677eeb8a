"""``llama-ai build``: fetch, patch and compile the engine, or remove what was built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from llama_ai.cli import output
from llama_ai.errors import UsageError


def build(
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend",
            metavar="NAMES",
            help="exactly these, with commas: cpu, vulkan, rocm, metal "
            "[default: what this machine can of cpu and vulkan]",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            metavar="DIR",
            help="build this llama.cpp tree instead of the pinned one; it is only read",
        ),
    ] = None,
    stock: Annotated[
        bool, typer.Option("--stock", help="without our patches: upstream's own server")
    ] = False,
    gfx: Annotated[
        str | None,
        typer.Option(
            "--gfx",
            metavar="TARGETS",
            help="GPU targets of a rocm build (gfx1151) [default: detected]",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            min=1,
            help="compilers at a time [default: CPUs, as far as memory allows]",
            show_default=False,
        ),
    ] = None,
    clean: Annotated[
        bool, typer.Option("--clean", help="remove all engines and their build directories")
    ] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="with --clean: the fetched source too")
    ] = False,
) -> None:
    """Build the engine; nothing is done where it is built already."""
    from llama_ai.cli.engine_progress import EngineProgress
    from llama_ai.engine.engines import build_engine
    from llama_ai.engine.recipe import parse_backends

    if clean:
        if backend or source or stock or gfx or jobs:
            raise UsageError("--clean removes every build: it goes with no option but --all")
        _clean(everything)
        return
    if everything:
        raise UsageError("--all goes with --clean")
    backends = parse_backends(backend)
    if "rocm" in backends and gfx is None:
        gfx = _detected_gfx()
    with EngineProgress() as progress:
        engine = build_engine(
            backends=backends,
            source=source,
            stock=stock,
            gfx=gfx,
            jobs=jobs,
            on_progress=progress.show,
        )
    output.line(f"engine    {engine.server}")
    output.line(f"version   {engine.version or 'unknown'}")
    output.line(f"upstream  {engine.upstream_commit or 'unknown'}")
    output.line(f"patches   {', '.join(engine.patches) or 'none'}")
    output.line(f"backends  {', '.join(engine.backends)}")
    if "rocm" in engine.backends:
        output.note("note: the ROCm backend has not been run on hardware by its makers")
    if source is not None or stock:
        output.note(f"note: serve with it by --engine {engine.server}")


def _clean(everything: bool) -> None:
    from llama_ai.cli.engine_progress import EngineProgress
    from llama_ai.engine.build import clean

    with EngineProgress() as progress:
        removed = clean(sources=everything, on_progress=progress.show)
    for path in removed:
        output.line(f"removed {path}")
    if not removed:
        output.line("there was nothing to remove")


def _detected_gfx() -> str | None:
    from llama_ai.hardware.detect import detect

    gpu = detect().gpu
    return gpu.gfx if gpu else None
