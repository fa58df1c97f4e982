"""``watch``: the view of ``submit --wait``, taken up again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.logs.runs import add_rank
from tests.runs.clock import Clock
from tests.runs.made import run_with, written
from tests.runs.test_watch import clock as clock
from tests.runs.test_watch import finish
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from tests.waiting import eventually
from trtllm_hpc.bench.progress import Snapshot, Step, write_progress
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.records import add_event


@pytest.fixture
def run(fake_slurm: FakeSlurm, home: Path) -> RunPaths:
    """A server that runs since 940 of the clock, which begins at 1000, for an hour at most."""
    paths = run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "RUNNING", "PENDING")
    fake_slurm.set("102", "RUNNING", submitted="900", started="940", ends="4540")
    fake_slurm.set("103", "PENDING", submitted="900", started="5000")
    add_rank(paths, 0, world_size=1, log="one\ntwo\nthe engine\x1b[31m is loaded\n")
    return paths


def test_into_a_pipe_it_prints_lines_and_then_the_end(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock, types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    clock.at(20, lambda: finish(fake_slurm))
    code, output, errors = types("watch")
    lines = errors.splitlines()
    assert "  build: has completed" in lines
    assert "  serve: runs, 1 of 1 ranks up (for 1:00, 59:00 until its time limit)" in lines
    [waits] = [line for line in lines if line.startswith("  companion: waits")]
    assert "(waits for 1:40, expected to start 1970-01-01" in waits
    assert "  log: the engine is loaded" in lines
    assert "  companion: has completed" in lines
    assert (code, output.splitlines()[0]) == (0, "completed: every stage has completed")


def test_on_a_terminal_the_last_lines_of_the_log_are_below_the_stages(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock, types: Types, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    run.rank_log("serve", 0).write_text("".join(f"line {number}\n" for number in range(9)) + "x" * 200)
    clock.at(4, lambda: finish(fake_slurm))
    shown = types("watch").errors
    assert "59:00 until its time limit" in shown and "1 of 1 ranks up" in shown
    assert "line 5" in shown and "line 8" in shown and "line 4" not in shown
    assert "x" * 150 in shown and "x" * 161 not in shown


def test_a_benchmark_has_its_rate(fake_slurm: FakeSlurm, run: RunPaths, clock: Clock, types: Types) -> None:
    fake_slurm.set("103", "RUNNING", started="990", ends="2000")
    add_event(run, "companion", "stage_begin", job_id="103")
    write_progress(run.benchmark_progress, Snapshot(Step(requests=20), 3, 0, 2.0, 7.9))
    clock.at(20, lambda: finish(fake_slurm))
    errors = types("watch").errors
    assert "companion: is running" not in errors
    assert "benchmark: 3 of 20 requests, 7.9/s" in errors


def test_the_exit_code_is_that_of_what_failed(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    run_with(fake_slurm, home / "runs" / "demo-1", "COMPLETED", "FAILED=8:0", "CANCELLED")
    failed = types("watch", "demo")
    assert failed.code == ExitCode.READINESS
    assert "failed: stage serve has failed (exit code 8)" in failed.errors
    record = types("watch", "demo", "--json")
    assert record.code == ExitCode.READINESS
    assert documented("watch", record.output)["state"] == "failed"


def test_a_run_that_was_never_submitted_is_refused(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    written(home / "runs" / "new-1")
    refused = types("watch", "new-1")
    assert refused.code == ExitCode.SUBMISSION
    assert "Run new-1 was never submitted: there is nothing to watch." in refused.errors
    assert "next: trtllm-hpc resume new-1 --wait" in refused.errors


def test_ctrl_c_ends_the_view_and_leaves_the_run_alone(
    fake_slurm: FakeSlurm, run: RunPaths, home: Path
) -> None:
    words = [sys.executable, "-m", "trtllm_hpc", "watch", "demo"]
    watching = subprocess.Popen(
        words, cwd=home, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert eventually(lambda: fake_slurm.calls("squeue"))
    watching.send_signal(signal.SIGINT)
    _, errors = watching.communicate(timeout=60)
    assert watching.returncode == ExitCode.INTERRUPTED
    assert "the run goes on" in errors and "next: trtllm-hpc watch demo-1" in errors
    assert "Traceback" not in errors
    assert fake_slurm.calls("scancel") == [] and not run.stop_request.exists()
