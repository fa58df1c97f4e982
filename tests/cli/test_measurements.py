"""Measurements by the names of their files."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.bench.measured import measured
from tests.bench.queueing import served
from tests.plans import write_plan
from tests.schemas.check import documented
from trtllm_hpc.bench.records import append_records
from trtllm_hpc.bench.results import write_measurement
from trtllm_hpc.cli import command as trtllm_hpc
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements, copied out of their run folders; the second without its records."""
    monkeypatch.chdir(tmp_path)
    for name in ("up", "down"):
        write_measurement(tmp_path / f"{name}.json", measured(name).measurement)
    append_records(tmp_path / "up.jsonl", served(50, requests=300))


def types(*words: str) -> Result:
    return CliRunner().invoke(trtllm_hpc, list(words), catch_exceptions=False)


def test_a_summary_outside_a_run_folder_is_shown_and_compared_without_a_report(tmp_path: Path) -> None:
    shown = types("bench", "show", "up.json", "--json")
    assert documented("bench show", shown.stdout)["name"] == "up"
    compared = types("bench", "compare", "up.json", "down.json")
    assert compared.exit_code == 0 and f"note: {tmp_path}/down.json has one pass" in compared.stdout
    with pytest.raises(RunNotFound, match="is not in a run folder"):
        types("report", "up.json")


def test_a_measurement_without_a_summary_cannot_be_shown(tmp_path: Path) -> None:
    """Its first pass was killed between its records and its summary."""
    results = tmp_path / "runs" / "demo-1" / "results"
    results.mkdir(parents=True)
    write_plan(RunPaths(results.parent))
    append_records(results / "killed.jsonl", served(50, requests=300))
    run = str(tmp_path / "runs" / "demo-1")
    [listed] = documented("bench list", types("bench", "list", run, "--json").stdout)
    assert (listed["name"], listed["valid"]) == ("killed", None)
    assert "not finished" in types("bench", "list", run).stdout
    for form in ([], ["--json"]):
        with pytest.raises(RunNotFound, match=r"killed\.json is not a measurement"):
            types("bench", "show", str(tmp_path / "runs" / "demo-1:killed"), *form)
