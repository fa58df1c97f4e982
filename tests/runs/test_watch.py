"""Following a run: what is shown, how long, and how often Slurm is asked."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.logs.runs import add_rank
from tests.plans import write_plan
from tests.runs.clock import Clock
from tests.runs.made import run_with, written
from tests.scheduler.fake_slurm import CONTROLLER_GONE, FakeSlurm
from trtllm_hpc.bench.progress import Snapshot, Step, write_progress
from trtllm_hpc.errors import ExitCode, SubmissionError
from trtllm_hpc.paths import RunPaths, write_json
from trtllm_hpc.runs import watch
from trtllm_hpc.runs.status import RunState
from trtllm_hpc.runs.watch import follow
from trtllm_hpc.runtime.records import Endpoint, add_event
from trtllm_hpc.runtime.stop import request_stop
from trtllm_hpc.scheduler import slurm
from trtllm_hpc.scheduler.submission_record import SubmissionRecord


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    with monkeypatch.context() as patch:
        for module in (watch, slurm):
            patch.setattr(module, "time", made)
        # The files are read more rarely than a person's are, for the test's own speed.
        patch.setattr(watch, "_FILE_PAUSE_S", 2.0)
        yield made


@pytest.fixture
def run(fake_slurm: FakeSlurm, tmp_path: Path) -> RunPaths:
    return run_with(fake_slurm, tmp_path / "run", "COMPLETED", "RUNNING", "PENDING")


def finish(fake_slurm: FakeSlurm) -> None:
    for job in fake_slurm.jobs:
        fake_slurm.set(job, "COMPLETED")


def test_a_run_without_changes_is_rarely_queried(fake_slurm: FakeSlurm, run: RunPaths, clock: Clock) -> None:
    clock.at(240, lambda: finish(fake_slurm))
    progress = list(follow(run))
    assert progress[-1].status.state is RunState.COMPLETED
    assert clock.now - 1000 < 260, "the end was seen late"
    asked = len(fake_slurm.calls("squeue"))
    assert 15 < asked < 30, f"{asked} questions in four minutes"


def test_slurm_is_queried_at_once_when_a_stage_records_an_event(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock
) -> None:
    def end() -> None:
        finish(fake_slurm)
        add_event(run, "companion", "stage_end", exit_code=0)

    clock.at(102, end)
    list(follow(run))
    assert clock.now - 1000 < 108


def publish(run: RunPaths) -> None:
    Endpoint("102", "n1", "10.0.0.1", 8, 9, 10, ["ensemble"], 5.0).write(run.endpoint)
    add_event(run, "serve", "ready")


def test_with_keeps_serving_a_run_is_followed_until_only_its_server_is_left(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock
) -> None:
    def finish_companion() -> None:
        fake_slurm.set("103", "COMPLETED")
        add_event(run, "companion", "stage_end", exit_code=0)

    clock.at(20, lambda: publish(run))
    clock.at(60, finish_companion)
    last = list(follow(run, keeps_serving=True))[-1]
    assert last.status.state is RunState.SERVING and 60 <= clock.now - 1000 < 64


@pytest.mark.parametrize("state", ["ready", "failed"])
def test_a_server_whose_rank_has_just_died_is_followed_to_its_end(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock, state: str
) -> None:
    fake_slurm.set("103", "COMPLETED")
    publish(run)
    write_json(run.instances, [{"instance": 0, "state": state, "restarts": 0, "reason": None}])
    add_rank(run, 1, ended_at=2.0, exit_code=-9)
    clock.at(20, lambda: fake_slurm.set("102", "FAILED", exit="7:0"))
    last = list(follow(run, keeps_serving=True))[-1]
    assert last.status.state is RunState.FAILED


def test_a_companion_in_the_servers_job_is_followed_by_its_events(
    fake_slurm: FakeSlurm, tmp_path: Path, clock: Clock
) -> None:
    _, run = written(tmp_path / "overlap", companion="overlap")
    record = SubmissionRecord(scheduler="slurm", complete=True)
    for stage, state in (("build", "COMPLETED"), ("serve", "RUNNING")):
        record.add(run, stage, job := fake_slurm.add(state, nodes="n1"))
        fake_slurm.assign(run, {stage: job})
    add_event(run, "companion", "stage_begin")
    publish(run)
    clock.at(30, lambda: add_event(run, "companion", "stage_end", exit_code=0))
    last = list(follow(run, keeps_serving=True))[-1]
    assert last.status.state is RunState.SERVING and 30 <= clock.now - 1000 < 34


def test_a_stage_that_never_ends_after_a_failure_is_not_waited_for(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock
) -> None:
    fake_slurm.set("102", "FAILED", exit="7:0")
    last = list(follow(run))[-1]
    assert last.status.state is RunState.FAILED and not last.status.settled
    assert 55 < clock.now - 1000 < 75


def test_a_controller_that_stays_away_is_an_error(fake_slurm: FakeSlurm, run: RunPaths, clock: Clock) -> None:
    def gone() -> None:
        (fake_slurm.bin / "squeue").write_text(f"#!/bin/sh\necho '{CONTROLLER_GONE}' >&2\nexit 1\n")

    clock.at(5, gone)
    with pytest.raises(SubmissionError, match="Unable to contact slurm controller"):
        list(follow(run))
    assert clock.now - 1000 < 1800


def test_a_first_question_that_fails_is_asked_again(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock
) -> None:
    """The jobs are queued already: who is told to submit again has them twice."""
    for _ in range(3):
        fake_slurm.trouble("squeue", CONTROLLER_GONE)
    clock.at(60, lambda: finish(fake_slurm))
    seen = [progress.status for progress in follow(run)]
    assert {stage.state for stage in seen[0].stages} == {"UNKNOWN"}
    assert seen[0].sentence == "stage build is submitted; Slurm does not answer now"
    assert seen[0].stages[1].job_id == "102"
    assert seen[-1].state is RunState.COMPLETED
    assert not any(status.state is RunState.LOST for status in seen)


def test_a_run_whose_folder_is_removed_is_lost(fake_slurm: FakeSlurm, run: RunPaths, clock: Clock) -> None:
    clock.at(20, lambda: shutil.rmtree(run.folder))
    last = list(follow(run))[-1].status
    assert (last.state, last.exit_code, last.stages) == (RunState.LOST, ExitCode.LOST, ())
    assert f"{run.plan} is gone" in last.sentence
    assert clock.now - 1000 < 60


def test_a_folder_that_is_missed_for_a_moment_is_no_lost_run(
    fake_slurm: FakeSlurm, run: RunPaths, clock: Clock
) -> None:
    """A shared file system may not see it for a second or two."""
    add_event(run, "build", "stage_begin", job_id="101")  # its events are missed at once
    away = run.folder.with_name("away")
    clock.at(20, partial(os.rename, run.folder, away))
    clock.at(24, partial(os.rename, away, run.folder))
    clock.at(60, lambda: finish(fake_slurm))
    assert list(follow(run))[-1].status.state is RunState.COMPLETED


def test_what_the_job_wrote_is_shown(fake_slurm: FakeSlurm, run: RunPaths) -> None:
    write_plan(run, world_sizes=(3,))
    fake_slurm.set("101", "RUNNING")
    fake_slurm.set("103", "RUNNING")
    for step, message in ((1, "load"), (2, "save")):
        add_event(run, "build", "progress", step=step, of=4, message=message)
    add_rank(run, 0, world_size=3)
    add_rank(run, 1, world_size=3, ended_at=time.time(), exit_code=0)
    assert next(follow(run)).details == {
        "build": "step 2 of 4: save",
        "serve": "1 of 3 ranks up",
        "companion": "waits for the endpoint",
    }
    write_progress(run.benchmark_progress, Snapshot(Step(requests=20), done=3, errors=1, elapsed_s=2.0))
    request_stop(run, by="companion", reason="it is done")
    details = next(follow(run)).details
    assert details["serve"] == "stopping"
    assert details["companion"].startswith("benchmark: 3 of 20 requests")
