from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.cases import CASES, HOSTILE
from tests.report.make import Made, make, noted, searched, write_run
from trtllm_hpc.bench.results import Interval, OpenLoop, Verdict
from trtllm_hpc.errors import RunNotFound, TrtllmHpcError
from trtllm_hpc.report.html import page
from trtllm_hpc.report.html.chart import Chart, NoChart
from trtllm_hpc.report.html.charts import ReportData, read_report_data, sections_of
from trtllm_hpc.report.html.page import (
    cards,
    drawing_library,
    headline_words,
    report_page,
    write_report,
)


@pytest.fixture(autouse=True)
def _small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing the drawing library takes seconds; what it does is tested in a browser."""
    monkeypatch.setattr(page, "drawing_library", lambda: "/* the library */")


def test_the_header_names_model_nodes_gpus_and_parallelism() -> None:
    header = report_page(report_data(make())).partition("</header>")[0]
    for fact in ("model tiny-llama", "nodes n1, n2", "2 NVIDIA H200", "tensor parallel 2"):
        assert f"<li>{fact}</li>" in header
    assert "ensemble" not in header


def report_data(made: Made) -> ReportData:
    return ReportData("run-1", made.measurement, made.records, made.samples)


def charts(made: Made) -> Iterator[Chart | NoChart]:
    return (chart for section in sections_of(report_data(made)) for chart in section.charts)


def drawn(made: Made, title: str) -> Chart:
    chart = next(chart for chart in charts(made) if chart.title == title)
    assert isinstance(chart, Chart)
    return chart


def left_out(made: Made, title: str) -> str:
    chart = next(chart for chart in charts(made) if chart.title == title)
    assert isinstance(chart, NoChart)
    return chart.reason


# What the page says -----------------------------------------------------------------------------------


def test_the_verdict_comes_first_in_words() -> None:
    made = make(requests=12)
    assert "Valid: these figures may be used." in report_page(report_data(made))
    with_note = made.changed(verdict=Verdict([], [noted("The clock jumped.")]))
    assert "Valid, with notes." in report_page(report_data(with_note))
    bad = made.changed(verdict=Verdict([noted("Too few requests.")]))
    text = report_page(report_data(bad))
    assert text.index("Not valid") < text.index("Too few requests.") < text.index("Headline figures")


def test_the_cards_are_of_the_highest_load_that_the_server_kept_up_with() -> None:
    made = make([OpenLoop(4.0), OpenLoop(8.0), OpenLoop(40.0)], requests=80)
    words = headline_words(report_data(made))
    assert words == "At 8/s, the highest valid load with which the server kept up."
    rate = made.measurement.levels[1].metrics["finished_rate_per_s"]
    throughput = next(cards(report_data(made)))
    assert isinstance(rate, Interval) and throughput.value == f"{rate.mean:.2f}"


def test_the_cards_of_a_search_are_of_what_it_found() -> None:
    words = headline_words(report_data(searched()))
    assert words == "At 12/s, the highest rate found that holds ttft.p99<500ms,tpot.p99<50ms."


def test_the_records_of_a_pass_that_the_summary_does_not_know_are_left_out(tmp_path: Path) -> None:
    """Killed between the two, a measurement leaves records of a level that has no figures."""
    made = make([OpenLoop(4.0), OpenLoop(8.0)], requests=10, warmup=0)
    paths = write_run(tmp_path / "run", made.changed(levels=made.measurement.levels[:1]))
    read = read_report_data(paths, "benchmark")
    assert {record.level for record in read.records} == {0} and len(read.records) == 10
    report_page(read)


def test_without_an_answer_there_is_a_card_for_that_only() -> None:
    found = list(cards(report_data(make(failed_share=1.0))))
    assert [(card.label, card.value, card.note) for card in found] == [("Failed", "100 %", "60 of 60")]


def test_the_page_has_the_settings_that_are_not_the_defaults() -> None:
    text = report_page(report_data(make(requests=12))).replace("<wbr>", "")
    assert "warmup_requests" in text and "exact_output" not in text


# What the charts show ---------------------------------------------------------------------------------


def test_every_chart_is_valid_vega_lite() -> None:
    import altair

    specs = [chart.spec for chart in charts(CASES["search"]()) if isinstance(chart, Chart)]
    assert len(specs) > 10
    for spec in specs:
        altair.Chart.from_dict(spec)


def test_a_curve_needs_two_levels() -> None:
    assert "needs two" in left_out(make(), "Latency against throughput")


def test_a_curve_goes_from_the_lowest_load_to_the_highest_whatever_the_order() -> None:
    rows = drawn(searched(), "TTFT against throughput").datasets["rows"]
    levels = [row["level"] for row in rows if row["statistic"] == "p99"]
    assert levels == ["4/s", "8/s", "12/s", "14/s", "16/s"]


def test_a_distribution_ends_at_the_longest_with_everything() -> None:
    made = make(requests=40)
    rows = drawn(made, "Time to first token (TTFT)").datasets["rows"]
    waits = sorted(1e3 * (r.chunks_s[0] - r.scheduled_s) for r in made.records if r.measured)
    assert [row["ms"] for row in rows] == pytest.approx(waits)
    assert rows[0]["share"] == 1 / 40 and rows[-1]["share"] == 1.0


def test_what_was_not_streamed_has_a_sentence_in_place_of_the_chart() -> None:
    made = make([OpenLoop(4.0), OpenLoop(8.0)], streaming=False)
    for title in ("Time to first token (TTFT)", "TTFT against throughput", "TPOT against throughput"):
        assert "not streamed" in left_out(made, title)
    drawn(made, "End-to-end latency, from schedule")


def test_many_levels_are_thinned_out() -> None:
    chart = drawn(CASES["many levels"](), "End-to-end latency, from schedule")
    levels = {row["level"] for row in chart.datasets["rows"]}
    assert len(levels) == 8 and {"2/s", "24/s"} <= levels


def test_of_thousands_of_requests_the_failed_and_the_slowest_are_drawn_for_sure() -> None:
    made = make([OpenLoop(10.0)], requests=3000, failed_share=0.01)
    chart = drawn(made, "Latency of each request")
    rows = chart.datasets["rows"]
    assert len(rows) == 1500
    assert sum(row["state"] == "failed" for row in rows) == sum(not record.ok for record in made.records)
    slowest = max(record.ended_s - record.scheduled_s for record in made.records)
    assert max(row["ms"] for row in rows) == pytest.approx(1e3 * slowest)


def test_warm_up_and_drain_are_shaded() -> None:
    made = make(requests=10, warmup=3)
    one = made.measurement.levels[0].passes[0]
    rows = drawn(made, "Latency of each request").datasets["bands"]
    assert [(row["begin"], row["end"]) for row in rows] == [
        (one.started_s, one.window.start_s),
        (one.window.end_s, one.ended_s),
    ]


def test_the_server_stands_beside_the_client_on_one_clock() -> None:
    lines = drawn(make(), "Requests in flight").datasets["rows"]
    assert {row["line"] for row in lines} == {"client: outstanding", "server: active", "server: waiting"}
    share = drawn(make(), "KV cache in use").datasets["rows"]
    assert max(row["value"] for row in share) <= 100


def test_a_long_line_keeps_its_peaks() -> None:
    made = make([OpenLoop(1.0)], requests=600)
    peak = max(sample.values["kv_used_share"] for sample in made.samples)
    chart = drawn(made, "KV cache in use")
    assert len(chart.datasets["rows"]) <= 400 < len(made.samples)
    assert max(row["value"] for row in chart.datasets["rows"]) == 100 * peak


# The file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_whole_and_its_data_can_be_read(name: str) -> None:
    text = report_page(report_data(CASES[name]()))
    found = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.S)
    assert found is not None
    plain: dict[str, Any] = json.loads(found[1])
    keys = [chart["key"] for chart in plain["charts"]]
    assert len(keys) == len(set(keys)) and all(f'id="chart-{key}"' in text for key in keys)
    for tag in ("section", "figure", "table", "div", "details", "ul"):
        assert text.count(f"<{tag}") == text.count(f"</{tag}>"), tag


def test_the_file_asks_nothing_of_a_network() -> None:
    text = report_page(report_data(CASES["sweep"]()))
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "default-src 'none'" in text and "unsafe-eval" not in text


def test_a_measurement_that_is_not_there_is_refused(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", make(requests=10))
    with pytest.raises(RunNotFound):
        write_report(paths, "other", tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write_run(tmp_path / "run", make(requests=10))
    monkeypatch.setattr(page, "drawing_library", drawing_library.__wrapped__)
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(TrtllmHpcError, match=r"(?s)is not installed.*pip install 'trtllm-hpc\[report\]'"):
        write_report(paths, "benchmark", tmp_path / "report.html")


def test_json_in_html_cannot_end_its_element() -> None:
    text = page.json_in_html({"words": HOSTILE + "<!--"})
    assert "<" not in text and json.loads(text)["words"] == HOSTILE + "<!--"
