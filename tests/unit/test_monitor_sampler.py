"""A sample put together: following the supervisor's word, what is late, what is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llama_ai.hardware.root import Root
from llama_ai.monitor.feed import LiveFeed, look_once
from llama_ai.monitor.http import parse_target
from llama_ai.monitor.sample import Instance
from llama_ai.monitor.sampler import Found, Look, Sampler
from llama_ai.monitor.text import plain_text
from tests.unit.monitored_server import MonitoredServer, free_port, wait_until


@pytest.fixture
def server() -> Iterator[MonitoredServer]:
    with MonitoredServer() as running:
        yield running


class Supervised:
    """An instance file in a test's hand."""

    def __init__(self, url: str, **fields: Any) -> None:
        self.instance: Instance | None = Instance(
            name="9090", state="ready", url=url, model="/m/model.gguf", **fields
        )
        self.plan: dict[str, Any] | None = None

    def __call__(self) -> Found | None:
        return None if self.instance is None else Found(instance=self.instance, plan=self.plan)

    def say(self, **fields: Any) -> None:
        assert self.instance is not None
        self.instance = replace(self.instance, **fields)


@pytest.fixture
def sampler_of(tmp_path: Path) -> Iterator[Any]:
    made: list[Sampler] = []

    def make(**options: Any) -> Sampler:
        sampler = Sampler(Root(tmp_path), gpu=None, interval_s=0.05, **options)
        sampler.start()
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:
        sampler.close()


def state_of(sampler: Sampler, state: str) -> Look:
    looks: list[Look] = []

    def seen() -> bool:
        looks[:] = [sampler.look()]
        return looks[0].sample.engine.state == state

    wait_until(seen)
    return looks[0]


def test_a_server_somewhere(server: MonitoredServer, sampler_of: Any) -> None:
    sampler = sampler_of(target=parse_target(server.url, None))
    wait_until(lambda: sampler.watch.view().kv.off)  # the last route of a round
    look = state_of(sampler, "ready")
    assert look.sample.instance is None
    assert look.sample.engine.model == "stub"
    assert look.sample.engine.slots[0].ctx_tokens == 512
    missing = {item.what: item.why for item in look.sample.missing}
    assert missing["kv disk tier"] == "this engine has none"
    assert "llama-ai runs" in missing["log"]
    assert "gpu" in missing


def test_the_supervisors_word_is_followed(
    server: MonitoredServer, sampler_of: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_text("0.01 I hello\n")
    supervised = Supervised(server.url, log_path=str(log), started_at="2026-01-01T00:00:00+00:00")
    sampler = sampler_of(find=supervised)
    look = state_of(sampler, "ready")
    assert look.sample.engine.model in ("stub", "model.gguf")
    supervised.say(state="restarting", detail="again in 2 s", restarts=1)
    look = state_of(sampler, "restarting")
    assert look.sample.engine.detail == "again in 2 s"
    supervised.say(state="failed", detail=None, last_failure="out of memory")
    assert state_of(sampler, "failed").sample.engine.detail == "out of memory"
    supervised.instance = None
    look = state_of(sampler, "stopped")
    assert look.sample.engine.slots == ()
    assert look.sample.instance is not None  # what it was stays on the screen


def test_no_instance_yet_then_one(server: MonitoredServer, sampler_of: Any) -> None:
    supervised = Supervised(server.url)
    later, supervised.instance = supervised.instance, None
    sampler = sampler_of(find=supervised)
    assert state_of(sampler, "absent").sample.instance is None
    supervised.instance = later
    state_of(sampler, "ready")


def test_ready_in_the_file_and_dead_in_truth(sampler_of: Any) -> None:
    sampler = sampler_of(find=Supervised(f"http://127.0.0.1:{free_port()}"))
    look = state_of(sampler, "unreachable")
    assert look.sample.engine.slots == ()
    assert "refused" in (look.sample.engine.detail or "")


def test_late_counters_keep_their_values_and_say_their_age(
    server: MonitoredServer, sampler_of: Any
) -> None:
    sampler = sampler_of(target=parse_target(server.url, None))
    state_of(sampler, "ready")
    wait_until(lambda: sampler.look().sample.engine.slots != ())
    assert sampler.look().sample.late == ()
    server.counters["llamacpp:n_decode_total"] += 1
    server.hang |= {"/metrics", "/slots"}
    wait_until(lambda: sampler.look().sample.late != ())
    sample = sampler.look().sample
    assert sample.engine.state == "ready"
    assert {late.what for late in sample.late} >= {"metrics"}
    assert "long batch" in sample.late[0].why
    assert sample.engine.slots != ()
    assert "late      metrics" in plain_text(sample)


def test_limits_come_from_the_plan(server: MonitoredServer, sampler_of: Any) -> None:
    supervised = Supervised(server.url)
    supervised.plan = {
        "profile": {"ctx_size": 512, "cache_ram_mib": 1},
        "memory": {"host": {"kv_bytes": 1024, "budget_bytes": 77}},
    }
    server.slots = [
        {"id": 0, "n_ctx": 512, "is_processing": False, "id_task": 1, "n_prompt_tokens": 128}
    ]
    sampler = sampler_of(find=supervised)
    wait_until(lambda: sampler.look().sample.engine.slots != ())
    look = sampler.look()
    engine = look.sample.engine
    assert (engine.kv_used_tokens, engine.kv_total_tokens) == (128, 512)
    assert (engine.kv_used_bytes, engine.kv_total_bytes) == (256, 1024)
    assert engine.kv_ram_limit_bytes == 1 << 20
    assert look.sample.memory.budget_bytes == 77
    assert look.plan == supervised.plan


def test_our_engines_own_metrics(server: MonitoredServer, sampler_of: Any) -> None:
    server.counters.update(
        {
            "llama_ai:kv_disk_bytes": 5,
            "llama_ai:kv_disk_cap_bytes": 50,
            "llama_ai:kv_hits_cold_total": 2,
            "llama_ai:expert_hits_total": 3,
            "llama_ai:expert_misses_total": 1,
            "llamacpp:spec_decode_num_draft_tokens_total": 10,
            "llamacpp:spec_decode_num_accepted_tokens_total": 7,
            "llamacpp:prompt_tokens_total": 25,
            "llamacpp:prompt_tokens_cached_total": 75,
        }
    )
    sampler = sampler_of(target=parse_target(server.url, None))
    wait_until(lambda: sampler.look().sample.engine.slots != ())
    sample = sampler.look().sample
    engine = sample.engine
    assert (engine.kv_disk_bytes, engine.kv_disk_limit_bytes, engine.kv_hits_cold) == (5, 50, 2)
    assert (engine.expert_hit_ratio, engine.draft_acceptance) == (0.75, 0.7)
    assert engine.cache_hit_ratio == 0.75
    assert "/kv-cache" not in server.asked
    assert not any(item.what == "kv disk tier" for item in sample.missing)


def test_a_disk_tier_that_is_off_says_why(server: MonitoredServer, sampler_of: Any) -> None:
    server.unknown.clear()
    server.body["/kv-cache"] = b'{"enabled":false,"reason":"no --kv-dir"}'
    sampler = sampler_of(target=parse_target(server.url, None))
    wait_until(
        lambda: any(item.why == "off: no --kv-dir" for item in sampler.look().sample.missing)
    )


def test_once_spans_two_readings(server: MonitoredServer, tmp_path: Path) -> None:
    sampler = Sampler(
        Root(tmp_path), gpu=None, interval_s=0.1, target=parse_target(server.url, None)
    )
    sample = look_once(sampler, window_s=0.3).sample
    assert sample.engine.state == "ready"
    assert sample.engine.gen_tps == 0
    assert sample.cpu.percent is not None


def test_once_on_a_hung_server_ends(server: MonitoredServer, tmp_path: Path) -> None:
    server.hang |= {"/metrics", "/slots", "/health", "/props"}
    sampler = Sampler(
        Root(tmp_path), gpu=None, interval_s=0.1, target=parse_target(server.url, None)
    )
    sample = look_once(sampler, window_s=0.1, patience_s=10).sample
    assert sample.engine.state == "hung"
    assert sample.engine.gen_tps is None


def test_the_feed_goes_on_beside_a_hung_server(server: MonitoredServer, tmp_path: Path) -> None:
    server.hang |= {"/metrics", "/slots", "/health", "/props"}
    sampler = Sampler(
        Root(tmp_path), gpu=None, interval_s=0.05, target=parse_target(server.url, None)
    )
    feed = LiveFeed(sampler, 0.05)
    feed.start()
    looks: list[Look] = []

    def enough() -> bool:
        looks.extend(feed.take())
        return len(looks) > 10

    wait_until(enough)
    feed.close()
    assert all(look.sample.memory.ram_total_bytes for look in looks)


def test_a_slow_reader_gets_the_newest_looks(server: MonitoredServer, tmp_path: Path) -> None:
    sampler = Sampler(
        Root(tmp_path), gpu=None, interval_s=0.05, target=parse_target(server.url, None)
    )
    feed = LiveFeed(sampler, 0.001)
    feed.start()
    time.sleep(1.5)
    feed.close()
    looks = feed.take()
    assert len(looks) <= LiveFeed.KEPT + 1
    assert looks[-1].sample.at_s > looks[0].sample.at_s
    assert feed.note is None


def test_a_fault_of_ours_is_shown(tmp_path: Path) -> None:
    def broken() -> Found | None:
        raise RuntimeError("bug")

    feed = LiveFeed(Sampler(Root(tmp_path), gpu=None, interval_s=0.05, find=broken), 0.05)
    feed.start()
    wait_until(lambda: feed.note is not None)
    feed.close()
    assert "bug" in (feed.note or "")
