"""Cancelling whatever is left of a run, as often as one likes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.runs.clock import Clock
from tests.runs.conftest import RunOf
from tests.runs.made import written
from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs import submit as module
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.runs.submit import cancel_run, sole_command
from trtllm_hpc.runtime.records import StopRequest, add_event
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission


def test_every_job_that_has_not_ended_is_cancelled(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    status = cancel_run(paths)
    assert status.state is RunState.CANCELLED
    user = f"--user={os.getuid()}"
    assert fake_slurm.calls("scancel") == [
        ["scancel", user, "--name=demo-serve", "102"],
        ["scancel", user, "--name=demo-companion", "103"],
    ]
    assert fake_slurm.state("101") == "COMPLETED"
    stop = StopRequest.read(paths.stop_request)
    assert stop is not None and stop.by == "cancel"


def test_a_second_cancel_changes_nothing(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of("RUNNING", "PENDING", "PENDING")
    first = cancel_run(paths)
    before = {file: file.stat().st_mtime_ns for file in paths.folder.rglob("*")}
    assert cancel_run(paths) == first
    assert {file: file.stat().st_mtime_ns for file in paths.folder.rglob("*")} == before
    assert len(fake_slurm.calls("scancel")) == 3


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_a_run_that_has_ended_is_left_as_it_is(run_of: RunOf, fake_slurm: FakeSlurm, state: str) -> None:
    paths = run_of(state, state, state)
    assert cancel_run(paths).state.value == state.lower()
    assert fake_slurm.calls("scancel") == [] and not paths.stop_request.exists()


def test_the_wait_for_a_slow_job_is_bounded(
    run_of: RunOf, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = run_of("COMPLETED", "RUNNING", "COMPLETED")
    (fake_slurm.bin / "scancel").write_text("#!/bin/sh\nexit 0\n")
    fake_slurm.set("102", "COMPLETING")
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "_POLL_S", 5.0)
    clock.at(2, lambda: fake_slurm.set("102", "CANCELLED by 1000"))
    assert cancel_run(paths).settled
    fake_slurm.set("102", "COMPLETING")
    assert not cancel_run(paths).settled
    assert clock.now - 1000 < 80


def test_a_command_that_stands_still_does_not_save_the_jobs(
    run_of: RunOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    monkeypatch.setattr(module, "_SUBMISSION_TIMEOUT_S", 0.1)
    with sole_command(paths):
        assert cancel_run(paths).state is RunState.CANCELLED


def test_a_busy_controller_is_queried_again_after_the_cancellation(
    run_of: RunOf, fake_slurm: FakeSlurm
) -> None:
    paths = run_of("COMPLETED", "RUNNING", "COMPLETED")
    fake_slurm.trouble("squeue", CONTROLLER_GONE, once="scancel")
    assert cancel_run(paths).state is RunState.CANCELLED
    assert len(fake_slurm.calls("squeue")) == 6


def test_a_refusal_reaches_the_user(run_of: RunOf, fake_slurm: FakeSlurm) -> None:
    paths = run_of("RUNNING", "PENDING", "PENDING")
    fake_slurm.trouble("scancel", "scancel: error: Access/permission denied")
    with pytest.raises(SubmissionError, match="Access/permission denied"):
        cancel_run(paths)


def test_a_run_submitted_by_hand_is_cancelled_in_its_own_cluster(
    fake_slurm: FakeSlurm, tmp_path: Path
) -> None:
    """The sandbox's Slurm is not the machine's: SLURM_CONF must say which is meant."""
    conf = tmp_path / "slurm.conf"
    conf.touch()
    _, paths = written(tmp_path / "run", slurm_conf=str(conf))
    for command in ("squeue", "scancel"):
        script = fake_slurm.bin / command
        words = script.read_text().replace("exec", f'echo "[$SLURM_CONF]" >> {tmp_path}/confs\nexec')
        script.write_text(words)
    job = fake_slurm.add("RUNNING")
    fake_slurm.assign(paths, {"build": job})
    add_event(paths, "build", "stage_begin", job_id=job)
    assert cancel_run(paths).state is RunState.CANCELLED
    assert set((tmp_path / "confs").read_text().split()) == {f"[{conf}]"}


def test_a_local_run_started_by_hand_gets_a_stop_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, paths = written(tmp_path / "run", scheduler="local")
    monkeypatch.setattr(module, "time", Clock())
    monkeypatch.setenv("PATH", str(tmp_path))
    add_event(paths, "serve", "stage_begin", job_id="local77", group=1)
    assert cancel_run(paths).state is RunState.RUNNING
    assert paths.stop_request.exists()


def test_jobs_are_cancelled_even_if_the_stop_request_cannot_be_written(run_of: RunOf) -> None:
    """As on a full disk: the request fails, the cancellation must not."""
    paths = run_of("COMPLETED", "RUNNING", "RUNNING")
    paths.stop_request.mkdir()  # nothing can take the place of a folder
    assert cancel_run(paths).state is RunState.CANCELLED


def test_a_job_in_no_record_is_cancelled_on_a_full_disk(
    run_of: RunOf, fake_slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The submission was killed when Slurm had taken the job."""
    paths = run_of("COMPLETED", "RUNNING", "PENDING")
    record = read_submission(paths)
    assert record is not None
    record.complete, record.stages = False, {"build": record.stages["build"]}
    record.write(paths)

    def write(record: SubmissionRecord, paths: RunPaths) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), paths.jobs)

    monkeypatch.setattr(SubmissionRecord, "write", write)
    cancel_run(paths)
    assert all(fake_slurm.state(job).startswith("CANCELLED") for job in ("102", "103"))
