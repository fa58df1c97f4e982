"""Take the screenshots of ``docs/how-to/report.md``: ``python -m tests.report.screenshots [RUN] [NAME]``.

RUN is a run folder; without it, the screenshots are of the tests' own sweep.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.report.browser import chromium, opened
from tests.report.cases import sweep
from tests.report.make import write_run
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.html.page import write_report

FOLDER = Path(__file__).parents[2] / "docs" / "img"
WIDTHS = {1280: 3300, 390: 3600}
"""Widths of the windows with how many pixels of the page are shown, from the top."""
_COLOURS = 128
"""Of an image; enough for flat areas and lines, and a fraction of the size."""


def take(report: Path, folder: Path) -> list[Path]:
    """One image for each width."""
    taken = []
    with chromium() as browser:
        for width, most in WIDTHS.items():
            file = folder / f"report-{width}.png"
            with opened(browser, report, width) as page:
                tall = page.page.evaluate("() => document.documentElement.scrollHeight")
                clip = {"x": 0, "y": 0, "width": width, "height": min(tall, most)}
                page.page.screenshot(path=file, full_page=True, clip=clip)  # type: ignore[arg-type]
            _shrink(file)
            taken.append(file)
    return taken


def _shrink(file: Path) -> None:
    from PIL import Image

    with Image.open(file) as image:
        small = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    small.save(file, optimize=True)


def main(arguments: list[str]) -> None:
    """Write them into ``docs/img``."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "tiny-llama"
        paths = RunPaths(arguments[0]) if arguments else write_run(made, sweep())
        name = arguments[1] if len(arguments) > 1 else COMPANION_MEASUREMENT
        report = Path(folder) / "report.html"
        write_report(paths, name, report)
        for file in take(report, FOLDER):
            print(f"{file}: {file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
