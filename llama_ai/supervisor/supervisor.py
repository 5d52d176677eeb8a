"""One loop owns one instance: it starts the engine, watches it, restarts it, and stops it.

The loop alone writes the state. The engine listens on the public port itself; nothing of ours
stands between it and its clients, so a crash loses the requests in flight and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llama_ai.errors import (
    EngineNotReadyError,
    LlamaAiError,
    ModelNotFoundError,
)
from llama_ai.supervisor.children import ChildAnswer, ChildNews, Children, is_of_child
from llama_ai.supervisor.failures import Failure, Kind, Match, classify_exit, from_match
from llama_ai.supervisor.health import HealthSettings, Probe, monotonic_s
from llama_ai.supervisor.identity import PROC
from llama_ai.supervisor.logs import LogSink
from llama_ai.supervisor.notify import EXTEND_EVERY_S, from_environment
from llama_ai.supervisor.ports import in_use, listens
from llama_ai.supervisor.process import Child, spawn
from llama_ai.supervisor.restart import Decision, RestartPolicy, RestartTracker, Smaller, Verdict
from llama_ai.supervisor.state import (
    Claim,
    Event,
    LastFailure,
    State,
    describe,
    instances,
    now_text,
)
from llama_ai.supervisor.state import (
    claim as claim_instance,
)
from llama_ai.supervisor.watch import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from llama_ai.command import Command

_SHOWN_LOG_LINES = 15
_EXPLAINS_S = 60.0
"""A log line this much older than the end of the engine is not its cause."""


@dataclass(frozen=True, kw_only=True)
class InstanceSpec:
    """What to run and how to reach it.

    ``api_key`` is for the probes' header and for redaction; it is written nowhere. ``probe_prefix``
    is the engine's ``--api-prefix``.
    """

    name: str
    host: str
    port: int
    url: str
    log_path: Path
    model_path: Path | None = None
    profile: Mapping[str, Any] = field(default_factory=dict)
    start_timeout_s: float = 900
    api_key: str | None = field(default=None, repr=False)
    probe_prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class StopSettings:
    """How to end the engine: TERM, ``grace_s`` of patience, KILL. The whole stop is under 10 s."""

    grace_s: float = 8.0
    hang_grace_s: float = 2.0
    """Patience with an engine that is ended because it hangs or has lost its device."""


async def supervise(
    spec: InstanceSpec,
    command: Command,
    *,
    on_event: Callable[[Event], None],
    claim: Claim | None = None,
    policy: RestartPolicy | None = None,
    health: HealthSettings | None = None,
    stop: StopSettings | None = None,
    next_smaller: Callable[[Failure], Smaller | None] | None = None,
    on_child: Callable[[ChildNews], ChildAnswer] | None = None,
) -> int:
    """Run the engine until asked to stop; return the exit code: 0 after SIGTERM, 130 after Ctrl-C.

    Must be called on the main thread (it handles SIGTERM, SIGINT and SIGHUP while it runs). With
    ``claim`` the caller owns the instance file, otherwise it is made here. ``next_smaller`` is
    called in a worker thread after a failure that a smaller setting may cure. With ``on_child`` the
    engine is a router: it is called in a worker thread, for one child after the other; a child's
    failure is none of the router's.

    Raises :class:`~llama_ai.errors.LlamaAiError` when it gives up, with the last log lines as
    details; the port's loss is :class:`~llama_ai.errors.AlreadyRunningError`, an unreadable model
    :class:`~llama_ai.errors.ModelNotFoundError`, an engine that cannot run here
    :class:`~llama_ai.errors.EngineNotReadyError`.
    """
    with contextlib.ExitStack() as stack:
        held = claim or stack.enter_context(
            claim_instance(
                name=spec.name,
                host=spec.host,
                port=spec.port,
                url=spec.url,
                model=None if spec.model_path is None else str(spec.model_path),
            )
        )
        held.update(
            url=spec.url,
            model=None if spec.model_path is None else str(spec.model_path),
            profile=dict(spec.profile),
            log_path=str(spec.log_path),
        )
        supervisor = _Supervisor(
            spec,
            command,
            held,
            on_event,
            tracker=RestartTracker(policy or RestartPolicy()),
            health=health or HealthSettings(),
            stop=stop or StopSettings(),
            next_smaller=next_smaller,
            on_child=on_child,
        )
        return await supervisor.run()


class _Supervisor:
    def __init__(
        self,
        spec: InstanceSpec,
        command: Command,
        claim: Claim,
        on_event: Callable[[Event], None],
        *,
        tracker: RestartTracker,
        health: HealthSettings,
        stop: StopSettings,
        next_smaller: Callable[[Failure], Smaller | None] | None,
        on_child: Callable[[ChildNews], ChildAnswer] | None,
    ) -> None:
        self._spec = spec
        self._command = command
        self._claim = claim
        self._on_event = on_event
        self._tracker = tracker
        self._health = health
        self._stop = stop
        self._next_smaller = next_smaller
        self._on_child = on_child
        self._news: asyncio.Queue[ChildNews] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()
        self._exit_code = 0
        self._matches: list[tuple[float, Match]] = []
        self._useless: asyncio.Future[Match] | None = None
        self._ready_at_s: float | None = None
        self._starts = 0
        self._log = LogSink(
            spec.log_path,
            secrets=(spec.api_key or "").split(",") if spec.api_key else (),
            on_match=self._match_from_thread,
            on_block=None if on_child is None else Children(self._news_from_thread, oom_kills).take,
        )
        self._terminals = [number for number in (0, 1, 2) if _is_terminal(number)]
        self._warned: set[str] = set()
        self._notifier = from_environment()
        self._beats: list[asyncio.Task[None]] = []

    # -- the life of the instance -----------------------------------------------------------------

    async def run(self) -> int:
        handlers = {
            signal.SIGTERM: lambda: self._ask_to_stop(0),
            signal.SIGINT: lambda: self._ask_to_stop(130),
            signal.SIGHUP: self._leave_terminal,
        }
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        self._beats = self._start_beats()
        if self._on_child is not None:
            self._beats.append(asyncio.create_task(self._follow_children(self._on_child)))
        try:
            self._name_orphans()
            while True:
                failure = await self._live_once()
                if failure is None:
                    return self._exit_code
                if not await self._recover(failure):
                    return self._exit_code
        finally:
            for beat in self._beats:
                beat.cancel()
            self._notifier.close()
            await asyncio.to_thread(self._log.close)
            for number in handlers:
                self._loop.remove_signal_handler(number)

    async def _live_once(self) -> Failure | None:
        """One engine from its start to its end; ``None`` when it ended because we were asked to."""
        if self._asked.is_set():
            self._set(State.STOPPING, "stopping")
            return None
        self._matches.clear()
        self._useless = self._loop.create_future()
        self._ready_at_s = None
        ooms = oom_kills()
        self._starts += 1
        try:
            child = spawn(self._command)
        except EngineNotReadyError as error:
            self._set(State.FAILED, error.message)
            raise
        self._log.say(f"start {self._starts}, pid {child.pid}: {' '.join(self._command.argv)}")
        reader = self._log.attach(child.output)
        self._set(
            State.LOADING,
            "loading the model",
            engine_pid=child.pid,
            engine_start=child.start,
            restarts=self._starts - 1,
        )
        ended = asyncio.create_task(child.wait())
        asked = asyncio.create_task(self._asked.wait())
        sick = asyncio.create_task(
            watch(
                self._probe(),
                self._health,
                start_timeout_s=self._spec.start_timeout_s,
                ours=lambda: child.running and listens(child.pid, self._spec.port) is not False,
                state=lambda: self._claim.record.state,
                tell=self._on_health,
            )
        )
        waits: list[asyncio.Future[Any]] = [ended, asked, sick, self._useless]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            state = self._claim.record.state
            found = sick.result() if sick.done() else None
            sick.cancel()  # from here on it has no say in the state
            if asked.done() and not ended.done():
                sick.cancel()  # an answer during the stop must not call the instance well again
                self._set(State.STOPPING, "stopping")
                await self._end(child)
                return None
            if ended.done():
                failure = None
            elif self._useless.done():
                failure = from_match(self._useless.result(), state)
            else:
                failure = found
            if failure is not None and not await child.stop(grace_s=self._stop.hang_grace_s):
                self._set(State.FAILED, failure.message)
                raise LlamaAiError(failure.message, hint=_unkillable(child.pid))
            returncode = await ended
            await asyncio.to_thread(reader.detach, timeout_s=0.5)
            await asyncio.sleep(0)  # let the last matches arrive from the reading thread
            if failure is None:
                failure = classify_exit(
                    returncode, self._recent_matches(), state, oom_killed=oom_kills() > ooms
                )
            return None if self._asked.is_set() else failure
        finally:
            for task in (asked, sick, ended):
                task.cancel()
            # Whatever happened above, no engine outlives this block.
            if await child.kill():
                self._log.say(f"pid {child.pid} ended")
                self._claim.update(engine_pid=None, engine_start=None)
            else:
                self._emit("warning", _unkillable(child.pid))
            await asyncio.to_thread(reader.detach, timeout_s=0.2)

    async def _end(self, child: Child) -> None:
        """TERM, patience, KILL; a second Ctrl-C ends the patience."""
        stopping = asyncio.create_task(child.stop(grace_s=self._stop.grace_s))
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait({stopping, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            await child.kill()
        await stopping
        hurry.cancel()

    async def _recover(self, failure: Failure) -> bool:
        """Decide what follows a failure. ``False`` when asked to stop meanwhile.

        Raises the failure as an error when the policy gives up.
        """
        ready_s = None if self._ready_at_s is None else monotonic_s() - self._ready_at_s
        decision = self._tracker.failed(failure, ready_s=ready_s)
        self._log.say(failure.message)
        last = LastFailure(kind=failure.kind.value, message=failure.message, at=now_text())
        if decision.verdict is Verdict.GIVE_UP:
            self._set(State.FAILED, failure.message, last_failure=last)
            raise self._error(failure, decision)
        how = f"starting again in {decision.delay_s:.3g} s"
        self._set(State.RESTARTING, f"{failure.message}; {how}", last_failure=last)
        if decision.verdict is Verdict.SMALLER:
            await self._try_smaller(failure)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(decision.delay_s):
                await self._asked.wait()
        return not self._asked.is_set()

    async def _try_smaller(self, failure: Failure) -> None:
        if self._next_smaller is None:
            return
        try:
            smaller = await asyncio.to_thread(self._next_smaller, failure)
        except LlamaAiError as error:
            self._emit("warning", f"no smaller setting found: {error.message}")
            return
        if smaller is None:
            return
        self._command = smaller.command
        self._tracker.forgive()
        if smaller.profile is not None:
            self._claim.update(profile=dict(smaller.profile))
        self._emit("warning", f"next start with less: {smaller.message}")

    def _error(self, failure: Failure, decision: Decision) -> LlamaAiError:
        spec = self._spec
        if failure.kind is Kind.PORT_IN_USE:
            return in_use(spec.host, spec.port)
        details = tuple(self._log.tail(_SHOWN_LOG_LINES))
        kinds: dict[Kind, type[LlamaAiError]] = {
            Kind.BAD_MODEL: ModelNotFoundError,
            Kind.ENGINE_BROKEN: EngineNotReadyError,
        }
        return kinds.get(failure.kind, LlamaAiError)(
            f"gave up ({decision.reason}): {failure.message}",
            hint=f"{_HINTS.get(failure.kind, '')}the whole log: {spec.log_path}",
            details=details,
        )

    # -- health -----------------------------------------------------------------------------------

    def _probe(self) -> Probe:
        probe = Probe(
            self._spec.host,
            self._spec.port,
            api_key=self._spec.api_key,
            timeout_s=self._health.timeout_s,
            prefix=self._spec.probe_prefix,
        )
        probe.use_slots = not any("sleep-idle-seconds" in word for word in self._command.argv)
        return probe

    def _on_health(self, state: State, message: str) -> None:
        """A state that the watch found; one whose message only changes is not announced again."""
        if state is self._claim.record.state:
            self._claim.update(detail=message)
            return
        if state is State.READY and self._ready_at_s is None:
            self._ready_at_s = monotonic_s()
        self._set(state, message, **({"detail": None} if state is State.READY else {}))

    # -- the children of a router ------------------------------------------------------------------

    def _news_from_thread(self, news: ChildNews) -> None:
        self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    async def _follow_children(self, on_child: Callable[[ChildNews], ChildAnswer]) -> None:
        while True:
            news = await self._news.get()
            if self._asked.is_set():
                continue
            if news.failure is not None:
                message = f"{news.name}: {news.failure.message}"
                self._claim.update(
                    last_failure=LastFailure(
                        kind=news.failure.kind.value, message=message, at=now_text()
                    )
                )
                self._emit("warning", message)
            try:
                answer = await asyncio.to_thread(on_child, news)
            except (LlamaAiError, OSError) as error:
                self._emit("warning", f"{news.name}: {error}")
                continue
            if answer.profile is not None:
                self._claim.update(profile=dict(answer.profile))
            for text in answer.messages:
                self._emit("warning", text)

    # -- what the log says -------------------------------------------------------------------------

    def _match_from_thread(self, match: Match) -> None:
        self._loop.call_soon_threadsafe(self._on_match, match)

    def _on_match(self, match: Match) -> None:
        if self._on_child is not None and is_of_child(match.line):
            return
        self._matches = [*self._matches[-63:], (monotonic_s(), match)]
        if match.needle.alive and self._useless is not None and not self._useless.done():
            self._useless.set_result(match)

    def _recent_matches(self) -> list[Match]:
        """What was said shortly before the end; while loading, everything since the start."""
        now_s = monotonic_s()
        if self._ready_at_s is None:
            return [match for _, match in self._matches]
        return [match for at_s, match in self._matches if now_s - at_s <= _EXPLAINS_S]

    # -- telling ----------------------------------------------------------------------------------

    def _set(self, state: State, message: str, **changes: Any) -> None:
        self._claim.update(state=state, **{"detail": message, **changes})
        self._emit("state", message)
        self._notifier.status(f"{state.value}: {message}")
        if state is State.READY:
            self._notifier.ready()
        if state in {State.STOPPING, State.FAILED}:
            self._notifier.stopping()
        self._warn_once("state file", self._claim.write_error)
        self._warn_once("log", self._log.error)

    def _warn_once(self, what: str, error: OSError | None) -> None:
        if error is None:
            self._warned.discard(what)
        elif what not in self._warned:
            self._warned.add(what)
            self._emit("warning", f"cannot write the {what}: {error.strerror}; serving goes on")

    def _emit(self, kind: Any, message: str) -> None:
        record = self._claim.record
        # A terminal that is gone must not take the engine with it.
        with contextlib.suppress(OSError, ValueError):
            self._on_event(Event(kind=kind, state=record.state, message=message, record=record))

    def _name_orphans(self) -> None:
        for record in instances():
            if record.orphaned:
                self._emit(
                    "warning",
                    f"{describe(record)} still runs on {record.url}; it is not adopted: "
                    f"`llama-ai stop {record.name}` ends it",
                )

    def _start_beats(self) -> list[asyncio.Task[None]]:
        """What a service manager wants to hear regularly, and from this very loop."""
        beats = []
        if self._notifier.present:
            beats.append((EXTEND_EVERY_S, self._notifier.extend))
        if self._notifier.watchdog_interval_s is not None:
            beats.append((self._notifier.watchdog_interval_s, self._notifier.alive))
        return [asyncio.create_task(_repeat(*beat)) for beat in beats]

    # -- signals ----------------------------------------------------------------------------------

    def _ask_to_stop(self, exit_code: int) -> None:
        if self._asked.is_set():
            if exit_code == 130:
                self._hurry.set()
            return
        self._exit_code = exit_code
        self._asked.set()

    def _leave_terminal(self) -> None:
        """SIGHUP: the terminal is gone. Serve on, and write no more to it."""
        null = os.open(os.devnull, os.O_RDWR)
        for number in self._terminals:
            os.dup2(null, number)
        os.close(null)
        self._terminals = []


_HINTS = {
    Kind.BAD_MODEL: "check the model's file, or pull it again; ",
    Kind.BAD_FLAG: "remove that flag or --set, or use our own engine; ",
    Kind.OUT_OF_MEMORY: "choose a smaller --ctx-size or model; ",
    Kind.ENGINE_BROKEN: "run `llama-ai build` for this machine; ",
    Kind.LOAD_TIMEOUT: "allow more with `--set start_timeout=SECONDS`; ",
}


def _unkillable(pid: int) -> str:
    return (
        f"the engine (pid {pid}) does not end even after SIGKILL: it waits inside a driver; "
        "if it stays, only a reboot helps"
    )


async def _repeat(interval_s: float, action: Callable[[], None]) -> None:
    while True:
        action()
        await asyncio.sleep(interval_s)


def _is_terminal(number: int) -> bool:
    try:
        return stat.S_ISCHR(os.fstat(number).st_mode) and os.isatty(number)
    except OSError:
        return False


def oom_kills(proc: Path = PROC) -> int:
    """How often this machine's kernel has killed for memory since boot; 0 where it cannot tell."""
    try:
        text = (proc / "vmstat").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
