"""What a router's log tells of its children. The lines are the engine's own, from a real run."""

from __future__ import annotations

import pytest

from llama_ai.supervisor import children
from llama_ai.supervisor.children import ChildNews, Children, is_of_child
from llama_ai.supervisor.failures import Kind
from llama_ai.supervisor.state import State

START = "0.00.143.130 I srv          load: spawning server instance with name={} on port {}\n"
LOADED = "[{}] 0.00.242.325 I srv  llama_server: model loaded\n"
ENDED = "0.01.473.365 I srv           run: instance name={} exited with status {}\n"
FORCED = "0.03.051.835 W srv           run: force-killing model instance name={} after timeout\n"
OUT_OF_MEMORY = (
    "[{}] 0.00.1 E ggml_aligned_malloc: insufficient memory (attempted to allocate 9 MB)\n"
)
LOST = "[{}] ggml_vulkan: device lost on Vulkan0\n"


class Log:
    """Feeds lines to a :class:`Children` and keeps what it tells."""

    def __init__(self) -> None:
        self.news: list[ChildNews] = []
        self.kills = 0
        self.children = Children(self.news.append, lambda: self.kills)

    def say(self, *lines: str) -> None:
        self.children.take("".join(lines).encode())

    def start(self, name: str, port: int) -> None:
        self.say(START.format(name, port), f"[{port:5}] loading\n", LOADED.format(port))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("name", ["m", "with spaces (and 1 GiB over)", "Übung 漢字"])
def test_a_start_is_told_with_its_lines(log: Log, name: str) -> None:
    log.start(name, 8123)
    [news] = log.news
    assert (news.kind, news.name, news.failure) == ("ready", name, None)
    assert news.lines[0] == "loading"


def test_out_of_memory_while_loading(log: Log) -> None:
    log.say(START.format("m", 41), OUT_OF_MEMORY.format("   41"), ENDED.format("m", 1))
    [news] = log.news
    assert (news.kind, news.name) == ("ended", "m")
    assert news.failure is not None
    assert (news.failure.kind, news.failure.state) == (Kind.OUT_OF_MEMORY, State.LOADING)


def test_a_lost_device_is_told_once_and_while_the_process_lives(log: Log) -> None:
    log.start("m", 41)
    log.say(LOST.format(41), LOST.format(41))
    assert [news.kind for news in log.news] == ["ready", "sick"]
    log.say(FORCED.format("m"), ENDED.format("m", 1))
    assert log.news[-1].kind == "ended"
    assert log.news[-1].failure is not None
    assert log.news[-1].failure.kind is Kind.DEVICE_LOST


def test_one_model_knows_nothing_of_anothers_lines(log: Log) -> None:
    log.start("a", 41)
    log.start("b", 42)
    log.say(OUT_OF_MEMORY.format(42), ENDED.format("a", 1))
    assert log.news[-1].name == "a"
    assert log.news[-1].failure is not None
    assert log.news[-1].failure.kind is Kind.EXIT


@pytest.mark.parametrize(("later_s", "kind"), [(59, Kind.OUT_OF_MEMORY), (61, Kind.EXIT)])
def test_an_old_trouble_is_not_the_cause(
    log: Log, monkeypatch: pytest.MonkeyPatch, later_s: float, kind: Kind
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(children, "monotonic_s", lambda: now_s)
    log.start("m", 41)
    log.say(OUT_OF_MEMORY.format(41))
    now_s += later_s
    log.say(ENDED.format("m", 1))
    assert log.news[-1].failure is not None
    assert log.news[-1].failure.kind is kind


def test_the_kernels_killer_leaves_no_line(log: Log) -> None:
    log.start("m", 41)
    log.kills += 1
    log.say(ENDED.format("m", 1))
    assert log.news[-1].failure is not None
    assert log.news[-1].failure.kind is Kind.OUT_OF_MEMORY


@pytest.mark.parametrize("status", [0, 1])
def test_a_model_that_was_asked_to_end_is_no_news(log: Log, status: int) -> None:
    log.start("m", 41)
    if status:
        log.say(FORCED.format("m"))
    log.say(ENDED.format("m", status))
    assert [news.kind for news in log.news] == ["ready"]


def test_what_a_model_says_cannot_pass_for_the_routers_words(log: Log) -> None:
    log.start("m", 41)
    log.say("[   41] " + ENDED.format("m", 1), "[41] " + START.format("x", 42))
    assert [news.kind for news in log.news] == ["ready"]
    assert is_of_child("[   41] " + ENDED.format("m", 1))
    assert not is_of_child(ENDED.format("m", 1))


def test_a_port_that_is_used_again_belongs_to_the_later_model(log: Log) -> None:
    log.start("a", 41)
    log.say(ENDED.format("a", 0))
    log.start("b", 41)
    log.say(OUT_OF_MEMORY.format(41), ENDED.format("b", 1))
    assert [news.name for news in log.news] == ["a", "b", "b"]
