"""``llama-ai serve``: solve, build the engine if needed, start it, keep it alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from llama_ai.cli.options import JsonOption, ModelsArgument, RootOption, serving_options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from llama_ai.cli.pipeline import Prepared
    from llama_ai.config import Settings
    from llama_ai.errors import LlamaAiError
    from llama_ai.settings import Value

START_MARK = "--- llama-ai: start"

DemoOption = Annotated[bool, typer.Option("--demo", help="fetch and serve a small demo model")]
PrintOption = Annotated[
    bool, typer.Option("--print-profile", help="print what would be done, and exit")
]
FormatOption = Annotated[
    str, typer.Option("--format", metavar="text|env|argv|json", help="form of --print-profile")
]
ForgetOption = Annotated[
    bool,
    typer.Option("--forget", help="drop what was learned from earlier failures of this model"),
]

# The words of the seed's script, so that old scripts keep working.
ListModelsOption = Annotated[bool, typer.Option("--list-models", hidden=True)]
ListBackendsOption = Annotated[bool, typer.Option("--list-backends", hidden=True)]
DownloadOption = Annotated[str | None, typer.Option("--download", hidden=True)]
QuantOption = Annotated[str | None, typer.Option("--quant", hidden=True)]
ServerOption = Annotated[bool, typer.Option("--server", hidden=True)]


@serving_options
def serve(
    context: typer.Context,
    flags: Mapping[str, Value | None],
    assignments: list[str],
    models: ModelsArgument = None,
    demo: DemoOption = False,
    print_profile: PrintOption = False,
    form: FormatOption = "text",
    json: JsonOption = False,
    root: RootOption = None,
    forget: ForgetOption = False,
    list_models: ListModelsOption = False,
    list_backends: ListBackendsOption = False,
    server: ServerOption = False,
    download: DownloadOption = None,
    quant: QuantOption = None,
) -> None:
    """Serve MODEL over the OpenAI and Anthropic APIs; several, or all without a name, on one port.

    Words after `--` are passed on to the engine.
    """
    from llama_ai.cli.pipeline import read_settings
    from llama_ai.errors import UsageError

    del server  # serving is what this command does
    if list_models:
        from llama_ai.cli.models import models as list_them

        list_them(json=json)
        return
    if list_backends:
        from llama_ai.cli.backends import backends

        backends(json=json)
        return
    if download is not None:
        from llama_ai.cli.pull import fetch

        fetch(download, quant=quant, yes=True, json=json)
        return
    if quant is not None:
        raise UsageError("--quant goes with --download NAME")
    settings = read_settings(flags, assignments)
    raw: tuple[str, ...] = context.obj or ()
    words = list(models or ())
    if demo and words:
        raise UsageError("--demo and MODEL exclude each other")
    if print_profile:
        if len(words) > 1:
            raise UsageError("--print-profile takes one MODEL", hint="ask for each by itself")
        model = words[0] if words else None
        from llama_ai.cli.profile import show_profile

        show_profile(
            settings,
            _demo_model() if demo else model,
            raw,
            root=root,
            form="json" if json else form,
        )
        return
    if root is not None:
        raise UsageError("--root is for dry runs: add --print-profile")
    if json:
        raise UsageError(
            "--json goes with --print-profile; a running server answers `status --json`"
        )
    code = _serve(settings, words, demo=demo, raw=raw, forget=forget)
    if code:
        raise typer.Exit(code)


def _demo_model() -> str:
    from llama_ai.cli import output
    from llama_ai.models.demo import ensure_demo

    with output.Progress("demo model") as progress:
        return str(ensure_demo(progress.update))


def _serve(
    settings: Settings, words: list[str], *, demo: bool, raw: tuple[str, ...], forget: bool
) -> int:
    import signal

    from llama_ai.cli import output, pipeline
    from llama_ai.cli.profile import record_of
    from llama_ai.cli.running import Announcer, Place, run_instance
    from llama_ai.cli.shrink import Shrinker
    from llama_ai.paths import private
    from llama_ai.supervisor.ports import check_port_free

    # Until the supervisor takes over, TERM unwinds like Ctrl-C, so that a build's children end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    place = Place.of(settings)
    check_port_free(place.host, place.port)
    if demo:
        words = [_demo_model()]
    if len(words) == 1:
        entry = pipeline.find_model(words[0], settings)
    else:
        from llama_ai.cli.serve_several import chosen_entries, serve_several

        entries = chosen_entries(words, settings)
        if len(entries) > 1:
            return serve_several(entries, settings, place, raw=raw, forget=forget)
        entry = entries[0] if entries else pipeline.find_model(None, settings)
    with place.claim(str(entry.path)) as held:
        facts = pipeline.detect_machine(settings, None)
        if pipeline.built_engine(settings) is None:
            # What cannot be served is said before minutes are spent on a build.
            pipeline.refuse_early(settings, entry, facts)
        engine = pipeline.ready_engine(settings, facts)
        if forget:
            pipeline.forget_lessons(facts, entry.path, engine)
        prepared = pipeline.prepare(
            settings,
            entry=entry,
            facts=facts,
            engine=engine,
            raw=raw,
            verify=settings.text("fit") != "on",
        )
        pipeline.show_notes(prepared.built)
        profile = prepared.profile
        if profile.experts is not None and profile.experts.tracking:
            private(profile.experts.stats_path.parent)  # the engine writes there
        output.note(
            f"model    {profile.model_name} ({output.bytes_text(profile.model.size_bytes)})"
        )
        output.note(f"profile  {profile.summary}")
        output.note(f"log      {place.log_path}")
        if profile.suggestion is not None:
            output.note(f"note: {profile.suggestion}")
        start = _Start(prepared, place.log_path)
        code = run_instance(
            place,
            settings,
            prepared.built.command,
            held=held,
            model_path=entry.path,
            record=record_of(prepared),
            on_event=Announcer(
                place.url, f"OpenAI: {place.url}/v1, Anthropic: {place.url}", start.check
            ),
            next_smaller=Shrinker(prepared, settings, raw),
        )
        if start.failed is not None:
            raise start.failed
        return code


class _Start:
    """Stops what serves from the CPU although the plan is for the GPU: that is no detail."""

    def __init__(self, prepared: Prepared, log_path: Path) -> None:
        self._prepared = prepared
        self._log_path = log_path
        self.failed: LlamaAiError | None = None

    def check(self) -> None:
        """Compare the plan with what the engine said at its last start."""
        import os
        import signal

        from llama_ai.cli.start_check import say, start_check
        from llama_ai.errors import EngineNotReadyError
        from llama_ai.supervisor.tail import last_lines

        lines = last_lines(self._log_path, 2000).decode(errors="replace").splitlines()
        starts = [index for index, line in enumerate(lines) if line.startswith(START_MARK)]
        checks = start_check(
            self._prepared.profile, self._prepared.facts, lines[starts[-1] if starts else 0 :]
        )
        say(checks)
        bad = next((check for check in checks if check.status == "FAIL"), None)
        if bad is not None:
            self.failed = EngineNotReadyError(
                f"expected that {bad.expected}, but {bad.observed}",
                hint=bad.hint or "--backend cpu serves from the CPU on purpose",
            )
            os.kill(os.getpid(), signal.SIGTERM)
