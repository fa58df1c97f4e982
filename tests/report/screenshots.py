"""Take the pictures of the site: ``python -m tests.report.screenshots [RUN [FAILED]]``.

RUN is the folder of a measured run: its report is taken in two widths. FAILED is the folder of a run that has
failed: the terminal shows RUN's figures, and FAILED's logs with the cause. Without RUN, the pictures are of
the tests' own sweep, and the terminal is left out. The report of variants is always of the tests' own.
"""

from __future__ import annotations

import html
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.report.browser import chromium, opened
from tests.report.cases import sweep
from tests.report.make import write_run
from tests.sweeps.make import grid
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.html.page import write_report
from trtllm_hpc.sweeps.page import write_report as write_sweep_report

FOLDER = Path(__file__).parents[2] / "docs" / "img"
WIDTHS = {1280: 3300, 390: 3600}
"""Widths of the windows with how many pixels of the page are shown, from the top."""
_COLOURS = 128
"""Of an image; enough for flat areas and lines, and a fraction of the size."""

_TOP_OF_SWEEP = 1230
"""Height of the best variant, the frontier and the map."""
_TOP = 1020
"""Height of the verdict, the headline figures and the first charts."""
_COLUMNS = 124
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
_TERMINAL = """<pre style="display: inline-block; margin: 0; padding: 14px 18px; background: #1e1e2e;
color: #e6e6ef; font: 13px/1.35 'DejaVu Sans Mono', monospace">{text}</pre>"""


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
    return [*taken, _top(taken[0], folder / "report-top.png")]


def _top(whole: Path, file: Path) -> Path:
    """Keep the top of the wide picture, for the README."""
    from PIL import Image

    with Image.open(whole) as image:
        image.crop((0, 0, image.width, _TOP)).save(file, optimize=True)
    return file


def take_variants(folder: Path) -> Path:
    """One image of the top of a sweep's report."""
    file = folder / "sweep-report.png"
    with tempfile.TemporaryDirectory() as written, chromium() as browser:
        sweep = grid(Path(written) / "chat-grid")
        write_sweep_report(sweep.results(), sweep.paths.report)
        with opened(browser, sweep.paths.report) as page:
            clip = {"x": 0, "y": 0, "width": 1280, "height": _TOP_OF_SWEEP}
            page.page.screenshot(path=file, full_page=True, clip=clip)  # type: ignore[arg-type]
    _shrink(file)
    return file


def take_terminal(commands: list[list[str]], folder: Path) -> Path:
    """Return an image of a terminal in which the program was called with each list of words."""
    lines = []
    for words in commands:
        called = shlex.join([sys.executable, "-m", "trtllm_hpc", *words])
        terminal = ["script", "-qec", f"stty cols {_COLUMNS}; {called}", "/dev/null"]
        done = subprocess.run(terminal, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        printed = _CONTROL.sub("", done.stdout).rstrip("\n")
        shown = [word if "/" not in word else Path(word).name for word in words]
        lines += [f"$ trtllm-hpc {' '.join(shown)}", printed, ""]
    text = html.escape("\n".join(lines[:-1]))
    file = folder / "terminal.png"
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 600, "height": 100})
        page.set_content(_TERMINAL.format(text=text))
        page.locator("pre").screenshot(path=file)
    _shrink(file)
    return file


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
        report = Path(folder) / "report.html"
        write_report(paths, COMPANION_MEASUREMENT, report)
        taken = [*take(report, FOLDER), take_variants(FOLDER)]
        if len(arguments) > 1:
            taken.append(take_terminal([["bench", "show", arguments[0]], ["logs", arguments[1]]], FOLDER))
        for file in taken:
            print(f"{file}: {file.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
