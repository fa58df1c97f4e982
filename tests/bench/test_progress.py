from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import eventually
from trtllm_hpc.bench.load.messages import LoadReply
from trtllm_hpc.bench.progress import (
    Progress,
    Snapshot,
    Step,
    read_progress,
    reported,
    shown_progress,
    write_progress,
)
from trtllm_hpc.paths import write_json

SWEEP = Step(level=1, levels=4, label="8/s", repeat=0, repeats=3, requests=200, length_s=25.0)
OK = LoadReply(0, 0.0, 0.0, 0.1)
FAILED = replace(OK, status="UNAVAILABLE")


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def set_clock(seconds: float) -> None:
        now[0] = seconds

    return set_clock


def test_the_rate_is_that_of_the_last_seconds(at: Callable[[float], None]) -> None:
    progress = Progress(SWEEP)
    for second in range(1, 11):
        at(second)
        for _ in range(10 if second <= 5 else 2):
            progress.count(OK)
        last = progress.snapshot()
    assert last.done == 60 and last.elapsed_s == 10
    assert last.rate_per_s == 2  # the quick beginning is long over


def test_a_pass_that_is_over_keeps_its_figures_and_the_next_begins_at_nothing(
    at: Callable[[float], None],
) -> None:
    progress = Progress()
    assert str(progress.snapshot()) == "prepares"
    progress.begin(Step(requests=20))
    for _ in range(19):
        progress.count(OK)
    progress.count(FAILED)
    at(2)
    assert (progress.snapshot().rate_per_s, progress.snapshot().errors) == (10, 1)
    at(60)  # its answers are being read
    assert progress.snapshot().rate_per_s == 10
    progress.begin(Step(requests=3))
    assert (progress.snapshot().done, progress.snapshot().errors) == (0, 0)


@pytest.mark.parametrize(
    ("snapshot", "words", "share"),
    [
        (
            Snapshot(SWEEP, done=40, errors=1, elapsed_s=5.0, rate_per_s=7.94),
            "level 2 of 4 (8/s), pass 1 of 3, 40 of 200 requests, 7.9/s, 1 error, 0:20 left of this pass",
            0.2,
        ),
        (
            Snapshot(Step(label="32 at once", length_s=30.0), 250, 0, 12.0, 20.0),
            "32 at once, 12 of 30 s, 20.0/s, 0:18 left of this pass",
            0.4,
        ),
        (
            Snapshot(Step(level=3, levels=None, label="64/s", requests=100), 25, 0, 10.0, 2.5),
            "level 4 (64/s), 25 of 100 requests, 2.5/s, 0:30 left of this pass",
            0.25,
        ),
        (Snapshot(Step(), 5, 0, 3.0), "5 requests", None),
        (
            Snapshot(Step(label="1/s", length_s=9000.0), 1, 0, 9001.0),
            "1/s, 9000 of 9000 s, 0:00 left of this pass",
            1.0,
        ),
        (
            Snapshot(Step(label="1/s", length_s=9000.0), 0, 0, 0.0),
            "1/s, 0 of 9000 s, 2:30:00 left of this pass",
            0.0,
        ),
    ],
)
def test_a_snapshot_as_text(snapshot: Snapshot, words: str, share: float | None) -> None:
    assert (str(snapshot), snapshot.share) == (words, share)


@pytest.mark.parametrize("other", [{"done": 3, "of": 20, "errors": 1}, [], None, {"step": 3}, {"step": {}}])
def test_a_snapshot_survives_its_file_and_another_versions_file_is_passed_over(
    tmp_path: Path, other: object
) -> None:
    path = tmp_path / "progress.json"
    assert read_progress(path) is None
    snapshot = Snapshot(SWEEP, 40, 1, 5.0, 7.9)
    write_progress(path, snapshot)
    assert read_progress(path) == snapshot
    write_json(path, other)
    assert read_progress(path) is None


def test_the_file_is_written_now_and_then_and_at_the_end_even_if_the_load_breaks(tmp_path: Path) -> None:
    path, shown = tmp_path / "progress.json", []
    progress = Progress(SWEEP)
    with pytest.raises(KeyboardInterrupt), reported(progress, path, lambda now: shown.append(now.done)):
        assert eventually(lambda: read_progress(path) is not None)
        progress.count(OK)
        progress.count(FAILED)
        raise KeyboardInterrupt
    found = read_progress(path)
    assert found is not None and (found.done, found.errors, found.step) == (2, 1, SWEEP)
    assert shown[0] in (0, 1, 2) and shown[-1] == 2


def test_a_pipe_gets_a_line_every_ten_seconds(
    at: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    with shown_progress() as show:
        for second in range(26):
            at(second)
            show(
                Snapshot(
                    SWEEP, done=8 * second, errors=0, elapsed_s=second, rate_per_s=8.0, tokens_per_s=640.2
                )
            )
    line = "  level 2 of 4 (8/s), pass 1 of 3, {} of 200 requests, 8.0/s, about 640 tokens/s, {}"
    lines = [line.format(80, "0:15 left of this pass"), line.format(160, "0:05 left of this pass")]
    assert capsys.readouterr() == ("", "".join(f"{line}\n" for line in lines))


def test_tokens_are_counted_in_streams_only(at: Callable[[float], None]) -> None:
    progress = Progress(Step(requests=3))
    at(2)
    progress.count(replace(OK, chunks=[(0.1, b"a whole answer")]))
    assert progress.snapshot().tokens_per_s is None
    progress.count(replace(OK, chunks=[(0.1, b"a token")] * 100))
    assert progress.snapshot().tokens_per_s == 50
