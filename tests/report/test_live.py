from __future__ import annotations

import pytest

from trtllm_hpc.bench.progress import Snapshot, Step
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.report.live import live_printer
from trtllm_hpc.runs.status import RunState, RunStatus, StageStatus
from trtllm_hpc.runs.watch import RunProgress


def progress(benchmark: Snapshot | None) -> RunProgress:
    """A run whose companion measures."""
    companion = StageStatus("companion", "RUNNING", final=False, ok=False, sentence="is running")
    status = RunStatus(
        "demo-1", "/runs/demo-1", RunState.RUNNING, "", (companion,), (), (), None, ExitCode.OK
    )
    does = "waits for the endpoint" if benchmark is None else f"benchmark: {benchmark}"
    return RunProgress(status, {"companion": does}, benchmark, at=1000.0)


def test_a_log_gets_a_line_about_the_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    step = Step(level=0, levels=2, label="8/s", requests=200, length_s=25.0)
    with live_printer() as show:
        show(progress(None))
        show(progress(Snapshot(step, done=0, errors=0, elapsed_s=0.0)))  # too soon after the first
    assert capsys.readouterr().err.splitlines() == ["  companion: is running, waits for the endpoint"]
    with live_printer() as show:
        show(progress(Snapshot(step, 40, 1, 5.0, 7.9)))
    assert capsys.readouterr().err == (
        "  companion: is running, benchmark: level 1 of 2 (8/s), 40 of 200 requests, 7.9/s, 1 error, "
        "0:20 left of this pass\n"
    )
