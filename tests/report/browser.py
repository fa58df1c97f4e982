"""A headless Chromium that notes everything that a page complains of or asks for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# A single letter less than a mark a group: paths of axes and legends are in groups of other classes.
_MARKS = """() => Object.fromEntries([...document.querySelectorAll('.chart')].map(chart => [chart.id,
  [...chart.querySelectorAll('svg g[class*="mark-"][role="graphics-object"]')]
    .flatMap(group => [...group.querySelectorAll('path, line, text')])
    .filter(mark => !mark.closest('.role-axis, .role-legend')).length]))"""

_DRAWN = "() => document.documentElement.dataset.charts === 'drawn'"


def find_chromium() -> str | None:
    """Path of the browser, if there is one on this machine."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


@dataclass
class Opened:
    """A page, with what it has said and asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def marks(self) -> dict[str, int]:
        """How many marks each chart has, by the id of its element."""
        found: dict[str, int] = self.page.evaluate(_MARKS)
        return found

    def narrowest(self) -> float:
        """Of all charts the smallest share of its element's width that its plot takes."""
        share: float = self.page.evaluate(
            "() => Math.min(...[...document.querySelectorAll('.chart')].map(chart =>"
            " chart.querySelector('svg .root path.background').getBoundingClientRect().width"
            " / chart.clientWidth))"
        )
        return share

    def show(self, width: int) -> None:
        """Change the window's width, which all charts follow."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.wait_for_function(
            "width => [...document.querySelectorAll('.chart svg')].every(svg => svg.clientWidth < width)",
            arg=width,
        )

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        wide: int = self.page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wide


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser while it is open."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Browser, file: Path, width: int = 1280) -> Iterator[Opened]:
    """The file in a new window, once its charts are drawn."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    found = Opened(page)
    page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: found.complaints.append(str(error)))
    page.on("dialog", lambda dialog: found.complaints.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: found.requests.append(request.url))
    try:
        page.goto(file.as_uri())
        page.wait_for_function(_DRAWN)
        yield found
    finally:
        page.close()
