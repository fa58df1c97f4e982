from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from tests.report.cases import CASES
from tests.report.make import Made, make, noted, searched, write_run
from trtllm_hpc.bench.results import ClosedLoop, Interval, OpenLoop, Verdict
from trtllm_hpc.cli.submit import print_results
from trtllm_hpc.report.formatting import quantity
from trtllm_hpc.report.measurement_table import measurement_text, sentences


def text(made: Made) -> str:
    return measurement_text(made.measurement)


def started(made: Made) -> str:
    return datetime.fromtimestamp(made.measurement.started_at).strftime("%Y-%m-%d %H:%M:%S")


def lines(table: str, begin: str) -> list[str]:
    return [line for line in table.splitlines() if line.startswith(begin)]


def row(table: str, name: str) -> list[str]:
    return next(line for line in table.splitlines() if line.startswith(name)).split()


def test_one_level_as_a_whole() -> None:
    made = make(requests=20, warmup=2)
    result = made.measurement.levels[0]
    table = text(made)
    first, second, third = table.splitlines()[:3]
    assert first == f"measurement benchmark, started {started(made)}"
    assert second == "model tiny-llama, nodes n1, n2, 2 NVIDIA H200, tensor parallel 2"
    assert third == "grpc, streaming; latencies in ms"
    assert row(table, "8/s")[1:4] == ["0", "of", "20"]
    ttft = result.metrics["ttft_ms"]
    assert isinstance(ttft, dict)
    assert row(table, "TTFT (ms)")[2:8] == [
        f"{ttft[name].mean:.1f}" for name in ("mean", "p50", "p90", "p95", "p99", "max")
    ]
    assert "counted by server" in table and table.endswith("valid: the figures may be used\n")


def test_what_was_not_streamed_has_no_rows_of_tokens() -> None:
    table = text(make(streaming=False))
    assert not any(word in table for word in ("TTFT", "TPOT", "ITL")) and "latency (ms)" in table


def test_a_measurement_that_nothing_answered() -> None:
    table = text(make(failed_share=1.0, error="[bold]gone[/bold]"))
    assert "not valid: 60 requests were measured, and none was answered." in table
    assert "failed: 60 times [bold]gone[/bold]" in table
    assert "latency (ms)" not in table and "client late (ms)" in table


def test_a_measurement_that_was_ended_at_once() -> None:
    table = text(CASES["interrupted"]())
    assert "not valid: Ended by Ctrl-C." in table and "TTFT (ms)" not in table


def test_levels_that_are_not_valid_are_marked() -> None:
    made = make([ClosedLoop(1), ClosedLoop(2)])
    second = made.measurement.levels[1]
    bad = replace(
        second, passes=[replace(second.passes[0], verdict=Verdict([noted("The client was the limit.")]))]
    )
    table = text(
        made.changed(levels=[made.measurement.levels[0], bad], verdict=Verdict([], [noted("Look out.")]))
    )
    assert "2 at once !" in table and "!: the figures of this level are not valid" in table
    assert "note: Look out." in table


def test_a_search_says_what_it_found() -> None:
    found = "search: ttft.p99<500ms,tpot.p99<50ms holds at 12 requests/s, and fails at 14."
    assert found in text(searched())


def test_a_level_whose_requests_failed_keeps_no_limit() -> None:
    slo = "latency.p99<100s"
    [most] = lines(text(make(slo=slo, failed_share=0.9)), "slo")
    assert most.startswith("slo does not hold at 8/s: ") and "requests failed and so meet no limit" in most
    [few] = lines(text(make(slo=slo, requests=2000, failed_share=0.002)), "slo")
    assert " holds at 8/s (for the requests that were answered; " in few


def test_each_level_says_whether_it_keeps_the_limits_and_which_it_breaks() -> None:
    levels = [OpenLoop(2.0), OpenLoop(4.0), OpenLoop(24.0)]
    made = make(levels, repeats=2, requests=80, slo="ttft.p99<500ms,latency.max<10s")
    table = text(made)
    holding, broken = (line for line in sentences(made.measurement) if line.startswith("slo"))
    assert holding == "slo ttft.p99<500ms,latency.max<10s holds at 2/s, 4/s"
    assert broken.startswith("slo does not hold at 24/s, in 2 of 2 passes: ttft.p99 is ")
    assert broken.endswith("), not < 500ms.") and "latency.max" not in broken
    for label, result in zip(("2/s", "24/s"), made.measurement.levels[::2], strict=True):
        rates = [result.metrics[key] for key in ("finished_rate_per_s", "goodput_per_s")]
        assert row(table, label)[4:6] == [quantity(rate.mean) for rate in rates if isinstance(rate, Interval)]


def test_without_limits_nothing_is_said_of_them() -> None:
    assert "goodput" not in text(make()) and not lines(text(make()), "slo")


@pytest.mark.parametrize("slo", [None, "ttft.p99<500ms"])
@pytest.mark.parametrize("width", [60, 100])
def test_it_fits_its_width(width: int, slo: str | None) -> None:
    made = make([OpenLoop(1000.0), OpenLoop(20000.0)], repeats=2, failed_share=0.2, slo=slo)
    table = measurement_text(made.measurement, width)
    assert all(len(line) <= width for line in table.splitlines())
    assert "…" not in table
    assert row(table, "at 1000/s")[-1] == "max"
    failed = sum(one.failed for one in made.measurement.levels[1].passes)
    assert failed and row(table, "20000/s")[1:4] == [str(failed), "of", "120"]


def test_the_summary_of_a_run_ends_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = make(requests=12)
    print_results(write_run(tmp_path / "run", made))
    printed = capsys.readouterr().out
    assert printed.startswith("endpoint: http 10.0.0.1:1") and text(made) in printed
