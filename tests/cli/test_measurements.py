"""Measurements by the names of their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.bench.measured import measured
from trtllm_hpc.bench.records import append_records
from trtllm_hpc.bench.summary import write_measurement
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.errors import RunNotFound


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements, copied out of their run folders; of the second its summary alone."""
    monkeypatch.chdir(tmp_path)
    for name in ("up", "down"):
        write_measurement(tmp_path / f"{name}.json", measured(name).measurement)
    append_records(tmp_path / "up.jsonl", measured("up").records)


def types(*words: str) -> Result:
    return CliRunner().invoke(trtllm_hpc, list(words), catch_exceptions=False)


def test_a_summary_outside_a_run_folder_is_shown() -> None:
    shown = types("bench", "show", "up.json", "--json")
    assert json.loads(shown.stdout)["name"] == "up"


def test_it_is_compared_with_the_records_that_lie_beside_it(tmp_path: Path) -> None:
    compared = types("bench", "compare", "up.json", "down.json")
    assert compared.exit_code == 0
    assert f"note: {tmp_path / 'up.json'} has one pass: its spread is that of" in compared.stdout
    assert f"note: {tmp_path / 'down.json'} has one pass and no records" in compared.stdout


def test_a_trace_of_it_is_written_beside_it(tmp_path: Path) -> None:
    (tmp_path / "up.metrics.jsonl").write_text("", encoding="utf-8")
    assert types("bench", "show", "up.json", "--perfetto").exit_code == 0
    assert (tmp_path / "up.perfetto.json").exists()


def test_a_report_of_it_is_refused() -> None:
    result = CliRunner().invoke(trtllm_hpc, ["report", "up.json"])
    assert isinstance(result.exception, RunNotFound) and "lies in no run folder" in str(result.exception)
