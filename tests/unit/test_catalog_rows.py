"""The catalog's rows: what a header says, whether it fits, and what is remembered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import pytest

from llama_ai import paths
from llama_ai.cli import catalog_rows as rows
from llama_ai.config import ConfigFile, Settings, resolve
from llama_ai.hardware.disk_speed import DiskSpeed, remember
from llama_ai.models import stores
from llama_ai.models.catalog import Entry, scan
from tests.support.models import write_model


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own with one directory of models."""
    for name in ("data_dir", "cache_dir", "config_dir"):
        monkeypatch.setattr(paths, name, lambda name=name: tmp_path / name)
    monkeypatch.setattr(stores, "checkout_dir", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "models").mkdir()
    return tmp_path


def settings(**flags: int | str) -> Settings:
    config = ConfigFile(path=Path("config.toml"), values={}, model_dirs=())
    return resolve(flags=flags, assignments=[], environ={}, config=config)


def entries(here: Path) -> tuple[Entry, ...]:
    return scan([here / "models"], {"HOME": str(here), "OLLAMA_MODELS": str(here / "none")})


def test_a_row_says_what_the_header_says(here: Path) -> None:
    write_model(here / "models" / "tiny-Q8_0.gguf", chat_template="{{ '<think>' }}")
    [row] = rows.catalog_rows(entries(here), settings(backend="cpu"))
    assert row.about is not None
    assert (row.about.architecture, row.about.n_ctx_train) == ("llama", 4096)
    assert (row.about.reasons, row.about.n_expert) == (True, None)
    assert row.fit is not None
    assert row.fit.fits
    assert row.fit.ctx_size == 4096
    assert row.fit.text.startswith("cpu 4K f16")


def test_the_second_look_opens_no_model(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(here / "models" / "tiny.gguf")
    first = rows.catalog_rows(entries(here), settings())

    def no(*words: object, **more: object) -> rows.Row:
        raise AssertionError("it was opened again")

    monkeypatch.setattr(rows, "describe", no)
    assert rows.catalog_rows(entries(here), settings()) == first
    write_model(here / "models" / "tiny.gguf", n_layer=3)
    with pytest.raises(AssertionError, match="opened again"):
        rows.catalog_rows(entries(here), settings())


def test_another_wish_is_another_answer(here: Path) -> None:
    write_model(here / "models" / "tiny.gguf")
    [first] = rows.catalog_rows(entries(here), settings())
    [second] = rows.catalog_rows(entries(here), settings(ctx_size=1024))
    assert first.fit is not None
    assert second.fit is not None
    assert (first.fit.ctx_size, second.fit.ctx_size) == (4096, 1024)


def test_a_disk_that_was_measured_since_is_another_answer(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(here / "models" / "tiny.gguf")
    first = rows.catalog_rows(entries(here), settings())
    asked: list[Path] = []

    def describe(entry: Entry, *words: object, **more: object) -> rows.Row:
        asked.append(entry.path)
        return first[0]

    monkeypatch.setattr(rows, "describe", describe)
    rows.catalog_rows(entries(here), settings())
    assert asked == []
    speed = DiskSpeed(sequential_bytes_s=2e9, slices_bytes_s=1e9, at_s=0.0, direct=True)
    remember("nvme0n1p2", speed)
    rows.catalog_rows(entries(here), settings())
    assert asked == [here / "models" / "tiny.gguf"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 1, "key": 3, "rows": 4}'])
def test_a_damaged_cache_is_no_cache(here: Path, damage: str) -> None:
    write_model(here / "models" / "tiny.gguf")
    first = rows.catalog_rows(entries(here), settings())
    (here / "cache_dir" / "catalog.json").write_text(damage)
    assert rows.catalog_rows(entries(here), settings()) == first


def test_what_does_not_fit_says_by_how_much(here: Path) -> None:
    write_model(here / "models" / "tiny.gguf", n_ctx_train=1 << 27)
    [row] = rows.catalog_rows(entries(here), settings(ctx_size=1 << 27))
    assert row.fit is not None
    assert not row.fit.fits
    assert row.fit.over_by_bytes is not None
    assert row.fit.over_by_bytes > 0
    assert row.fit.text.endswith("too large")


def test_what_cannot_be_read_is_a_row_with_its_reason(here: Path) -> None:
    (here / "models" / "bad.gguf").write_bytes(b"not a model at all")
    (here / "models" / "half-00001-of-00002.gguf").write_bytes(b"GGUF")
    found = {row.entry.name: row for row in rows.catalog_rows(entries(here), settings())}
    assert found["bad"].problem is not None
    assert "not a GGUF file" in found["bad"].problem
    assert "bad.gguf" not in found["bad"].problem
    assert found["half"].problem == "incomplete: part 2 of 2"


def test_the_header_knows_better_than_the_name(here: Path) -> None:
    writer = gguf.GGUFWriter(here / "models" / "eyes.gguf", "clip")
    writer.add_type("mmproj")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    [row] = rows.catalog_rows(entries(here), settings())
    assert row.about is not None
    assert row.about.kind == "projector"


def test_many_models_are_read_by_several_processes_with_the_same_answers(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(12):
        write_model(here / "models" / f"m{index}.gguf", n_layer=1 + index)
    monkeypatch.setattr(rows, "WORTH_A_PROCESS", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    many = rows.catalog_rows(entries(here), settings())
    (here / "cache_dir" / "catalog.json").unlink()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert rows.catalog_rows(entries(here), settings()) == many
    assert [row.entry.name for row in many] == [entry.name for entry in entries(here)]


def test_another_process_finds_the_same_key(here: Path) -> None:
    code = (
        "from pathlib import Path\n"
        "from llama_ai.cli import catalog_rows as rows\n"
        "from llama_ai.cli.pipeline import detect_machine\n"
        "from llama_ai.config import ConfigFile, resolve\n"
        "config = ConfigFile(path=Path('c'), values={}, model_dirs=())\n"
        "wishes = resolve(flags={}, assignments=[], environ={}, config=config)\n"
        "print(rows._key(wishes, detect_machine(wishes, None)))\n"
    )
    keys = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(keys) == 1
