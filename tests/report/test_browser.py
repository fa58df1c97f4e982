from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.browser import Opened, chromium, find_chromium, opened
from tests.report.cases import CASES, HOSTILE
from tests.report.make import write_run
from trtllm_hpc.report.html.page import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium: apt-get install chromium"),
]

CHARTS = {"single": 8, "sweep": 11, "not streamed": 6, "nothing answered": 4, "search": 11}
"""How many charts some of the cases have; the others of them are sentences."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened_browser:
        yield opened_browser


class Reports(dict[str, Path]):
    """The report of each case, written when a test asks for it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> Path:
        # A folder may have such a name.
        run = "<img src=x onerror='window.broken = 3'>" if name == "hostile" else name
        paths = write_run(self.folder / run, CASES[name]())
        self[name] = self.folder / f"{name}.html"
        write_report(paths, "benchmark", self[name])
        return self[name]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    return Reports(tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="module")
def sweep(browser: Browser, reports: Reports) -> Iterator[Opened]:
    """One window for the tests that only look; those that make it narrow come last."""
    with opened(browser, reports["sweep"]) as report:
        yield report


OTHERS = [pytest.param(name, marks=pytest.mark.thorough) for name in CASES if name != "sweep"]


@pytest.mark.parametrize("name", ["sweep", *OTHERS])
def test_every_chart_is_drawn_without_a_complaint_or_a_request(
    browser: Browser, reports: Reports, name: str
) -> None:
    with opened(browser, reports[name]) as report:
        for width in (1280, 390):
            report.show(width)
            assert report.complaints == []
            assert report.requests == [reports[name].as_uri()]
            marks = report.marks()
            assert marks and all(marks.values()), marks
            assert report.narrowest() > 0.7
            assert len(marks) == CHARTS.get(name, len(marks))
            assert report.overflow() == 0


@pytest.mark.thorough
def test_headings_and_charts_can_be_read_out(sweep: Opened) -> None:
    levels = sweep.page.evaluate(
        "() => [...document.querySelectorAll('h1, h2, h3')].map(heading => +heading.tagName[1])"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    labels = sweep.page.evaluate(
        "() => [...document.querySelectorAll('.chart')].map(chart => chart.ariaLabel)"
    )
    assert len(labels) == 11 and all(labels) and len(set(labels)) == 11


def test_hostile_text_stays_text(browser: Browser, reports: Reports) -> None:
    with opened(browser, reports["hostile"]) as report:
        failed = report.page.locator('#chart-time-latency .mark-symbol path[aria-label*="failed"]').first
        failed.hover(force=True)
        report.page.wait_for_selector("#vg-tooltip-element.visible")
        assert "onerror" in report.page.inner_text("#vg-tooltip-element")
        assert report.page.evaluate("() => window.broken") is None
        assert report.page.locator("img").count() == 0
        assert HOSTILE.split("\u2028")[0] in report.page.inner_text(".verdict")


@pytest.mark.thorough
def test_the_page_may_run_no_other_script(browser: Browser, reports: Reports) -> None:
    with opened(browser, reports["single"]) as report:
        report.page.evaluate(
            "() => { const script = document.createElement('script');"
            " script.textContent = 'window.broken = 4'; document.body.append(script); }"
        )
        assert report.page.evaluate("() => window.broken") is None
        assert any("Content Security Policy" in complaint for complaint in report.complaints)


def test_a_page_takes_about_a_megabyte(reports: Reports) -> None:
    assert reports["single"].stat().st_size < 1.1e6
    assert reports["many levels"].stat().st_size < 1.5e6
