"""``llama-ai monitor``: what the machine and the server do, as a screen, a text or JSON."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from llama_ai.cli import output
from llama_ai.cli.options import JsonOption
from llama_ai.cli.stop import NameArgument
from llama_ai.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from llama_ai.hardware.root import Root
    from llama_ai.monitor.feed import Feed
    from llama_ai.monitor.host import GpuReader
    from llama_ai.monitor.sample import Instance
    from llama_ai.monitor.sampler import Found, Look, Sampler
    from llama_ai.supervisor.state import InstanceRecord

ONCE_WINDOW_S = 1.0

UrlOption = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="any llama-server instead of one that runs here"),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key", metavar="KEY", help="the server's key (better: LLAMA_AI_API_KEY, or a file)"
    ),
]
KeyFileOption = Annotated[
    str | None, typer.Option("--api-key-file", metavar="FILE", help="a file with the server's key")
]
OnceOption = Annotated[bool, typer.Option("--once", help="print one sample and exit")]
IntervalOption = Annotated[
    float | None,
    typer.Option("--interval", metavar="S", help="seconds between samples [default: 1]"),
]
RecordOption = Annotated[
    str | None, typer.Option("--record", metavar="FILE", help="write the samples to a new file")
]
ReplayOption = Annotated[
    str | None, typer.Option("--replay", metavar="FILE", help="show a recording")
]


def monitor(
    name: NameArgument = None,
    url: UrlOption = None,
    api_key: KeyOption = None,
    api_key_file: KeyFileOption = None,
    once: OnceOption = False,
    json: JsonOption = False,
    interval: IntervalOption = None,
    record: RecordOption = None,
    replay: ReplayOption = None,
) -> None:
    """Watch the machine and a server. Reads only; any llama-server will do (--url).

    Without a terminal, use --once (text) or --once --json.
    """
    if url is not None and name is not None:
        raise UsageError("NAME and --url exclude each other")
    if replay is not None and (url is not None or name is not None or record is not None):
        raise UsageError("--replay shows a recording: give no NAME, --url or --record with it")
    if interval is not None and not 0.2 <= interval <= 3600:
        raise UsageError("--interval is 0.2 to 3600 seconds")
    if json and not once:
        raise UsageError("--json prints one sample: add --once")
    if once:
        if record is not None:
            raise UsageError("--record goes with the screen: leave --once out")
        look = _replayed(replay) if replay else _once(name, url, _key(api_key, api_key_file, url))
        _print(look, json=json)
        return
    # Textual draws on stderr.
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UsageError("the monitor needs a terminal", hint="`--once` prints one sample")
    _watch(name, url, _key(api_key, api_key_file, url), interval, record, replay)


def _watch(
    name: str | None,
    url: str | None,
    key: str | None,
    interval: float | None,
    record: str | None,
    replay: str | None,
) -> None:
    from llama_ai.monitor.feed import LiveFeed
    from llama_ai.monitor.recording import Recorder, RecordingFeed, ReplayFeed, read_recording

    feed: Feed
    if replay is not None:
        recorded_s, looks = read_recording(replay)
        feed = ReplayFeed(looks, interval or recorded_s)
    else:
        interval_s = interval or 1.0
        feed = LiveFeed(_sampler(name, url, key, interval_s), interval_s)
        if record is not None:
            feed = RecordingFeed(feed, Recorder(record, interval_s))
    from llama_ai.tui.app import run_monitor

    code = run_monitor(feed)
    if code:
        raise typer.Exit(code)


def _once(name: str | None, url: str | None, key: str | None) -> Look:
    from llama_ai.monitor.feed import look_once

    sampler = _sampler(name, url, key, ONCE_WINDOW_S / 2)
    return look_once(sampler, window_s=ONCE_WINDOW_S)


def _replayed(path: str) -> Look:
    from llama_ai.monitor.recording import read_recording

    return read_recording(path)[1][-1]


def _print(look: Look, *, json: bool) -> None:
    if json:
        from llama_ai.monitor.sample import to_json

        output.print_json("monitor", to_json(look.sample))
        return
    from llama_ai.monitor.text import plain_text

    output.line(plain_text(look.sample))


def _sampler(name: str | None, url: str | None, key: str | None, interval_s: float) -> Sampler:
    from llama_ai.hardware.root import Root
    from llama_ai.monitor.http import parse_target
    from llama_ai.monitor.sampler import Sampler

    root = Root("/")
    gpu, host_budget_bytes = _gpu(root)
    return Sampler(
        root,
        gpu=gpu,
        interval_s=interval_s,
        find=_finder(name) if url is None else None,
        target=None if url is None else parse_target(url, key),
        api_key=key,
        host_budget_bytes=host_budget_bytes,
    )


def _gpu(root: Root) -> tuple[GpuReader | None, int | None]:
    """The GPU that plans use, with its budget; and the host's budget."""
    from llama_ai.hardware.budgets import budgets
    from llama_ai.hardware.detect import detect
    from llama_ai.monitor.host import GpuReader

    facts = detect(root)
    known = budgets(facts)
    gpu = facts.gpu
    if gpu is None or gpu.card is None:
        return None, known.host_budget_bytes
    return GpuReader(root, gpu, known.gpu_budget_bytes("vulkan")), known.host_budget_bytes


def _finder(name: str | None) -> Callable[[], Found | None]:
    """A look at the instance files: the named one, else the only one, else the latest started.

    Raises :class:`~llama_ai.errors.LlamaAiError` now, not later, when the choice is unclear.
    """
    from llama_ai.errors import LlamaAiError
    from llama_ai.monitor.sampler import Found
    from llama_ai.supervisor.state import instances, read_record, record_path

    records = instances()
    if name is not None and not any(record.name == name for record in records):
        raise LlamaAiError(
            f"no instance '{name}' is running", hint="`llama-ai status` lists what runs"
        )
    running = [record for record in records if record.supervised or record.orphaned]
    if name is None and len(running) > 1:
        names = ", ".join(record.name for record in running)
        raise UsageError(f"several instances run: {names}", hint="name one")
    chosen = name
    if chosen is None and (running or records):
        chosen = (running or records)[0].name

    def find() -> Found | None:
        nonlocal chosen
        if chosen is None:  # none ran at the start: take the first that comes
            found = instances()
            if not found:
                return None
            chosen = found[0].name
        record = read_record(record_path(chosen))
        if record is None:
            return None
        return Found(instance=_instance(record), plan=_plan(record))

    return find


def _plan(record: InstanceRecord) -> Any:
    """The plan that ``serve`` kept in the instance file, if it did."""
    plan = (record.profile or {}).get("plan")
    return plan if isinstance(plan, dict) else None


def _instance(record: InstanceRecord) -> Instance:
    from llama_ai.monitor.parse import clean
    from llama_ai.monitor.sample import Instance
    from llama_ai.supervisor.state import ORPHANED, State

    state = ORPHANED if record.orphaned else record.state.value
    if not record.supervised and not record.engine_alive and record.state is not State.FAILED:
        state = State.STOPPED.value  # the file of a supervisor that was killed
    failure = record.last_failure
    summary = (record.profile or {}).get("summary")
    return Instance(
        name=record.name,
        state=state,
        url=record.url,
        model=None if record.model is None else clean(record.model),
        summary=clean(summary) if isinstance(summary, str) else None,
        pid=record.pid if record.supervised else None,
        engine_pid=record.engine_pid if record.engine_alive else None,
        restarts=record.restarts,
        last_failure=None if failure is None else clean(failure.message),
        last_failure_at=None if failure is None else failure.at,
        started_at=record.started_at,
        detail=None if record.detail is None else clean(record.detail),
        log_path=record.log_path,
    )


def _key(api_key: str | None, api_key_file: str | None, url: str | None) -> str | None:
    """The key to send: given, in a file, in the environment; for a local server, configured."""
    from llama_ai import paths
    from llama_ai.cli.pipeline import read_api_key
    from llama_ai.config import ConfigFile, read_config, resolve

    path = paths.config_dir() / "config.toml"
    # A key that the configuration holds for our own server is nothing for another's.
    config = read_config(path) if url is None else ConfigFile(path=path, values={}, model_dirs=())
    names = (
        {"LLAMA_AI_API_KEY"} if url is not None else {"LLAMA_AI_API_KEY", "LLAMA_AI_API_KEY_FILE"}
    )
    if api_key_file is not None:
        names = set()  # a file that was named wins
    settings = resolve(
        flags={"api_key": api_key, "api_key_file": api_key_file},
        assignments=[],
        environ={name: value for name, value in os.environ.items() if name in names},
        config=config,
    )
    return read_api_key(settings)
