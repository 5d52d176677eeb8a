"""The router's files, and what is done when one of its models fails: less, the next time."""

from __future__ import annotations

import http.client
import json
import shutil
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llama_ai.cli.shrink import lowered
from llama_ai.cli.start_check import start_check
from llama_ai.errors import LlamaAiError
from llama_ai.paths import private, write_atomic
from llama_ai.router import with_profile
from llama_ai.supervisor.children import ChildAnswer
from llama_ai.supervisor.state import State

if TYPE_CHECKING:
    from pathlib import Path

    from llama_ai.cli.running import Place
    from llama_ai.config import Settings
    from llama_ai.engine.capabilities import EngineInfo
    from llama_ai.hardware.facts import HardwareFacts
    from llama_ai.router import Router
    from llama_ai.supervisor.children import ChildNews

_TIMEOUT_S = 30.0


class RouterFiles:
    """What lies beside the instance's file while a router runs.

    The preset file, the models that do not fit, a directory without models that the engine takes
    for the Hugging Face cache, and one with links to models whose path a preset file cannot hold.
    """

    def __init__(self, record: Path) -> None:
        self.preset = record.with_suffix(".ini")
        self.refused = record.with_suffix(".refused.json")
        self.empty_dir = record.with_suffix(".models")
        self.link_dir = record.with_suffix(".links")

    def write(self, router: Router) -> None:
        """Raises :class:`~llama_ai.errors.LlamaAiError` when they cannot be written."""
        try:
            private(self.empty_dir)
            for link, target in router.links.items():
                private(link.parent)
                link.unlink(missing_ok=True)
                link.symlink_to(target)
            write_atomic(self.refused, json.dumps(router.refused).encode())
            write_atomic(self.preset, router.preset.encode())
        except OSError as error:
            raise LlamaAiError(f"cannot write {self.preset}: {error.strerror}") from error

    def remove(self) -> None:
        """All of them."""
        for file in (self.preset, self.refused):
            file.unlink(missing_ok=True)
        for directory in (self.empty_dir, self.link_dir):
            shutil.rmtree(directory, ignore_errors=True)


class RouterChildren:
    """What the supervisor calls with news of a model's process."""

    def __init__(
        self,
        router: Router,
        settings: Settings,
        facts: HardwareFacts,
        engine: EngineInfo,
        files: RouterFiles,
        place: Place,
    ) -> None:
        self._router = router
        self._settings = settings
        self._facts = facts
        self._engine = engine
        self._files = files
        self._place = place

    def __call__(self, news: ChildNews) -> ChildAnswer:
        """Check a start, end what is of no use any more, or give less to what ran out of memory."""
        if news.kind == "ready":
            return ChildAnswer(messages=self._checked(news))
        if news.kind == "sick":
            # It answers, but can compute nothing: the next request starts it anew.
            self._request("POST", "/models/unload", {"model": news.name})
            return ChildAnswer()
        return self._smaller(news)

    def _checked(self, news: ChildNews) -> tuple[str, ...]:
        profile = next((m.profile for m in self._router.models if m.listed_as == news.name), None)
        if profile is None:
            return ()
        return tuple(
            f"{'WARNING' if check.status == 'WARN' else 'THE PLAN IS NOT WHAT RUNS'}: {news.name}: "
            f"expected that {check.expected}, but {check.observed}"
            + (f" ({check.hint})" if check.hint else "")
            for check in start_check(profile, self._facts, news.lines)
            if check.status in {"WARN", "FAIL"}
        )

    def _smaller(self, news: ChildNews) -> ChildAnswer:
        from llama_ai.cli.serve_several import record_of_router

        model = next((m for m in self._router.models if m.listed_as == news.name), None)
        if model is None or model.profile is None:
            return ChildAnswer()
        if news.failure is None or not news.failure.kind.curable:
            return ChildAnswer()
        found = lowered(model.profile, self._facts, self._engine, self._settings)
        if found is None:
            return ChildAnswer(
                messages=(f"{model.name}: nothing is left to lower; it is started as before",)
            )
        profile, message = found
        self._router = with_profile(
            self._router,
            model.name,
            profile,
            self._settings,
            server=str(self._engine.server),
            known_flags=self._engine.flags,
            link_dir=self._files.link_dir,
        )
        self._files.write(self._router)
        self._request("GET", "/models?reload=1", None)
        if news.failure.state is State.LOADING:
            # Whoever asked for it is going to ask again: find what works without their patience.
            self._request("POST", "/models/load", {"model": news.name})
        return ChildAnswer(
            messages=(f"{model.name}: started with less from now on: {message}",),
            profile=record_of_router(self._router),
        )

    def _request(self, method: str, path: str, body: Any) -> None:
        url = urlsplit(self._place.url)
        headers = {"Content-Type": "application/json"}
        if self._place.api_key is not None:
            headers["Authorization"] = f"Bearer {self._place.api_key.split(',')[0].strip()}"
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            raise LlamaAiError(f"the router does not answer {path}: {error}") from error
        finally:
            connection.close()
        if status != 200:
            raise LlamaAiError(f"the router answers {path} with status {status}")
