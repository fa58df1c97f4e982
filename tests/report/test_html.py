from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.plans import planned_stage, write_plan
from tests.report.cases import CASES, HOSTILE
from tests.report.make import Made, make, noted, searched, with_adapters, write_run
from trtllm_hpc.bench.levels import ClosedLoop, OpenLoop
from trtllm_hpc.bench.results import Interval, Verdict
from trtllm_hpc.errors import RunNotFound, TrtllmHpcError
from trtllm_hpc.report.html import page
from trtllm_hpc.report.html.chart import Chart, NoChart, round_marks
from trtllm_hpc.report.html.charts import sections_of
from trtllm_hpc.report.html.data import ReportData, read_report_data
from trtllm_hpc.report.html.page import (
    cards,
    drawing_library,
    headline_words,
    report_page,
    write_report,
)
from trtllm_hpc.report.html.tables import level_table, use_table
from trtllm_hpc.runtime.records import RankRecord


@pytest.fixture(autouse=True)
def _small_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing the drawing library takes seconds; what it does is tested in a browser."""
    monkeypatch.setattr(page, "drawing_library", lambda: "/* the library */")


def test_the_drawing_library_is_packed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packed: list[str] = []

    def pack(snippet: str) -> str:
        packed.append(snippet)
        return "é </script> <!--"

    monkeypatch.setattr("vl_convert.javascript_bundle", pack)
    (tmp_path / "no folder").write_text("")
    for cache, times in (("cache", 1), ("cache", 1), ("no folder", 2), ("no folder", 3)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        drawing_library.cache_clear()
        assert drawing_library() == r"é <\/script> <\!--" and len(packed) == times
    drawing_library.cache_clear()


def test_the_header_names_model_nodes_gpus_and_parallelism() -> None:
    header = report_page(report_data(make())).partition("</header>")[0]
    for fact in ("model tiny-llama", "nodes n1, n2", "2 NVIDIA H200", "tensor parallel 2"):
        assert f"<li>{fact}</li>" in header
    assert "ensemble" not in header


def test_the_page_has_figures_by_adapter_if_there_were_adapters() -> None:
    assert "7: red" in report_page(report_data(with_adapters(make(requests=30))))
    assert "By LoRA adapter" not in report_page(report_data(make(requests=30)))


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


class Elements(HTMLParser):
    """Which elements there are, and the text of the page without its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] not in ("script", "style"):
            self.texts.append(data)


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
    assert words.startswith("At 8/s, the highest valid load with which the server kept up.")
    assert "at 40/s, where requests queue up" in words
    rate = made.measurement.levels[1].metrics["finished_rate_per_s"]
    throughput = cards(report_data(made))[0]
    assert throughput.label == "Throughput" and f"{rate.mean:.2f}" == throughput.value  # type: ignore[union-attr]


def test_the_card_of_throughput_says_what_was_really_asked() -> None:
    """A trace brings its own times, and of a ramp the mean counts: the setting is neither."""
    for level in (OpenLoop(4.0, "trace"), OpenLoop(4.0, ramp_to_per_s=40.0)):
        made = make([level])
        asked = made.measurement.levels[0].metrics["asked_rate_per_s"]
        assert isinstance(asked, Interval)
        made.measurement.levels[0].metrics["asked_rate_per_s"] = replace(asked, mean=17.3)
        assert cards(report_data(made))[0].note == "requested 17.3"
    assert cards(report_data(make([ClosedLoop(2)])))[0].note == ""


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
    found = cards(report_data(make(failed_share=1.0)))
    assert [(card.label, card.value, card.note) for card in found] == [("Failed", "100 %", "60 of 60")]


def test_settings_that_were_chosen_stand_apart_from_defaults() -> None:
    text = report_page(report_data(make(requests=12)))
    chosen, others = text.replace("<wbr>", "").split("<h3>Set</h3>")[1].split("<h3>Defaults</h3>")
    assert "warmup_requests" in chosen and "burstiness" not in chosen and "burstiness" in others


def test_long_lists_of_prompts_are_cut() -> None:
    made = make(requests=12)
    prompts = {"workload": {"prompts": [f"prompt {number}" for number in range(10_000)]}}
    text = report_page(report_data(made.changed(settings=prompts)))
    assert "prompt 3, prompt 4" in text and "prompt 9999" not in text


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


SEARCHED = (2.0, 4.0, 8.0, 16.0, 32.0, 24.0, 20.0, 18.0, 17.0, 16.5)
"""Rates in the order of a search."""


def test_a_line_joins_loads_that_are_well_apart() -> None:
    found = drawn(make([OpenLoop(rate) for rate in SEARCHED], repeats=2), "TTFT against throughput")
    rows = [row for row in found.datasets["rows"] if row["statistic"] == "p99"]
    assert [row["level"] for row in rows if not row["joined"]] == ["16.5/s", "17/s"]


def test_levels_stand_in_ascending_order_whatever_the_order_tried() -> None:
    rows = level_table(report_data(searched())).rows
    assert [row[0] for row in rows] == ["4/s", "8/s", "12/s", "14/s", "16/s"]


def test_bars_of_a_curve_are_the_intervals_over_repeats() -> None:
    made = make([OpenLoop(4.0), OpenLoop(8.0)], repeats=3)
    figures = made.measurement.levels[1].metrics["tpot_ms"]
    assert isinstance(figures, dict)
    row = next(
        row
        for row in drawn(made, "TPOT against throughput").datasets["rows"]
        if (row["level"], row["statistic"]) == ("8/s", "p90")
    )
    assert (row["low"], row["ms"], row["high"]) == (
        figures["p90"].low,
        figures["p90"].mean,
        figures["p90"].high,
    )


def test_a_distribution_ends_at_the_longest_with_everything() -> None:
    made = make(requests=40)
    rows = drawn(made, "Time to first token (TTFT)").datasets["rows"]
    waits = sorted(1e3 * (r.chunks_s[0] - r.scheduled_s) for r in made.records if r.measured)
    assert [row["ms"] for row in rows] == pytest.approx(waits)
    assert rows[0]["share"] == 1 / 40 and rows[-1]["share"] == 1.0


def test_thinned_curves_keep_their_ends() -> None:
    made = make(requests=60)
    chart = drawn(made, "Inter-token latency (ITL), all gaps pooled")
    rows = chart.datasets["rows"]
    gaps = [1e3 * (b - a) for r in made.records if r.measured for a, b in pairwise(r.chunks_s)]
    assert len(rows) == 120
    assert [rows[0]["ms"], rows[-1]["ms"]] == pytest.approx([min(gaps), max(gaps)])


def test_what_was_not_streamed_has_a_sentence_in_place_of_the_chart() -> None:
    made = make([OpenLoop(4.0), OpenLoop(8.0)], streaming=False)
    for title in ("Time to first token (TTFT)", "TTFT against throughput", "TPOT against throughput"):
        assert "not streamed" in left_out(made, title)
    drawn(made, "End-to-end latency, from schedule")


def test_many_levels_are_thinned_out() -> None:
    chart = drawn(CASES["many levels"](), "End-to-end latency, from schedule")
    levels = {row["level"] for row in chart.datasets["rows"]}
    assert len(levels) == 8 and {"2/s", "24/s"} <= levels


def test_levels_of_one_name_are_told_apart() -> None:
    assert report_data(make([ClosedLoop(2), ClosedLoop(2), ClosedLoop(4)])).labels == [
        "2 at once (1)",
        "2 at once (2)",
        "4 at once",
    ]


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


def test_what_the_server_does_not_tell_is_said() -> None:
    assert "has no metric" in left_out(CASES["without samples"](), "KV cache in use")


def test_a_long_line_keeps_its_peaks() -> None:
    made = make([OpenLoop(1.0)], requests=600)
    peak = max(sample.values["kv_used_share"] for sample in made.samples)
    chart = drawn(made, "KV cache in use")
    assert len(chart.datasets["rows"]) <= 400 < len(made.samples)
    assert max(row["value"] for row in chart.datasets["rows"]) == 100 * peak


# From submit to ready ---------------------------------------------------------------------------------


def test_gpu_hours_of_each_stage_come_from_the_events(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", make(requests=10))
    serve = planned_stage("serve", nodes=2, gpus_per_node=4)
    write_plan(paths, stages=(planned_stage("build", gpus_per_node=1), serve, planned_stage("companion")))
    for rank in (0, 1):
        gpus = [{"uuid": f"GPU-{rank}", "total_s": 10.0, "total_j": 25_000.0, "total_peak_w": 2800.0}]
        RankRecord("serve", rank, 2, "", f"n{rank}", 1, 0.0, gpus=gpus).write(
            paths.rank_record("serve", rank)
        )
    data = read_report_data(paths, "benchmark")
    assert use_table(data).rows == [
        ["build", "5.00", "31.0", "1", "0.00861", "-", "-"],
        ["serve", "37.0", "17.0", "8", "0.0378", "5,000", "5,600"],
        ["companion", "37.0", "0", "0", "0", "-", "-"],
        ["all stages", "", "", "", "0.0464", "", ""],
    ]
    assert use_table(data).title in report_page(data)


# The file ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_whole_and_its_data_can_be_read(name: str) -> None:
    text = report_page(report_data(CASES[name]()))
    found = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', text, re.S)
    assert found is not None
    plain: dict[str, Any] = json.loads(found[1])
    # Those who do not see a chart have its words.
    assert all(len(chart["spec"]["description"]) > 30 for chart in plain["charts"])
    keys = [chart["key"] for chart in plain["charts"]]
    assert len(keys) == len(set(keys)) and all(f'id="chart-{key}"' in text for key in keys)
    for tag in ("section", "figure", "table", "div", "details", "ul"):
        assert text.count(f"<{tag}") == text.count(f"</{tag}>"), tag


def test_nothing_hostile_becomes_an_element() -> None:
    text = report_page(report_data(CASES["hostile"]()))
    elements = Elements(text)
    assert "img" not in elements.tags
    assert elements.tags.count("script") == 3
    assert "window.broken" in "".join(elements.texts) and "49" not in headline_words(
        report_data(CASES["hostile"]())
    )


def test_the_file_asks_nothing_of_a_network() -> None:
    text = report_page(report_data(CASES["sweep"]()))
    assert not re.search(r'(src|href)="(?!#|data:)', text)
    assert "default-src 'none'" in text and "unsafe-eval" not in text


def test_the_page_is_written_for_a_run(tmp_path: Path) -> None:
    paths = write_run(tmp_path / "run", make(requests=10))
    to = tmp_path / "report.html"
    write_report(paths, "benchmark", to)
    assert "Server metrics" in to.read_text() and read_report_data(paths, "benchmark").run == "run"


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


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [
        (3, 40, [2, 5, 10, 20, 50]),
        (10, 1000, [10, 20, 50, 100, 200, 500, 1000]),
        (0.3, 20000, [0.1, 1, 10, 100, 1000, 10000, 100000]),
        (1, 1, [1]),
    ],
)
def test_marks_of_a_logarithmic_axis(low: float, high: float, marks: list[float]) -> None:
    assert round_marks(low, high) == pytest.approx(marks)


def test_json_in_html_cannot_end_its_element() -> None:
    text = page.json_in_html({"words": HOSTILE + "<!--"})
    assert "<" not in text and json.loads(text)["words"] == HOSTILE + "<!--"
