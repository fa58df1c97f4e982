from __future__ import annotations

import time
from pathlib import Path

import pytest

from trtllm_hpc.bench.progress import Progress, reported
from trtllm_hpc.paths import read_json


def test_progress_is_written_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    progress, shown = Progress(of=2000), []
    started = time.monotonic()
    with reported(progress, path, lambda now: shown.append(now.done)):
        for number in range(2000):
            progress.count(ok=number % 2 == 0)
            time.sleep(0.0003)
    took_s = time.monotonic() - started
    assert read_json(path) == {"of": 2000, "done": 2000, "errors": 1000}
    assert shown[-1] == 2000 and 2 <= len(shown) <= took_s / 0.2 + 2


def test_the_end_is_written_when_the_load_breaks(tmp_path: Path) -> None:
    progress = Progress(of=2)
    with pytest.raises(KeyboardInterrupt), reported(progress, tmp_path / "progress.json"):
        progress.count(ok=True)
        raise KeyboardInterrupt
    assert read_json(tmp_path / "progress.json") == {"of": 2, "done": 1, "errors": 0}


def test_progress_that_nobody_watches_is_only_shown(tmp_path: Path) -> None:
    progress, shown = Progress(of=1), []
    with reported(progress, None, lambda now: shown.append(now.done)):
        progress.count(ok=True)
    assert shown[-1] == 1 and not list(tmp_path.iterdir())
