from __future__ import annotations

import os
import pty
import select
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from tests.waiting import eventually
from trtllm_hpc.bench.progress import (
    Progress,
    Snapshot,
    Step,
    bar_lines,
    read_progress,
    reported,
    terminal_bar,
    write_progress,
)
from trtllm_hpc.paths import write_json

SWEEP = Step(level=1, levels=4, label="8/s", repeat=0, repeats=3, requests=200, length_s=25.0, then_s=75.0)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def set_clock(seconds: float) -> None:
        now[0] = seconds

    return set_clock


# Counting -------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_last_seconds(at: Callable[[float], None]) -> None:
    progress = Progress(SWEEP)
    for second in range(1, 11):
        at(second)
        for _ in range(10 if second <= 5 else 2):
            progress.count(ok=True)
        last = progress.snapshot()
    assert last.done == 60 and last.elapsed_s == 10
    assert last.rate_per_s == 2  # the quick beginning is long over


def test_a_pass_that_is_over_keeps_its_figures(at: Callable[[float], None]) -> None:
    progress = Progress(Step(requests=20))
    for _ in range(20):
        progress.count(ok=True)
    at(2)
    assert progress.snapshot().rate_per_s == 10
    at(60)  # its answers are being read
    assert progress.snapshot().rate_per_s == 10


def test_before_the_first_pass_it_prepares(at: Callable[[float], None]) -> None:
    progress = Progress()
    at(5)
    assert str(progress.snapshot()) == "prepares"


def test_the_running_p99_is_that_of_the_last_thousand_answers() -> None:
    progress = Progress()
    for _ in range(5000):
        progress.count(ok=True, latency_s=9.0)
    for milliseconds in range(1, 1001):
        progress.count(ok=True, latency_s=milliseconds / 1e3)
    assert progress.snapshot().p99_ms == pytest.approx(990)


def test_errors_are_counted_and_have_no_latency() -> None:
    progress = Progress()
    progress.count(ok=False, latency_s=60.0)
    assert (progress.snapshot().errors, progress.snapshot().p99_ms) == (1, None)
    progress.count(ok=True, latency_s=0.25)
    assert (progress.snapshot().done, progress.snapshot().p99_ms) == (2, 250)


def test_each_pass_begins_at_nothing() -> None:
    progress = Progress(SWEEP)
    progress.count(ok=False)
    progress.begin(Step(requests=3))
    now = progress.snapshot()
    assert (now.done, now.errors, now.step.requests) == (0, 0, 3)


# Words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (
            Snapshot(SWEEP, done=40, errors=1, elapsed_s=5.0, rate_per_s=7.94, p99_ms=143.2),
            "level 2 of 4 (8/s), pass 1 of 3, 40 of 200 requests, 7.9/s, 1 error, p99 143 ms, 1:35 left",
        ),
        (
            Snapshot(Step(label="32 at once", length_s=30.0, then_s=0.0), 250, 0, 12.2, 20.0, 8.0),
            "32 at once, 12 of 30 s, 20.0/s, p99 8 ms, 0:18 left",
        ),
        (
            Snapshot(Step(level=3, levels=None, label="64/s", requests=100), 25, 0, 10.0, 2.5),
            "level 4 (64/s), 25 of 100 requests, 2.5/s, 0:30 left of this pass",
        ),
        (
            Snapshot(Step(level=0, levels=2, label="8/s", repeats=1, length_s=30.0), 90, 0, 20.0),
            "level 1 of 2 (8/s), 20 of 30 s, 0:10 left of this pass",
        ),
        (
            Snapshot(Step(level=1, levels=2, label="16/s", repeats=1, length_s=30.0), 90, 0, 20.0),
            "level 2 of 2 (16/s), 20 of 30 s, 0:10 left",
        ),
        (Snapshot(Step(requests=5), 0, 0, 3.0), "0 of 5 requests"),
        (
            Snapshot(Step(label="1/s", requests=9000, length_s=9000.0, then_s=0.0), 1, 0, 1.0),
            "1/s, 1 of 9000 requests, 2:29:59 left",
        ),
    ],
)
def test_a_snapshot_as_text(snapshot: Snapshot, words: str) -> None:
    assert str(snapshot) == words


def test_the_share_done_is_of_requests_or_of_time() -> None:
    assert Snapshot(SWEEP, 50, 0, 1.0).share == 0.25
    assert Snapshot(Step(length_s=10.0), 50, 0, 2.5).share == 0.25
    assert Snapshot(Step(length_s=10.0), 50, 0, 12.0).share == 1
    assert Snapshot(Step(), 50, 0, 12.0).share is None


# The file -------------------------------------------------------------------------------


def test_a_snapshot_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    assert read_progress(path) is None
    snapshot = Snapshot(SWEEP, 40, 1, 5.0, 7.9, 143.2)
    write_progress(path, snapshot)
    assert read_progress(path) == snapshot


@pytest.mark.parametrize("other", [{"done": 3, "of": 20, "errors": 1}, [], None, {"step": 3}, {"step": {}}])
def test_another_version_s_file_is_passed_over(tmp_path: Path, other: object) -> None:
    write_json(tmp_path / "progress.json", other)
    assert read_progress(tmp_path / "progress.json") is None


def test_the_file_is_written_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path, shown = tmp_path / "progress.json", []
    progress = Progress(SWEEP)
    with reported(progress, path, lambda now: shown.append(now.done)):
        assert eventually(lambda: read_progress(path) is not None)
        progress.count(ok=True)
        progress.count(ok=False)
    found = read_progress(path)
    assert found is not None and (found.done, found.errors, found.step) == (2, 1, SWEEP)
    assert shown[0] in (0, 1, 2) and shown[-1] == 2


def test_the_end_is_written_when_the_load_breaks(tmp_path: Path) -> None:
    progress = Progress(Step(requests=2))
    with pytest.raises(KeyboardInterrupt), reported(progress, tmp_path / "progress.json"):
        progress.count(ok=True)
        raise KeyboardInterrupt
    found = read_progress(tmp_path / "progress.json")
    assert found is not None and found.done == 1


# The terminal ---------------------------------------------------------------------------


def written_to(controller: int) -> str:
    """All that a terminal has got; one read may return only the beginning."""
    drawn = b""
    while select.select([controller], [], [], 0.5)[0]:
        drawn += os.read(controller, 65536)
    return drawn.decode()


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setenv("COLUMNS", "140")
        monkeypatch.setenv("TERM", "xterm")
        with terminal_bar() as show:
            assert show is not None
            show(Snapshot(SWEEP, 40, 1, 5.0, 7.9, 143.2))
        stderr.flush()
        drawn = written_to(controller)
    os.close(controller)
    for words in ("level 2 of 4 (8/s), pass 1 of 3", "40 of 200 requests", "1 error, p99 143 ms, 1:35 left"):
        assert words in drawn


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_step_bar_and_figures_fit_the_terminal(width: int) -> None:
    long = Step(
        level=11, levels=12, label="12.5/s", repeat=1, repeats=3, requests=200, length_s=999.0, then_s=7200.0
    )
    text = as_text(bar_lines(Snapshot(long, 140, 12, 50.0, 123.4, 12143.2), width), width)
    lines = text.splitlines()
    assert all(len(line) <= width for line in lines)
    words = " ".join(" ".join(lines).replace("━", " ").split())
    assert words == (
        "level 12 of 12 (12.5/s), pass 2 of 3 140 of 200 requests, 123.4/s, 12 errors, p99 12143 ms, 2:15:49 "
        "left"
    )
    assert len(lines) == (1 if width == 140 else 2 if width >= 80 else len(lines))


def test_at_80_columns_the_bar_is_as_wide_as_the_figures_leave() -> None:
    lines = as_text(bar_lines(Snapshot(SWEEP, 100, 1, 5.0, 7.9, 143.2), 80), 80).splitlines()
    assert lines[0] == "level 2 of 4 (8/s), pass 1 of 3"
    assert lines[1].startswith("━" * 10) and lines[1].endswith(
        "100 of 200 requests, 7.9/s, 1 error, p99 143 ms, 1:35 left"
    )
    assert bar_lines(Snapshot(Step(label="prepares"), 0, 0, 1.0), 80).row_count == 1


def as_text(table: Table, width: int) -> str:
    text = StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False).print(table)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def test_a_pipe_gets_none(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal_bar() as show:
        assert show is None
    assert capsys.readouterr().err == ""
