"""Measurements read from Python: figures, tables of pandas, and how they are found."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import trtllm_hpc
from tests.plans import write_plan
from tests.report.make import Made, make, write_run
from trtllm_hpc.bench.results import OpenLoop
from trtllm_hpc.errors import RunNotFound, TrtllmHpcError


@pytest.fixture
def made() -> Made:
    return make([OpenLoop(4.0), OpenLoop(8.0)], repeats=2, requests=10, warmup=2, failed_share=0.2)


@pytest.fixture
def measurement(tmp_path: Path, made: Made) -> trtllm_hpc.Measurement:
    paths = write_run(tmp_path / "runs" / "demo-1", made)
    write_plan(paths)
    return trtllm_hpc.Measurement.find("demo-1", tmp_path / "runs")


def test_a_row_for_each_request(measurement: trtllm_hpc.Measurement, made: Made) -> None:
    table = measurement.to_pandas()
    assert len(table) == len(made.records) == 2 * 2 * 12
    assert sorted(table.level.unique()) == ["4/s", "8/s"] and sorted(table.repeat.unique()) == [0, 1]
    assert (table.phase == "measured").sum() == 40
    for (_, row), record in zip(table.iterrows(), made.records, strict=True):
        assert (row.status, row["index"]) == (record.status, record.index)
        if record.ok:
            assert row.latency_ms == pytest.approx((record.ended_s - record.scheduled_s) * 1e3)
            assert record.first_token_s is not None
            assert row.ttft_ms == pytest.approx((record.first_token_s - record.scheduled_s) * 1e3)
            assert row.output_tokens == record.output_tokens
        else:
            assert row.isna().latency_ms and row.isna().ttft_ms
            assert row.client_lateness_ms == pytest.approx((record.sent_s - record.scheduled_s) * 1e3)


def test_a_row_for_each_level(measurement: trtllm_hpc.Measurement, made: Made) -> None:
    table = measurement.to_pandas("levels").set_index("level")
    assert list(table.index) == ["4/s", "8/s"] and list(table.measured) == [20, 20]
    failed = [sum(it.measured and not it.ok for it in made.records if it.level == level) for level in (0, 1)]
    assert list(table.failed) == failed and sum(failed) > 0
    latencies = [it.metrics["latency_ms"] for it in made.measurement.levels[1].passes]
    p99s = [it.p99 for it in latencies if not isinstance(it, float)]
    assert table.loc["8/s", "latency_ms.p99"] == pytest.approx(sum(p99s) / 2)


def test_the_figures_are_those_of_the_headline_level(measurement: trtllm_hpc.Measurement) -> None:
    table = measurement.to_pandas("levels").set_index("level")
    headline = "8/s" if "at 8/s" in str(measurement) else "4/s"
    assert measurement.figures["ttft_ms.p50"] == table.loc[headline, "ttft_ms.p50"]
    assert measurement.figures["finished_rate_per_s"] == table.loc[headline, "finished_rate_per_s"]


def test_without_pandas_the_sentence_names_the_extra(
    measurement: trtllm_hpc.Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TrtllmHpcError, match="pandas") as missing:
        measurement.to_pandas()
    assert missing.value.hint == "pip install 'trtllm-hpc[notebook]'"


def test_a_measurement_is_found_by_run_name_and_file(
    measurement: trtllm_hpc.Measurement, tmp_path: Path
) -> None:
    find, runs = trtllm_hpc.Measurement.find, tmp_path / "runs"
    assert find("latest:benchmark", runs).summary == measurement.summary
    newer = measurement.paths.measurement("newer")
    shutil.copy(measurement.files.requests, newer.requests)
    assert find("latest", runs).name == "benchmark", "the newer has not finished"
    shutil.copy(measurement.files.summary, newer.summary)
    assert find("latest", runs).name == "newer"
    copy = tmp_path / "copied.json"
    shutil.copy(measurement.files.summary, copy)
    assert find(copy).summary == measurement.summary and find(copy).records == []
    with pytest.raises(RunNotFound, match="is not in a run folder") as refused:
        find(copy).report()
    assert "copied.json" in (refused.value.hint or "")
    with pytest.raises(RunNotFound, match="no measurement called 'sweep', only newer, benchmark"):
        find("demo-1:sweep", runs)
