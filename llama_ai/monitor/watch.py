"""Talks to one server from two threads of its own, so that nobody else ever waits for it.

The *counters* thread reads ``/metrics`` and ``/slots``. Those go through the engine's work queue
and come late while a long batch is computed, so they get a long deadline. The *health* thread asks
``/health``, which answers at once in a living server, whenever the counters did not just answer;
that is how a busy server and a hung one are told apart.

Two side effects of the engine are respected. Asking ``/slots`` wakes a sleeping engine: it is asked
only when ``/metrics`` shows that something happened, or ``/props`` says that nobody sleeps. Asking
``/metrics`` restarts the averaging window of its two ``*_tokens_seconds`` gauges for every other
reader; we cannot avoid that, and do not use those gauges.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from llama_ai.monitor import parse
from llama_ai.monitor.http import Answer, Target, get
from llama_ai.monitor.judge import Connection

if TYPE_CHECKING:
    from collections.abc import Callable

HEALTH_TIMEOUT_S = 2.0
COUNTERS_TIMEOUT_S = 10.0
RETRY_OFF_S = 30.0
"""How often to ask again for what a server does not offer."""
PROPS_EVERY_S = 10.0
KV_EVERY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The last good value of one route, when it came (monotonic), and the last problem."""

    value: Any = None
    at_s: float | None = None
    problem: str | None = None
    """Why the latest attempt gave nothing; ``None`` after a good one."""
    status: int | None = None
    """The HTTP status of the latest answer."""
    off: bool = False
    """The server does not offer it."""


@dataclass(frozen=True, kw_only=True)
class View:
    """All that is known of the server at one moment."""

    connection: Connection = Connection.UNKNOWN
    detail: str | None = None
    metrics: Reading = field(default_factory=Reading)
    slots: Reading = field(default_factory=Reading)
    props: Reading = field(default_factory=Reading)
    kv: Reading = field(default_factory=Reading)
    generation: int = 0
    """Counts targets and engine restarts: counters of two generations are not comparable."""

    @property
    def settled(self) -> bool:
        """Whether the first round is over: counters are there, or it is known why not."""
        if self.connection in (Connection.OK, Connection.SLEEPING):
            return all(part.at_s or part.problem for part in (self.metrics, self.slots, self.props))
        return self.connection is not Connection.UNKNOWN


class EngineWatch:
    """Watches the server at a target that may change. Use it as a started thing: start, close."""

    def __init__(
        self,
        interval_s: float,
        *,
        counters_timeout_s: float = COUNTERS_TIMEOUT_S,
        health_timeout_s: float = HEALTH_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._counters_timeout_s = counters_timeout_s
        self._health_timeout_s = health_timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._target: Target | None = None
        self._view = View()
        self._failing_since_s: float | None = None
        self._mark: tuple[float | None, ...] | None = None
        self._threads = [
            threading.Thread(target=loop, name=name, daemon=True)
            for name, loop in (
                ("monitor-counters", self._counters_loop),
                ("monitor-health", self._health_loop),
            )
        ]

    def start(self) -> None:
        """Start watching."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop. A read in progress is left behind; it ends by its deadline or with the process."""
        self._stop.set()
        self._wake.set()

    @property
    def target(self) -> Target | None:
        """What is watched."""
        return self._target

    def watch(self, target: Target | None) -> None:
        """Watch ``target`` from now on (the same one: nothing changes)."""
        with self._lock:
            if target == self._target:
                return
            self._target = target
            self._forget()
        self._wake.set()

    def renew(self) -> None:
        """The engine was started anew: what was known of the old one is forgotten."""
        with self._lock:
            self._forget()

    def view(self) -> View:
        """What is known now."""
        with self._lock:
            return self._view

    def _forget(self) -> None:
        self._view = View(generation=self._view.generation + 1)
        self._failing_since_s = None
        self._mark = None

    def _update(self, target: Target, generation: int, **changes: Any) -> None:
        """Take a result in, unless it belongs to a target or an engine of the past."""
        with self._lock:
            if target == self._target and generation == self._view.generation:
                self._view = replace(self._view, **changes)

    # --- counters ---------------------------------------------------------------------------

    def _counters_loop(self) -> None:
        due_s = self._clock()
        while not self._stop.is_set():
            target = self._target
            if target is not None:
                self.read_counters(target)
            due_s = max(due_s + self._interval_s, self._clock())
            self._wake.wait(max(0.0, due_s - self._clock()))
            self._wake.clear()

    def read_counters(self, target: Target) -> None:
        """One round of ``/metrics``, ``/slots`` and, now and then, ``/kv-cache``."""
        view = self.view()
        generation = view.generation
        metrics = self._read(target, "/metrics", view.metrics, parse.parse_metrics)
        values = metrics.value if metrics.problem is None else None
        if values is not None and self._restarted(view.metrics.value, values):
            self.renew()
            view = self.view()
            generation = view.generation
        self._update(target, generation, metrics=metrics)
        mark = None if values is None else tuple(values.get(name) for name in _MARK)
        busy = bool(values and values.get("llamacpp:requests_processing"))
        if mark is not None and mark == self._mark and not busy and view.slots.at_s is not None:
            # Nothing happened since the last look, so that is how the slots still are.
            self._update(target, generation, slots=replace(view.slots, at_s=metrics.at_s))
        elif busy or not self._asleep(target, generation, metrics):
            slots = self._read(target, "/slots", view.slots, parse.parse_slots)
            self._update(target, generation, slots=slots)
            self._mark = mark if slots.problem is None else None
        kv = view.kv
        # The figures are in /metrics; this route says whether and why there are none.
        told = values is not None and "llama_ai:kv_disk_bytes" in values
        due = kv.at_s is None or self._clock() - kv.at_s >= KV_EVERY_S
        if values is not None and not told and not kv.off and due:
            self._update(target, generation, kv=self._read(target, "/kv-cache", kv, _parse_object))

    def _asleep(self, target: Target, generation: int, metrics: Reading) -> bool:
        """Whether the engine sleeps, or that cannot be found out because it does not answer."""
        if metrics.status is None and not metrics.off:
            return True  # no connection: there is no point in trying the next route
        if metrics.status in (401, 403):
            return False  # /slots will be refused as well; let it say so
        props = self._read(target, "/props", Reading(), parse.parse_props)
        self._update(target, generation, props=props)
        return props.status is None or bool(props.value and props.value.sleeping)

    @staticmethod
    def _restarted(before: dict[str, float] | None, now: dict[str, float]) -> bool:
        return before is not None and any(
            now.get(name, 0.0) < before.get(name, 0.0) for name in _MARK[1:]
        )

    def _read(
        self,
        target: Target,
        path: str,
        before: Reading,
        convert: Callable[[bytes], Any],
        timeout_s: float | None = None,
    ) -> Reading:
        if before.off and before.at_s is not None and self._clock() - before.at_s < RETRY_OFF_S:
            return before
        try:
            answer = get(target, path, timeout_s or self._counters_timeout_s)
        except (OSError, ValueError) as error:
            return replace(before, problem=_reason(error), status=None)
        return self._digest(answer, path, before, convert)

    def _digest(
        self, answer: Answer, path: str, before: Reading, convert: Callable[[bytes], Any]
    ) -> Reading:
        if answer.status == 200:
            try:
                value = convert(answer.body)
            except (ValueError, RecursionError):
                problem = f"{path} is not what a llama-server answers"
                return replace(before, problem=problem, status=200)
            return Reading(value=value, at_s=self._clock(), status=200)
        said = parse.error_message(answer.body)
        if answer.status in (404, 501):
            why = said if answer.status == 501 else None
            return Reading(
                problem=why or f"this server has no {path}",
                status=answer.status,
                off=True,
                at_s=self._clock(),
            )
        problem = f"{path} answers {answer.status}" + (f": {said}" if said else "")
        return replace(before, problem=problem, status=answer.status)

    # --- health -----------------------------------------------------------------------------

    def _health_loop(self) -> None:
        while not self._stop.is_set():
            target = self._target
            if target is not None:
                self.read_health(target)
            self._stop.wait(self._interval_s if target is not None else min(self._interval_s, 0.2))

    def read_health(self, target: Target) -> None:
        """Find out the connection: from the counters when they just answered, else by asking."""
        view, now_s = self.view(), self._clock()
        connection, detail = self._by_counters(view, now_s), None
        if connection is None:
            connection, detail = self._ask_health(target, view)
        props = view.props
        if connection is Connection.OK:
            if props.at_s is None or now_s - props.at_s >= PROPS_EVERY_S:
                timeout_s = self._health_timeout_s
                props = self._read(target, "/props", props, parse.parse_props, timeout_s)
                self._update(target, view.generation, props=props)
            processing = (view.metrics.value or {}).get("llamacpp:requests_processing")
            if props.value is not None and props.value.sleeping and not processing:
                connection = Connection.SLEEPING
                detail = "the model is unloaded until the next request"
        detail = self._since(connection, detail, now_s)
        self._update(target, view.generation, connection=connection, detail=detail)

    def _by_counters(self, view: View, now_s: float) -> Connection | None:
        for part in (view.metrics, view.slots):
            fresh = part.at_s is not None and now_s - part.at_s < 1.5 * self._interval_s
            if fresh and part.problem is None:
                return Connection.OK
        return None

    def _ask_health(self, target: Target, view: View) -> tuple[Connection, str | None]:
        try:
            answer = get(target, "/health", self._health_timeout_s)
        except TimeoutError:
            return Connection.TIMEOUT, "connected, but no answer"
        except ssl.SSLError as error:
            return Connection.REFUSED, f"no secure connection: {_reason(error)}"
        except OSError as error:
            return Connection.REFUSED, _reason(error)
        except ValueError as error:
            return Connection.FOREIGN, f"another program answers there: {error}"
        refused = (401, 403)
        if answer.status in refused or {view.metrics.status, view.slots.status} & set(refused):
            return Connection.UNAUTHORISED, (
                "the server wants a key: --api-key-file FILE or LLAMA_AI_API_KEY"
                if target.api_key is None
                else "the server refuses this key"
            )
        if answer.status == 503:
            return Connection.LOADING, parse.error_message(answer.body) or "loading the model"
        if answer.status != 200:
            return Connection.FOREIGN, f"/health answers {answer.status}: not a llama-server?"
        parts = (view.metrics, view.slots)
        if all(part.problem is not None and part.status == 200 for part in parts):
            return Connection.FOREIGN, parts[0].problem
        return Connection.OK, None

    def _since(self, connection: Connection, detail: str | None, now_s: float) -> str | None:
        """Add for how long it has been so, where that matters."""
        with self._lock:
            if connection not in (Connection.TIMEOUT, Connection.REFUSED):
                self._failing_since_s = None
                return detail
            if self._failing_since_s is None:
                self._failing_since_s = now_s
            seconds = round(now_s - self._failing_since_s)
        return f"{detail} for {seconds} s" if seconds else detail


_MARK = (
    "llamacpp:requests_processing",
    "llamacpp:n_decode_total",
    "llamacpp:prompt_tokens_total",
    "llamacpp:tokens_predicted_total",
)


def _parse_object(body: bytes) -> dict[str, Any]:
    data = json.loads(body)
    if not isinstance(data, dict):
        raise parse.ForeignAnswerError("not an object")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return parse.clean(str(text)[:1].lower() + str(text)[1:], 160)
