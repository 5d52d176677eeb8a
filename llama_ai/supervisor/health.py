"""Is the engine well? ``/health`` says whether it answers, its counters whether it gets on.

Plain asyncio streams instead of an HTTP library: the supervisor must be there at once and cost
nothing while the engine works.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

_LARGEST_ANSWER = 8 << 20


@dataclass(frozen=True, kw_only=True)
class HealthSettings:
    """How often to look and when to lose patience. All in seconds.

    ``loading_interval_s`` applies for the first two seconds of a load, four times it afterwards.
    ``unresponsive_after_s``: ``/health`` failing for so long means that the engine hangs.
    ``hang_after_s``: requests are in processing, and neither prompt nor generated tokens advance
    for so long. It must exceed the longest batch: 2048 tokens take minutes on a small machine.
    """

    interval_s: float = 5.0
    loading_interval_s: float = 0.05
    timeout_s: float = 4.0
    unresponsive_after_s: float = 30.0
    hang_after_s: float = 300.0


class Health(StrEnum):
    """The answer of ``/health``."""

    OK = "ok"
    LOADING = "loading"
    """503: the model is being loaded."""
    REFUSED = "refused"
    """Nobody listens yet, or no more."""
    WRONG = "wrong"
    """No answer in time, or another answer than a llama-server gives."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """What the engine is doing, as far as its counters tell.

    ``mark`` changes whenever any prompt or generated token was processed.
    """

    busy: bool
    mark: Hashable


class Probe:
    """Asks one engine. ``prefix`` is its ``--api-prefix``; ``api_key`` goes into a header only."""

    def __init__(
        self, host: str, port: int, *, api_key: str | None, timeout_s: float, prefix: str = ""
    ) -> None:
        self._host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
        self._port = port
        self._timeout_s = timeout_s
        self._prefix = prefix
        self._key = api_key
        # Reading /slots wakes a sleeping engine, reading /metrics restarts the windows of its rate
        # gauges: the first is left to engines that never sleep, the second is for the others.
        self.use_slots = True

    async def health(self) -> Health:
        """One ``GET /health``."""
        try:
            status, _ = await self._get("/health")
        except ConnectionRefusedError:
            return Health.REFUSED
        except (OSError, ValueError, TimeoutError):
            return Health.WRONG
        return {200: Health.OK, 503: Health.LOADING}.get(status, Health.WRONG)

    async def activity(self) -> Activity | None:
        """One reading of the counters; ``None`` when the engine offers none.

        Raises :class:`TimeoutError` when it does not answer, :class:`OSError` when it is gone.
        """
        path, parse = ("/slots", parse_slots) if self.use_slots else ("/metrics", parse_metrics)
        status, body = await self._get(path)
        return parse(body) if status == 200 else None

    async def _get(self, path: str) -> tuple[int, bytes]:
        async with asyncio.timeout(self._timeout_s):
            reader, writer = await asyncio.open_connection(self._host, self._port)
            try:
                host = f"[{self._host}]" if ":" in self._host else self._host
                lines = [f"GET {self._prefix}{path} HTTP/1.0", f"Host: {host}:{self._port}"]
                if self._key is not None:
                    # A list of keys is allowed; any of them opens.
                    lines.append(f"Authorization: Bearer {self._key.split(',')[0].strip()}")
                writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("utf-8"))
                await writer.drain()
                head, _, rest = (await _read_all(reader)).partition(b"\r\n\r\n")
            finally:
                writer.close()
        version, _, status = head.split(b"\r\n", 1)[0].partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError("not an HTTP answer")
        return int(status[:3]), rest


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    answer = bytearray()
    while chunk := await reader.read(1 << 16):
        answer += chunk
        if len(answer) > _LARGEST_ANSWER:
            raise ValueError("the answer is too long")
    return bytes(answer)


def parse_slots(body: bytes) -> Activity | None:
    """``/slots`` of llama-server: a list of objects, of which only counters are looked at."""
    try:
        slots = json.loads(body)
        mark = tuple(
            (
                slot.get("id_task"),
                slot["is_processing"],
                slot.get("n_prompt_tokens_processed"),
                tuple(entry.get("n_decoded") for entry in slot.get("next_token", ())),
            )
            for slot in slots
        )
        return Activity(busy=any(slot["is_processing"] for slot in slots), mark=mark)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def parse_metrics(body: bytes) -> Activity | None:
    """``/metrics`` of llama-server, Prometheus text."""
    values: dict[str, float] = {}
    for line in body.decode("utf-8", "replace").splitlines():
        name, _, value = line.partition(" ")
        if name.startswith("llamacpp:"):
            try:
                values[name.removeprefix("llamacpp:")] = float(value)
            except ValueError:
                return None
    return _activity(values)


def _activity(values: Mapping[str, float]) -> Activity | None:
    names = ("prompt_tokens_total", "tokens_predicted_total", "n_decode_total")
    mark = tuple(values.get(name) for name in names)
    processing = values.get("requests_processing")
    if processing is None or set(mark) == {None}:
        return None
    return Activity(busy=processing > 0, mark=mark)


class Progress:
    """Watches the counters for standstill (pure: times are passed in, in seconds)."""

    def __init__(self) -> None:
        self._mark: Hashable = None
        self._since_s: float | None = None

    def still_s(self, activity: Activity | None, now_s: float) -> float:
        """For how long work has stood still. Zero when idle, advancing, or unknown."""
        if activity is None or not activity.busy:
            self._since_s, self._mark = None, None
            return 0.0
        if self._since_s is None or activity.mark != self._mark:
            self._since_s, self._mark = now_s, activity.mark
        return now_s - self._since_s

    def unanswered_s(self, now_s: float) -> float:
        """The same when the counters did not answer although ``/health`` does.

        The engine's loop is then stuck or very busy; both are work without progress so far.
        """
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s


def monotonic_s() -> float:
    """The clock of supervision: steady, and standing still while the machine sleeps."""
    return time.monotonic()
