"""The report of a sweep as a page, and the points as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.report.browser import chromium, find_chromium, opened
from tests.report.make import Made
from tests.sweeps.make import (
    BATCH,
    FAILED,
    FINDING,
    REFUSED,
    TP,
    WrittenSweep,
    grid,
    measured,
    with_invalid_level,
    write_sweep,
)
from trtllm_hpc.bench.results import OpenLoop
from trtllm_hpc.cli.sweep import report_command
from trtllm_hpc.report.html import page
from trtllm_hpc.report.html.chart import Chart, NoChart
from trtllm_hpc.sweeps.page import sections_of, write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HOSTILE = "</script><img src=x onerror='window.broken = 1'>{{ 7 * 7 }}"


def charts(sweep: WrittenSweep, **options: Any) -> dict[str, Chart | NoChart]:
    sections = sections_of(sweep.results(**options))
    return {chart.title: chart for section in sections for chart in section.charts}


# The page ---------------------------------------------------------------------------------------------


def test_every_chart_is_valid_vega_lite(tmp_path: Path) -> None:
    import altair

    found = charts(grid(tmp_path / "s"))
    assert len(found) == 4
    for chart in found.values():
        assert isinstance(chart, Chart)
        altair.Chart.from_dict(chart.spec)


def test_a_chart_without_figures_says_what_is_missing(tmp_path: Path) -> None:
    plain = measured(1.0, slo=None, streaming=False)
    found = charts(write_sweep(tmp_path / "s", {"a": ({TP: 2}, plain)}, keys=[TP]))
    reasons = {title: chart.reason for title, chart in found.items() if isinstance(chart, NoChart)}
    assert set(reasons) == set(found) and len(found) == 4
    assert "--slo" in reasons["Goodput over load"]
    assert "streamed" in reasons["Throughput and interactivity"]


def test_levels_that_miss_the_slo_are_hollow_and_off_the_frontier(tmp_path: Path) -> None:
    results = grid(tmp_path / "s").results(slo="ttft.p99<60ms")
    chart = next(sections_of(results)).charts[0]
    assert isinstance(chart, Chart)
    rows = chart.datasets["points"]
    assert {row["held"] for row in rows if not row["frontier"]} == {True, False}
    assert all(row["held"] for row in rows if row["frontier"])
    assert results.best.ranking[0].variant in {row["variant"] for row in rows if row["frontier"]}
    assert '"filled": false' in json.dumps(chart.spec)


# Files ------------------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_level(tmp_path: Path) -> None:
    rows = [point.row() for point in grid(tmp_path / "s").results().points]
    assert list(rows[0])[:5] == ["variant", TP, BATCH, "level", "load"] and len(rows) == 12


def test_the_command_writes_what_was_asked_for(
    tmp_path: Path, fake_slurm: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "drawing_library", lambda: "/* the library */")
    paths = grid(tmp_path / "s").paths
    done = CliRunner().invoke(report_command, [str(paths.folder)])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == str(paths.report) and "Best under" in done.stdout.splitlines()[1]
    paths.report.unlink()
    printed = CliRunner().invoke(report_command, [str(paths.folder), "--json"])
    found = json.loads(printed.stdout)
    assert len(found["points"]) == 12 and found["best"]["ranking"][0]["variant"] == "tp2-bs32"
    assert not paths.report.exists()


# In a browser -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sweeps")
    bad = with_invalid_level(measured(1.0, levels=(OpenLoop(4.0),)), 0)
    hostile: dict[str, tuple[dict[str, Any], Made | None]] = {
        "a": ({TP: 4, BATCH: HOSTILE}, measured(1.0)),
        "b": ({TP: 2, BATCH: 4}, None),
    }
    sweeps = {
        "grid": grid(folder / "grid"),
        "nothing valid": write_sweep(folder / "bad", {"a": ({TP: 2}, bad), "b": ({TP: 4}, bad)}, keys=[TP]),
        "nothing measured": write_sweep(folder / "none", {"a": ({TP: 2, BATCH: 1}, None)}),
        "hostile": write_sweep(folder / "hostile", hostile, states={"b": ("failed", HOSTILE)}),
    }
    for sweep in sweeps.values():
        write_report(sweep.results(), sweep.paths.report)
    return {name: sweep.paths.report for name, sweep in sweeps.items()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened_browser:
        yield opened_browser


in_browser = pytest.mark.skipif(find_chromium() is None, reason="no Chromium: apt-get install chromium")


OTHERS = [
    pytest.param(name, marks=pytest.mark.thorough)
    for name in ("nothing valid", "nothing measured", "hostile")
]


@pytest.mark.browser
@in_browser
@pytest.mark.parametrize("name", ["grid", *OTHERS])
def test_every_page_is_drawn_without_a_complaint_or_a_request(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    with opened(browser, pages[name]) as report:
        for width in (1280, 390):
            report.show(width)
            assert report.complaints == [] and report.requests == [pages[name].as_uri()]
            assert all(report.marks().values()) and report.overflow() == 0
        assert report.page.evaluate("() => window.broken") is None and report.page.locator("img").count() == 0
        assert len(report.marks()) == (0 if name == "nothing measured" else 4)


@pytest.mark.thorough
@pytest.mark.browser
@in_browser
def test_the_page_names_the_best_variant_and_what_is_without_figures(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages["grid"]) as report:
        text = report.page.inner_text("main")
        assert "tp2-bs32" in report.page.inner_text(".verdict h2")
        for shown in (FAILED, REFUSED, FINDING, "tp4-bs32: refused", "tp2-bs8 (24 at once)"):
            assert shown in text
        headings = report.page.inner_text("table.sortable thead")
        assert TP.replace(".", ".") in headings and "name" not in headings
        box = report.page.locator(".scroll:has(.sortable)")
        assert box.evaluate("it => it.scrollWidth - it.clientWidth") == 0, "a column is cut at 1280 pixels"
        # Of its twelve levels three miss the SLO, and one is not valid, which is a cross.
        for fill, count in (('[fill="transparent"]', 4), (':not([fill="transparent"])', 8)):
            points = report.page.locator(f"#chart-frontier .mark-symbol.role-mark path[aria-label]{fill}")
            assert points.count() == count
        point = report.page.locator("#chart-frontier .mark-symbol path").first
        point.hover(force=True)
        report.page.wait_for_selector("#vg-tooltip-element.visible")
        assert "tp2-bs8" in report.page.inner_text("#vg-tooltip-element")
    with opened(browser, pages["hostile"]) as report:
        assert HOSTILE in report.page.inner_text("main")
