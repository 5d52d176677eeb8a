"""What ``serve`` does with one model and with several once it knows the command: run it, tell."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llama_ai.cli import output, pipeline
from llama_ai.supervisor.restart import RestartPolicy
from llama_ai.supervisor.state import State, claim, default_log_path, default_name
from llama_ai.supervisor.supervisor import InstanceSpec, supervise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from llama_ai.command import Command
    from llama_ai.config import Settings
    from llama_ai.supervisor.children import ChildAnswer, ChildNews
    from llama_ai.supervisor.failures import Failure
    from llama_ai.supervisor.restart import Smaller
    from llama_ai.supervisor.state import Claim, Event


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an instance listens, what it is called, and where its log goes."""

    host: str
    port: int
    url: str
    api_key: str | None

    @classmethod
    def of(cls, settings: Settings) -> Place:
        """As the settings say; raises :class:`~llama_ai.errors.UsageError` for a bad key file."""
        host, port = str(settings.text("host")), settings.number("port") or 9090
        return cls(
            host=host,
            port=port,
            url=f"http://{_url_host(host)}:{port}",
            api_key=pipeline.read_api_key(settings),
        )

    @property
    def name(self) -> str:
        """Of the instance."""
        return default_name(self.port)

    @property
    def log_path(self) -> Path:
        """Its log."""
        return default_log_path(self.name)

    def claim(self, model: str | None) -> AbstractContextManager[Claim]:
        """The instance's file, held while it runs."""
        return claim(name=self.name, host=self.host, port=self.port, url=self.url, model=model)


def run_instance(
    place: Place,
    settings: Settings,
    command: Command,
    *,
    held: Claim,
    model_path: Path | None,
    record: Mapping[str, object],
    on_event: Callable[[Event], None],
    next_smaller: Callable[[Failure], Smaller | None] | None = None,
    on_child: Callable[[ChildNews], ChildAnswer] | None = None,
) -> int:
    """Supervise until asked to stop; gives the exit code."""
    return asyncio.run(
        supervise(
            InstanceSpec(
                name=place.name,
                host=place.host,
                port=place.port,
                url=place.url,
                model_path=model_path,
                profile=record,
                log_path=place.log_path,
                start_timeout_s=float(settings.number("start_timeout") or 900),
                api_key=place.api_key,
            ),
            command,
            claim=held,
            on_event=on_event,
            policy=RestartPolicy(max_identical=settings.number("max_failures") or 5),
            next_smaller=next_smaller,
            on_child=on_child,
        )
    )


class Announcer:
    """Prints the supervisor's events; at the first "ready" the URL with ``hint``, then calls
    ``at_start``."""

    def __init__(self, url: str, hint: str, at_start: Callable[[], None] | None = None) -> None:
        self._url = url
        self._hint = hint
        self._at_start = at_start
        self._announced = False

    def __call__(self, event: Event) -> None:
        if event.state is not State.READY or event.kind != "state" or self._announced:
            output.note(event.message)
            return
        self._announced = True
        output.note(f"ready    {self._url}  ({self._hint})")
        if self._at_start is not None:
            self._at_start()


def _url_host(host: str) -> str:
    """An address that a client on this machine can use."""
    if host in {"0.0.0.0", ""}:  # noqa: S104 - compared, not bound
        return "127.0.0.1"
    if host == "::":
        return "[::1]"
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
