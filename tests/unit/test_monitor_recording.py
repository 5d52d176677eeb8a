"""Recordings: there and back, damaged, cut off, played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_ai.errors import UsageError
from llama_ai.monitor.recording import Recorder, RecordingFeed, ReplayFeed, read_recording
from llama_ai.monitor.sample import (
    DamagedError,
    Engine,
    Gpu,
    Instance,
    Late,
    Missing,
    Sample,
    Slot,
    from_json,
    to_json,
)
from llama_ai.monitor.sampler import Look

SAMPLE = Sample(
    at_s=5.5,
    engine=Engine(state="ready", slots=(Slot(id=0, state="idle", user="a"),), gen_tps=3),
    gpu=Gpu(card="card0", busy_percent=3),
    instance=Instance(name="x", state="ready", url="http://x"),
    missing=(Missing(what="log", why="none"),),
    late=(Late(what="slots", age_s=3, why="busy"),),
)


@given(st.builds(Sample))
def test_every_sample_comes_back_as_it_was(sample: Sample) -> None:
    """from_json(to_json(x)) = x, also through JSON text."""
    # By their text: NaN is not equal to itself.
    assert repr(from_json(Sample, json.loads(json.dumps(to_json(sample))))) == repr(sample)


def test_keys_of_a_newer_version_are_ignored() -> None:
    data = json.loads(json.dumps(to_json(SAMPLE)))
    data["engine"]["from_the_future"] = 1
    assert from_json(Sample, data) == SAMPLE


@pytest.mark.parametrize(
    "change",
    [
        {"at_s": "now"},
        {"engine": None},
        {"engine": {"state": "ready", "slots": [{"id": 0, "state": "dancing"}]}},
        {"engine": {"state": "ready", "slots": 7}},
        {"engine": {"state": "ready", "requests_processing": True}},
        {"cpu": []},
    ],
)
def test_what_is_no_sample(change: dict[str, Any]) -> None:
    with pytest.raises(DamagedError):
        from_json(Sample, {**json.loads(json.dumps(to_json(SAMPLE))), **change})


def write(path: Path, looks: list[Look]) -> None:
    recorder = Recorder(path, 0.5)
    for look in looks:
        recorder.add(look)
    recorder.close()


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "rec"
    looks = [
        Look(sample=SAMPLE, log=("one", "zwei")),
        Look(sample=SAMPLE, plan={"reasons": []}),
        Look(sample=SAMPLE, plan={"reasons": []}),
        Look(sample=SAMPLE),
    ]
    write(path, looks)
    assert read_recording(path) == (0.5, looks)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().count("reasons") == 1  # the plan only when it changes


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rec"
    write(path, [Look(sample=SAMPLE), Look(sample=SAMPLE)])
    path.write_text(path.read_text()[:-20])
    assert len(read_recording(path)[1]) == 1


def test_an_old_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "rec"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        Recorder(path, 1)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x\n",
        "{}\n",
        '{"schema":"other/1","interval_s":1}\n',
        '{"schema":"llama-ai.recording/1"}\n',
    ],
)
def test_what_is_no_recording(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rec"
    path.write_text(text)
    with pytest.raises(UsageError, match="not a recording"):
        read_recording(path)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rec"
    write(path, [Look(sample=SAMPLE), Look(sample=SAMPLE)])
    lines = path.read_text().splitlines()
    lines[2] = lines[2].replace('"ready"', "7", 1)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match="line 3"):
        read_recording(path)


def test_missing_and_empty_recordings(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_recording(tmp_path / "none")
    write(tmp_path / "rec", [])
    with pytest.raises(UsageError, match="no samples"):
        read_recording(tmp_path / "rec")


def test_a_recording_plays_at_its_pace() -> None:
    now_s = 0.0
    looks = [Look(sample=SAMPLE, log=(str(number),)) for number in range(4)]
    feed = ReplayFeed(looks, 2.0, clock=lambda: now_s)
    assert feed.take() == []
    feed.start()
    assert feed.take() == looks[:1]
    now_s = 1.9
    assert feed.take() == []
    now_s = 4.1
    assert feed.take() == looks[1:3]
    assert feed.note == "recording 3/4"
    now_s = 100
    assert feed.take() == looks[3:]
    assert feed.note == "recording 4/4 (end)"


class FullDisk(Recorder):
    def _write(self, entry: Any) -> None:
        from llama_ai.errors import LlamaAiError

        if "sample" in entry:
            raise LlamaAiError("cannot write rec: No space left on device")


def test_a_full_disk_ends_the_recording_and_not_the_monitor(tmp_path: Path) -> None:
    feed = RecordingFeed(
        ReplayFeed([Look(sample=SAMPLE)] * 3, 1.0, clock=lambda: 0.0),
        FullDisk(tmp_path / "rec", 1.0),
    )
    feed.start()
    assert len(feed.take()) == 1
    assert feed.note == "cannot write rec: No space left on device"
    feed.close()
