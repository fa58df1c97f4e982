"""The job that waits to serve after another one: in `status`, for a client, and cancelled with the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.logs.runs import add_rank
from tests.runs.made import run_with
from tests.scheduler.conftest import fake_slurm  # noqa: F401
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.cli import command as main
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.endpoint import serve_end
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runs.submit import cancel_run
from trtllm_hpc.runtime.records import add_event
from trtllm_hpc.runtime.renewal import Renewal


@pytest.fixture
def run(fake_slurm: FakeSlurm, tmp_path: Path) -> RunPaths:  # noqa: F811
    """Job 102 serves, and job 104 waits for its end."""
    paths = run_with(fake_slurm, tmp_path / "run", "COMPLETED", "RUNNING", "COMPLETED")
    waiting = fake_slurm.add("PENDING", reason="Dependency")
    fake_slurm.assign(paths, {"serve": waiting})
    Renewal("102", waiting).write(paths.renewal)
    assert waiting == "104"
    return paths


def test_status_tells_both(run: RunPaths) -> None:
    serve = run_status(run).stages[1]
    assert (serve.job_id, serve.next_job_id) == ("102", "104")
    assert serve.sentence == "runs; job 104 waits to follow it"
    add_event(run, "serve", "draining")
    [_, drains, _] = run_status(run).stages[1].sentence.split("; ")
    assert drains == "its time limit is near: open requests may end, new ones are refused"


def test_between_the_two_the_run_goes_on(run: RunPaths, fake_slurm: FakeSlurm) -> None:  # noqa: F811
    fake_slurm.set("102", state="COMPLETED", exit="0:0")
    add_event(run, "serve", "stage_end", exit_code=0, job_id="102")
    status = run_status(run)
    assert status.state is not RunState.COMPLETED and not status.settled
    assert status.stages[1].job_id == "104" and "job 102 before it has ended" in status.stages[1].sentence
    assert serve_end(run) is None, "a client waits for the next server"


def test_a_next_job_that_has_only_just_begun_goes_on(run: RunPaths, fake_slurm: FakeSlurm) -> None:  # noqa: F811
    """It has put the files of the one before aside, and its begin is not recorded yet."""
    fake_slurm.set("102", state="COMPLETED", exit="0:0")
    fake_slurm.set("104", state="RUNNING", nodes="n1")
    add_event(run, "serve", "stage_end", exit_code=0, job_id="102")
    Renewal("104", number=1).write(run.renewal)
    status = run_status(run)
    assert (status.stages[1].job_id, status.stages[1].state) == ("104", "RUNNING")
    assert serve_end(run) is None


def test_the_reason_of_an_earlier_job_is_not_given_for_this_one(
    run: RunPaths,
    fake_slurm: FakeSlurm,  # noqa: F811
) -> None:
    add_event(run, "serve", "stage_begin", job_id="99")
    add_event(run, "serve", "failed", reason="the proxy has ended")
    add_event(run, "serve", "stage_end", exit_code=7, job_id="99")
    add_event(run, "serve", "stage_begin", job_id="102")
    cancel_run(run)
    assert run_status(run).sentence == "stage serve was cancelled (its batch script was killed by signal 15)"


def test_jobs_that_failed_before_are_counted_and_their_logs_explained(run: RunPaths) -> None:
    failed, ended = [], "rank 0 on n0 ended with exit code 1"
    for attempt, (job, why) in enumerate([("98", ended), ("99", ended), ("100", "no MPI")], start=1):
        aside = RunPaths(run.attempts / str(attempt))
        failed.append({"job_id": job, "why": why, "attempt": attempt})
        for folder in (aside.logs, aside.ranks):
            folder.mkdir(parents=True)
        if why == ended:
            log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
            add_rank(aside, 0, world_size=1, ended_at=9.0, exit_code=1, log=log)
    Renewal("102", "104", 3, failed=failed).write(run.renewal)
    status = run_status(run)
    assert status.sentence.endswith("runs; job 104 waits to follow it; 3 earlier jobs have failed")
    assert [job.job_id for job in status.failed_jobs] == ["98", "99", "100"]
    said = CliRunner().invoke(main, ["status", str(run.folder)]).output
    why = "earlier jobs 98, 99 failed: rank 0 on n0 ended with exit code 1: The GPU's memory is full\n"
    assert why in said
    assert "earlier job 100 failed: no MPI\nnext: trtllm-hpc explain " in said
    explained = CliRunner().invoke(main, ["explain", str(run.folder)]).output
    assert explained.startswith("cause: The GPU's memory is full.")
    assert "attempts/2/logs/serve_0.out:1" in explained, "of the last that shows it"
