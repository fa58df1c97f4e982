"""The executor as submitit's users see it."""

from __future__ import annotations

from pathlib import Path

import pytest
import submitit
from submitit.core.plugins import get_executors

from tests.runs.made import written
from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.scheduler import executor as module
from trtllm_hpc.scheduler.executor import RenderedJob, RenderedScriptExecutor
from trtllm_hpc.scheduler.local import StageScript


@pytest.fixture(autouse=True)
def own_watcher() -> None:
    # Watchers are kept by cluster, and each test has a cluster of its own.
    module._shared_watcher.cache_clear()


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return written(tmp_path / "run")[1]


def script(paths: RunPaths, stage: str = "build", *after: tuple[str, str]) -> StageScript:
    return StageScript(str(paths.folder), stage, after)


@pytest.fixture
def job(fake_slurm: FakeSlurm, paths: RunPaths) -> RenderedJob:
    made: RenderedJob = RenderedScriptExecutor(paths.folder).submit(script(paths))
    return made


def test_submitit_finds_it_by_name(fake_slurm: FakeSlurm, paths: RunPaths) -> None:
    assert get_executors()["trtllm_hpc"] is RenderedScriptExecutor
    chosen = submitit.AutoExecutor(paths.folder, cluster="trtllm_hpc")
    job = chosen.submit(script(paths))
    assert isinstance(job, RenderedJob) and job.job_id == "101"


def test_state_and_done(fake_slurm: FakeSlurm, job: RenderedJob) -> None:
    assert job.state == "PENDING" and not job.done(force_check=True)
    # submitit's own list takes these for ended, respectively for running.
    for state, done in (("CONFIGURING", False), ("SUSPENDED", False), ("PREEMPTED", True)):
        fake_slurm.set("101", state)
        module._shared_watcher(None).restart_pauses()
        assert job.done(force_check=True) is done
        assert job.state == state


def test_a_job_is_not_queried_after_its_end(fake_slurm: FakeSlurm, job: RenderedJob) -> None:
    fake_slurm.set("101", "COMPLETED", exit="0:0")
    assert job.done(force_check=True)
    asked = len(fake_slurm.calls("squeue"))
    job.wait()
    assert (job.result(), job.exception(), job.state) == (0, None, "COMPLETED")
    assert len(fake_slurm.calls("squeue")) == asked


def test_one_query_for_all_jobs(fake_slurm: FakeSlurm, paths: RunPaths) -> None:
    executor = RenderedScriptExecutor(paths.folder)
    jobs = [executor.submit(script(paths, stage)) for stage in ("build", "serve", "companion")]
    assert {job.state for job in jobs} == {"PENDING"}
    assert len(fake_slurm.calls("squeue")) == 1


def test_a_dependency_names_the_job_of_its_stage(fake_slurm: FakeSlurm, paths: RunPaths) -> None:
    executor = RenderedScriptExecutor(paths.folder)
    executor.submit(script(paths))
    executor.submit(script(paths, "serve", ("afterok", "build")))
    assert fake_slurm.jobs["102"]["dependency"] == "afterok:101"


def test_a_failed_job_raises_with_its_exit_code(fake_slurm: FakeSlurm, job: RenderedJob) -> None:
    fake_slurm.set("101", "FAILED", exit="6:0")
    error = job.exception()
    assert error is not None and "FAILED with exit code 6" in str(error)
    with pytest.raises(submitit.core.utils.FailedJobError):
        job.result()


def test_a_job_that_nobody_knows_is_lost_and_not_waited_for(fake_slurm: FakeSlurm, job: RenderedJob) -> None:
    fake_slurm.forget("101")
    job.wait()
    assert job.state == "LOST"
    assert "LOST" in str(job.exception())


def test_a_busy_controller_ends_no_wait(fake_slurm: FakeSlurm, job: RenderedJob) -> None:
    assert job.state == "PENDING"
    fake_slurm.trouble("squeue", CONTROLLER_GONE)
    assert not job.done(force_check=True)
    assert job.state == "PENDING"
    fake_slurm.trouble("squeue", "squeue: error: Invalid user")
    with pytest.raises(SubmissionError, match="Invalid user"):
        job.done(force_check=True)


def test_cancelling(fake_slurm: FakeSlurm, job: RenderedJob) -> None:
    for _ in range(2):
        fake_slurm.trouble("scancel", "scancel: error: Access/permission denied")
    with pytest.raises(SubmissionError):
        job.cancel()
    job.cancel(check=False)
    assert job.state == "PENDING"
    job.cancel()
    job.cancel()
    assert job.done(force_check=True) and job.state == "CANCELLED"
