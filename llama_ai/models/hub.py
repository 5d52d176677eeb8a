"""The hub: what a repository holds, and its files by range. ``huggingface_hub`` speaks to it.

Tokens, ``HF_ENDPOINT``, offline mode and the layout of the cache are that library's. The bytes of
large files are ours (:mod:`.transfer`): its version 2 starts a stopped download from the beginning
and compares no hash.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from llama_ai.errors import LlamaAiError, ModelNotFoundError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import httpx

_Answer = TypeVar("_Answer")

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
LONGEST_WAIT_S: Final = 120
MAX_TRIES: Final = 4
CONNECT_TIMEOUT_S: Final = 15
READ_TIMEOUT_S: Final = 30
SEARCH_LIMIT: Final = 20


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a repository. ``sha256`` is ``None`` for a small one that git itself holds."""

    name: str
    """With its directories, ``Q4_K_M/x-00001-of-00002.gguf``."""
    size_bytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def etag(self) -> str | None:
        """Its name in the cache's store of blobs."""
        return self.sha256 or self.git_sha1


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A repository at one commit."""

    repo: str
    commit: str
    files: tuple[RemoteFile, ...]


@dataclass(frozen=True, kw_only=True)
class Found:
    """A repository that a search found."""

    repo: str
    downloads: int | None


class HubError(LlamaAiError):
    """The hub cannot be reached, or refuses."""


class Hub:
    """The hub that the environment names. Nothing is asked before a method is called."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.endpoint = (environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
        self.sleep = sleep
        self.tell = tell
        offline = (
            environ.get("HF_HUB_OFFLINE") or environ.get("TRANSFORMERS_OFFLINE") or ""
        ).upper()
        self.offline = offline in {"1", "ON", "YES", "TRUE"}

    def listing(self, repo: str, revision: str = "main") -> Listing:
        """The files of ``repo``. Raises ModelNotFoundError, or :class:`HubError`."""
        from huggingface_hub import HfApi

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what is wrong we say
        with self._named(repo):
            info = self._patiently(
                lambda: HfApi(endpoint=self.endpoint).model_info(
                    repo, revision=revision, files_metadata=True, timeout=READ_TIMEOUT_S
                )
            )
        files = [
            RemoteFile(
                name=sibling.rfilename,
                size_bytes=sibling.size or 0,
                sha256=sibling.lfs.sha256 if sibling.lfs else None,
                git_sha1=sibling.blob_id,
            )
            for sibling in info.siblings or ()
        ]
        if info.sha is None:
            raise HubError(f"the hub does not name the commit of {repo}", hint="try again")
        return Listing(repo=repo, commit=info.sha, files=tuple(files))

    def search(self, words: str) -> tuple[Found, ...]:
        """Repositories with GGUF files whose name holds ``words``, most used first."""
        import httpx

        # By our own client: the library's search tries for half a minute when nobody answers.
        query: dict[str, str | int] = {
            "search": words,
            "filter": "gguf",
            "sort": "downloads",
            "direction": -1,
            "limit": SEARCH_LIMIT,
        }
        try:
            with self.client() as client:
                response = client.get(f"{self.endpoint}/api/models", params=query)
                for _ in range(MAX_TRIES - 1):
                    wait_s = wait_of(response.headers)
                    if response.status_code not in {429, 503} or wait_s is None:
                        break
                    self.wait(wait_s)
                    response = client.get(f"{self.endpoint}/api/models", params=query)
            if response.status_code != 200:
                raise refused(response.status_code, words)
            return tuple(
                Found(repo=str(model["id"]), downloads=model.get("downloads"))
                for model in response.json()[:SEARCH_LIMIT]
            )
        except httpx.HTTPError as error:
            raise self.unreachable(error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise HubError(
                f"{self.endpoint} gives no answer that can be read", hint="is it a hub?"
            ) from error

    def url(self, listing: Listing, file: RemoteFile) -> str:
        """Where a file of exactly this commit is."""
        from huggingface_hub import hf_hub_url

        return hf_hub_url(listing.repo, file.name, revision=listing.commit, endpoint=self.endpoint)

    def client(self) -> httpx.Client:
        """An HTTP client with the user's token. A redirect to another host does not carry it."""
        import httpx
        from huggingface_hub import get_token

        if self.offline:
            raise _offline()
        token = get_token()
        return httpx.Client(
            headers={
                "User-Agent": "llama-ai",
                **({"Authorization": f"Bearer {token}"} if token else {}),
            },
            follow_redirects=True,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """The library's errors as ours."""
        from huggingface_hub.errors import (
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            OfflineModeIsEnabled,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )

        if self.offline:
            raise _offline()
        try:
            yield
        except GatedRepoError as error:
            raise gated(what) from error
        except RepositoryNotFoundError as error:
            raise not_found(what) from error
        except RevisionNotFoundError as error:
            raise ModelNotFoundError(f"{what} has no such revision") from error
        except HFValidationError as error:
            raise UsageError(
                f"'{what}' is not a repository's name", hint="owner/repo, or owner/repo:QUANT"
            ) from error
        except OfflineModeIsEnabled as error:
            raise _offline() from error
        except HfHubHTTPError as error:
            raise refused(error.response.status_code, what) from error
        except LlamaAiError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            raise self.unreachable(error) from error
        except Exception as error:
            # The library's HTTP client has its own errors, which are no part of its interface.
            if type(error).__module__.partition(".")[0].startswith("http"):
                raise self.unreachable(error) from error
            raise

    def unreachable(self, error: Exception) -> HubError:
        """No answer, or one that makes no sense."""
        return HubError(
            f"cannot reach {self.endpoint}: {str(error).splitlines()[0] or type(error).__name__}",
            hint="is there a network? HF_ENDPOINT names another hub",
        )

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer:
        """Ask again where the hub says when to."""
        from huggingface_hub.errors import HfHubHTTPError

        for left in range(MAX_TRIES - 1, -1, -1):
            try:
                return ask()
            except HfHubHTTPError as error:
                response = error.response
                wait_s = wait_of(response.headers)
                if response.status_code not in {429, 503} or wait_s is None or not left:
                    raise
                self.wait(wait_s)
        raise AssertionError("unreachable")

    def wait(self, wait_s: float) -> None:
        """Wait as long as the hub asks; too long is an error that says how long."""
        if wait_s > LONGEST_WAIT_S:
            raise HubError(
                f"the hub asks to wait {wait_s:.0f} s", hint="run the same command after that"
            )
        self.tell(f"the hub asks to wait {wait_s:.0f} s")
        self.sleep(wait_s)


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Seconds that ``Retry-After`` asks for; ``None`` where it is absent or a date."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


def not_found(what: str) -> ModelNotFoundError:
    """No such repository, or one that this user may not see: the hub tells both alike."""
    return ModelNotFoundError(
        f"the hub has no {what}, or it is private",
        hint="check the name; for a private one log in with `hf auth login` or set HF_TOKEN",
    )


def gated(what: str) -> HubError:
    """A licence must be accepted first."""
    return HubError(
        f"{what} is gated: its licence must be accepted first",
        hint=f"open its page on the hub, accept, and set HF_TOKEN (or `hf auth login`): {what}",
    )


def refused(status: int, what: str) -> LlamaAiError:
    """An HTTP status that is no success."""
    if status == 401:
        return not_found(what)
    if status == 403:
        return gated(what)
    if status == 404:
        return not_found(what)
    if status == 429:
        return HubError(
            "the hub answers that there were too many requests", hint="wait a few minutes, go on"
        )
    return HubError(f"the hub answers {status} for {what}", hint="try again later")


def _offline() -> HubError:
    return HubError("offline mode is on (HF_HUB_OFFLINE)", hint="unset it to fetch a model")
