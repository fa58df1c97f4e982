"""The report of a sweep as a page, and the points as files for other programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from tests.report.browser import Opened, chromium, find_chromium, opened
from tests.report.make import Made
from tests.sweeps.make import (
    BATCH,
    FAILED,
    FINDING,
    REFUSED,
    TP,
    WrittenSweep,
    grid,
    many,
    measured,
    with_invalid_level,
    write_sweep,
)
from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.cli.sweep_saved import report_command
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

    found = charts(grid(tmp_path / "s"), gpu_price=2.5)
    assert len(found) == 6
    for chart in found.values():
        assert isinstance(chart, Chart)
        altair.Chart.from_dict(chart.spec)


def test_a_chart_without_figures_says_what_is_missing(tmp_path: Path) -> None:
    plain = measured(1.0, slo=None, streaming=False)
    found = charts(write_sweep(tmp_path / "s", {"a": ({TP: 2}, plain)}, keys=[TP]))
    reasons = {title: chart.reason for title, chart in found.items() if isinstance(chart, NoChart)}
    assert set(reasons) == set(found) and len(found) == 5
    assert (
        "--slo" in reasons["Goodput over load"]
        and "--gpu-price" in reasons["Cost of a million output tokens"]
    )
    assert "streamed" in reasons["Throughput and interactivity"]


def test_the_map_has_a_figure_or_a_word_for_each_variant(tmp_path: Path) -> None:
    [cells] = [
        chart.datasets["cells"]
        for chart in charts(grid(tmp_path / "s"), slo="tpot.p99<19ms").values()
        if isinstance(chart, Chart) and "cells" in chart.datasets
    ]
    shown = {row["name"]: row["shown"] for row in cells}
    assert shown["tp2-bs8"] != shown["tp4-bs8"]
    assert [shown[name] for name in ("tp4-bs16", "tp4-bs32")] == ["failed", "refused"]
    assert {row["x"] for row in cells} == {"2", "4"} and {row["y"] for row in cells} == {"8", "16", "32"}
    assert cells[0]["shown"] == "SLO not held" or cells[0]["value"] > 0


def test_a_page_of_64_variants_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "drawing_library", lambda: "/* the library */")
    sweep = many(tmp_path / "s")
    write_report(sweep.results(), sweep.paths.report)
    assert sweep.paths.report.stat().st_size < 400_000


# Files ------------------------------------------------------------------------------------------------


def test_the_frame_has_a_row_for_each_level(tmp_path: Path) -> None:
    frame = grid(tmp_path / "s").results(gpu_price=2.5).frame()
    assert list(frame)[:5] == ["variant", TP, BATCH, "level", "load"] and len(frame) == 12


def test_the_command_writes_what_was_asked_for(
    tmp_path: Path, fake_slurm: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "drawing_library", lambda: "/* the library */")
    paths = grid(tmp_path / "s").paths
    done = CliRunner().invoke(report_command, [str(paths.folder)])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == str(paths.report) and "Best under" in done.stdout.splitlines()[1]
    paths.report.unlink()
    printed = CliRunner().invoke(report_command, [str(paths.folder), "--json", "--gpu-price", "2"])
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
        "many": many(folder / "many"),
        "nothing valid": write_sweep(folder / "bad", {"a": ({TP: 2}, bad), "b": ({TP: 4}, bad)}, keys=[TP]),
        "nothing measured": write_sweep(folder / "none", {"a": ({TP: 2, BATCH: 1}, None)}),
        "hostile": write_sweep(folder / "hostile", hostile, states={"b": ("failed", HOSTILE)}),
    }
    for sweep in sweeps.values():
        write_report(sweep.results(gpu_price=2.5), sweep.paths.report)
    return {name: sweep.paths.report for name, sweep in sweeps.items()}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened_browser:
        yield opened_browser


in_browser = pytest.mark.skipif(find_chromium() is None, reason="no Chromium: apt-get install chromium")


OTHERS = [
    pytest.param(name, marks=pytest.mark.thorough)
    for name in ("many", "nothing valid", "nothing measured", "hostile")
]


@pytest.mark.browser
@in_browser
@pytest.mark.parametrize("name", ["grid", *OTHERS])
def test_every_page_is_drawn_without_a_complaint_or_a_request(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    with opened(browser, pages[name]) as report:
        for width, scheme in ((1280, "light"), (390, "dark")):
            if width == 390:
                report.show(390, scheme)  # type: ignore[arg-type]
            assert report.complaints == [] and report.requests == [pages[name].as_uri()]
            assert all(report.marks().values()) and report.overflow() == 0
        assert report.page.evaluate("() => window.broken") is None and report.page.locator("img").count() == 0
        assert len(report.marks()) == {"nothing valid": 5, "nothing measured": 0}.get(name, 6)


def column(report: Opened, heading: str) -> list[str]:
    cells: list[str] = report.page.evaluate(
        """heading => {
          const table = document.querySelector("table.sortable");
          const place = [...table.tHead.rows[0].cells].findIndex(it => it.textContent === heading);
          return [...table.tBodies[0].rows].map(row => row.cells[place].textContent.trim());
        }""",
        heading,
    )
    return cells


@pytest.mark.thorough
@pytest.mark.browser
@in_browser
def test_the_table_is_sorted_with_mouse_and_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["grid"]) as report:
        page = report.page
        header = page.get_by_role("columnheader", name="tokens/s/user", exact=True)
        button = header.get_by_role("button")
        button.click()
        users = [float(text) for text in column(report, "tokens/s/user")]
        assert header.get_attribute("aria-sort") == "descending" and users == sorted(users, reverse=True)
        assert column(report, "variant")[0] == "tp4-bs8"
        page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == "ascending"
        assert column(report, "tokens/s/user") == [
            f"{user:.1f}" if user < 100 else f"{user:.0f}" for user in users[::-1]
        ]
        page.keyboard.press("Shift+Tab")
        for _ in range(20):  # to the first heading
            if page.evaluate("() => document.activeElement.textContent") == "variant":
                break
            page.keyboard.press("Shift+Tab")
        page.keyboard.press("Space")
        # As numbers within names, not letter by letter: bs8 before bs16.
        assert list(dict.fromkeys(column(report, "variant"))) == [
            "tp2-bs8",
            "tp2-bs16",
            "tp2-bs32",
            "tp4-bs8",
        ]
        assert (
            page.locator("[aria-sort=ascending]").count() == 1 and header.get_attribute("aria-sort") == "none"
        )
        assert report.complaints == []


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
