"""Fetching from the hub: every way in which it can go wrong ends in the right file or an error."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest

from llama_ai.errors import LlamaAiError, ModelNotFoundError, UsageError
from llama_ai.models import pull as puller
from llama_ai.models.hub import Hub, HubError
from llama_ai.models.pull import Progress, pull
from llama_ai.models.repository import pick, remote_models
from llama_ai.models.transfer import WrongContentError, incomplete_path
from tests.support.hub import HubServer, Repo, hub_server

SIZE = 3_000_000
NAME = "m-Q8_0.gguf"


class World:
    """A hub with one repository, and a user's cache."""

    def __init__(self, server: HubServer, directory: Path) -> None:
        self.server = server
        self.cache = directory / "cache"
        self.content = os.urandom(SIZE)
        self.source = directory / "source.gguf"
        self.source.write_bytes(self.content)
        server.repos["owner/repo-GGUF"] = Repo(files={NAME: self.source})
        self.environ = {"HF_ENDPOINT": server.url, "HF_HUB_CACHE": str(self.cache)}
        self.slept: list[float] = []
        self.said: list[str] = []
        self.seen: list[Progress] = []

    @property
    def hub(self) -> Hub:
        return Hub(self.environ, sleep=self.slept.append, tell=self.said.append)

    @property
    def blob(self) -> Path:
        return self.cache / "models--owner--repo-GGUF" / "blobs" / self.server.sha256(self.source)

    def pull(self) -> Path:
        listing = self.hub.listing("owner/repo-GGUF")
        [path] = pull(self.hub, listing, listing.files, self.environ, self.seen.append)
        return path

    def assert_right(self, path: Path) -> None:
        assert path.read_bytes() == self.content
        assert not incomplete_path(self.blob).exists()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with hub_server() as server:
        yield World(server, tmp_path)


def test_a_file_lands_in_the_hubs_own_layout(world: World) -> None:
    path = world.pull()
    world.assert_right(path)
    assert path.is_symlink()
    # The hub's own client finds it without asking anybody.
    found = huggingface_hub.try_to_load_from_cache(
        "owner/repo-GGUF", NAME, cache_dir=world.cache, revision="main"
    )
    assert found == str(path)
    assert world.seen[-1].done_bytes == world.seen[-1].total_bytes == SIZE


def test_what_is_there_is_not_fetched_again(world: World) -> None:
    world.pull()
    before = world.server.transferred_bytes
    world.assert_right(world.pull())
    assert world.server.transferred_bytes == before


def test_a_stopped_download_fetches_only_what_is_missing(world: World) -> None:
    world.server.faults.break_after = [2_000_000, 0, 0, 0, 0, 0]
    with pytest.raises(HubError, match="connection broke"):
        world.pull()
    kept = incomplete_path(world.blob).stat().st_size
    assert 0 < kept <= 2_000_000
    world.server.faults.break_after = []
    before = world.server.transferred_bytes
    world.assert_right(world.pull())
    assert world.server.transferred_bytes - before == SIZE - kept


def test_a_broken_connection_is_taken_up_again(world: World) -> None:
    world.server.faults.break_after = [1_000_000, 500_000, 70_000]
    world.assert_right(world.pull())
    assert world.server.transferred_bytes <= SIZE
    assert len(world.slept) == 3


def test_a_transfer_that_stands_still_is_taken_up_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_ai.models.hub.READ_TIMEOUT_S", 0.5)
    world.server.faults.stall_after = [1_000_000]
    world.assert_right(world.pull())
    assert any("going on" in text for text in world.said)


def test_a_server_without_ranges_still_ends_in_the_right_file(world: World) -> None:
    world.server.faults.no_ranges = True
    world.server.faults.break_after = [1_000_000]
    world.assert_right(world.pull())


def test_retry_after_is_honoured(world: World) -> None:
    world.server.faults.statuses = [429, 503]
    world.server.faults.api_statuses = [429]
    world.server.faults.retry_after = "7"
    world.assert_right(world.pull())
    assert world.slept == [7.0, 7.0, 7.0]


def test_a_wait_that_is_too_long_is_said(world: World) -> None:
    world.server.faults.statuses = [429]
    world.server.faults.retry_after = "4000"
    with pytest.raises(HubError, match="wait 4000 s"):
        world.pull()


def test_too_many_refusals_end(world: World) -> None:
    world.server.faults.statuses = [503] * 20
    with pytest.raises(HubError, match="503"):
        world.pull()
    assert len(world.slept) < 10


def test_a_wrong_byte_is_never_kept(world: World) -> None:
    world.server.faults.corrupt = True
    with pytest.raises(WrongContentError, match="wrong hash"):
        world.pull()
    assert not world.blob.exists()
    assert not incomplete_path(world.blob).exists()
    world.server.faults.corrupt = False
    world.assert_right(world.pull())


def test_a_damaged_part_is_found_out(world: World) -> None:
    world.blob.parent.mkdir(parents=True)
    incomplete_path(world.blob).write_bytes(b"\0" * 1000)
    with pytest.raises(WrongContentError, match="wrong hash"):
        world.pull()
    assert not incomplete_path(world.blob).exists()


def test_more_than_the_listed_size_is_refused(world: World) -> None:
    world.server.faults.longer_by = 10_000_000
    with pytest.raises(WrongContentError, match="larger than its"):
        world.pull()
    assert not list(world.blob.parent.iterdir())


@pytest.mark.parametrize("other_size", [SIZE, SIZE - 5])
def test_a_file_that_changes_between_two_requests(world: World, other_size: int) -> None:
    listing = world.hub.listing("owner/repo-GGUF")
    world.source.write_bytes(os.urandom(other_size))
    with pytest.raises(WrongContentError, match="changed on the hub"):
        pull(world.hub, listing, listing.files, world.environ, world.seen.append)
    assert not list((world.cache / "models--owner--repo-GGUF" / "blobs").iterdir())


def test_a_token_goes_to_the_hub_and_not_to_the_cdn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.server.repos["owner/repo-GGUF"].token = "secret"
    with pytest.raises(ModelNotFoundError, match="private"):
        world.pull()
    monkeypatch.setenv("HF_TOKEN", "secret")
    world.assert_right(world.pull())
    asked = [one for one in world.server.requests if one.path.startswith("/cdn/")]
    assert asked
    assert not any(one.authorized for one in asked)


def test_a_gated_repository_says_what_to_do(world: World) -> None:
    world.server.repos["owner/repo-GGUF"].gated = True
    with pytest.raises(HubError, match="gated") as caught:
        world.pull()
    assert "accept" in str(caught.value.hint)


def test_what_the_hub_does_not_have(world: World) -> None:
    with pytest.raises(ModelNotFoundError, match="has no owner/other"):
        world.hub.listing("owner/other")
    with pytest.raises(UsageError, match="not a repository"):
        world.hub.listing("a/b/c")


def test_nobody_answers(world: World) -> None:
    hub = Hub({"HF_ENDPOINT": "http://127.0.0.1:9"})
    with pytest.raises(HubError, match="cannot reach"):
        hub.listing("owner/repo-GGUF")
    with pytest.raises(HubError, match="cannot reach"):
        hub.search("words")


def test_offline_mode_asks_nobody(world: World) -> None:
    hub = Hub({**world.environ, "HF_HUB_OFFLINE": "1"})
    with pytest.raises(HubError, match="offline"):
        hub.listing("owner/repo-GGUF")
    assert not world.server.requests


def test_free_space_is_checked_less_what_is_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.blob.parent.mkdir(parents=True)
    incomplete_path(world.blob).write_bytes(world.content[: SIZE - 1000])
    free = [puller.SPARE_BYTES + 999]
    monkeypatch.setattr("shutil.disk_usage", lambda where: type("U", (), {"free": free[0]}))
    with pytest.raises(LlamaAiError, match="are free"):
        world.pull()
    free[0] += 1
    world.assert_right(world.pull())


def test_another_process_that_fetches_it_is_named(world: World) -> None:
    import fcntl

    world.blob.parent.mkdir(parents=True)
    with incomplete_path(world.blob).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(LlamaAiError, match="another process"):
            world.pull()


def test_a_repositorys_models_with_what_belongs_to_them(world: World) -> None:
    names = (
        "Q8_0/x-Q8_0-00001-of-00002.gguf",
        "Q8_0/x-Q8_0-00002-of-00002.gguf",
        "x-Q4_K_M.gguf",
        "x-UD-Q4_K_XL.gguf",
        "mmproj-BF16.gguf",
        "mmproj-F16.gguf",
        "dflash-x-Q8_0.gguf",
        "dspark-x-Q8_0.gguf",
        "README.md",
        "../evil.gguf",
    )
    world.server.repos["owner/x"] = Repo(files=dict.fromkeys(names, world.source))
    models = remote_models(world.hub.listing("owner/x"))
    assert [model.quant for model in models] == ["Q4_K_M", "UD-Q4_K_XL", "Q8_0"]
    whole = pick(models, "q8_0", "owner/x")
    assert [file.name for file in whole.wanted(projector=True, draft=True)] == [
        "Q8_0/x-Q8_0-00001-of-00002.gguf",
        "Q8_0/x-Q8_0-00002-of-00002.gguf",
        "mmproj-F16.gguf",
        "dspark-x-Q8_0.gguf",
    ]
    assert len(whole.wanted(projector=False, draft=False)) == 2
    for word in ("Q4_K", "Q4_K_XL", "Q5_K_M"):
        with pytest.raises(ModelNotFoundError, match=f"has no {word}") as caught:
            pick(models, word, "owner/x")
        assert caught.value.hint == "it has: Q4_K_M, UD-Q4_K_XL, Q8_0"


def test_a_search_finds_repositories_by_use(world: World) -> None:
    world.server.repos["a/Word-GGUF"] = Repo(files={}, downloads=3)
    world.server.repos["b/word-2-GGUF"] = Repo(files={}, downloads=9)
    world.server.faults.api_statuses = [429]
    world.server.faults.retry_after = "2"
    assert [one.repo for one in world.hub.search("word")] == ["b/word-2-GGUF", "a/Word-GGUF"]
    assert world.slept == [2.0]
