"""Whose a job is: by what Slurm has recorded, and never by its id alone."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.runs.made import written
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.scheduler.job_info import Origin, RunJob
from trtllm_hpc.scheduler.slurm import Slurm

ME, ANOTHER = os.getuid(), os.getuid() + 1


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    return written(tmp_path / 'my "runs"' / "demo-1")[1]


def server(run: RunPaths, job_id: str = "101") -> RunJob:
    return RunJob.of(run, PlanRecord.read(run), {"build": None, "serve": job_id})["serve"]


def origin(run: RunPaths, **facts: Any) -> Origin:
    """Where a job of this user and name comes from; nothing else is known of it."""
    return replace(Origin(ME, "ana", "demo-serve", "/home/user"), **facts)


def evidence(run: RunPaths) -> dict[str, dict[str, str]]:
    """Each way in which Slurm shows that a job is the run's."""
    script, runs, here = run.sbatch("serve"), run.folder.parent, str(run.folder)
    return {
        "squeue: script": {"script": str(script), "name": "renamed"},
        "squeue: ./": {"script": "./demo-1/scripts/serve.sbatch", "folder": str(runs), "name": "renamed"},
        "squeue: read from standard input": {"script": "(null)", "folder": here},
        "scontrol: log": {"output": str(run.batch_log("serve"))},
        "scontrol: log of an edited script": {"output": f"{here}/results/mine.log"},
        "sacct": {"submit_line": f"sbatch --parsable {script}", "name": "renamed"},
        "sacct: relative": {"submit_line": "sbatch -t 5 scripts/serve.sbatch", "folder": here},
        "sacct: from above": {
            "submit_line": "sbatch demo-1/scripts/serve.sbatch",
            "folder": str(runs).replace('"', "`"),
        },
        "sacct: ./": {
            "submit_line": "sbatch ./demo-1/scripts/serve.sbatch --x",
            "folder": str(runs).replace('"', "`"),
        },
        "sacct: read from standard input": {"submit_line": "sbatch", "folder": here.replace('"', "`")},
    }


def test_what_slurm_has_recorded_shows_that_a_job_is_the_runs(run: RunPaths) -> None:
    for how, facts in evidence(run).items():
        assert server(run).is_of(origin(run, **facts)), how
        assert not server(run).is_of(origin(run, **facts, uid=ANOTHER)), f"{how}: another user"


def test_nothing_else_does(run: RunPaths) -> None:
    beside = str(run.folder) + "0"
    for facts in (
        {},
        {"uid": None, "script": str(run.sbatch("serve"))},
        {"script": str(run.sbatch("build"))},  # of another stage
        {"script": f"{beside}/scripts/serve.sbatch", "output": f"{beside}/logs/serve.out", "folder": beside},
        {"submit_line": f"sbatch {beside}/scripts/serve.sbatch"},
        {"submit_line": f"sbatch --comment=x{run.sbatch('serve')}"},
        {"submit_line": "sbatch old/demo-1/scripts/serve.sbatch", "folder": str(run.folder.parent)},
        {"output": str(run.batch_log("serve")), "name": "demo-build"},
        {"output": str(run.batch_log("serve")), "name": ""},
        {"folder": str(run.folder), "name": "analysis"},
        {"folder": str(run.folder.parent)},
    ):
        assert not server(run).is_of(origin(run, **facts)), facts


def test_a_run_is_known_by_every_path_that_leads_to_it(run: RunPaths, tmp_path: Path) -> None:
    """As where the home of a user is a link to another file system."""
    script = {"script": str(run.sbatch("serve"))}
    (tmp_path / "link").symlink_to(run.folder.parent)
    linked = RunPaths(tmp_path / "link" / "demo-1")
    assert server(linked).is_of(origin(run, **script))
    assert server(run).is_of(origin(run, script=str(run.sbatch("serve"))))
    moved = RunPaths(tmp_path / "archive" / "demo-1")
    moved.folder.parent.mkdir()
    run.folder.rename(moved.folder)
    assert server(moved).is_of(origin(run, **script)), "it was moved"
    shutil.copytree(moved.folder, run.folder)
    assert not server(moved).is_of(origin(run, **script)), "it is a copy: the jobs are those of the other"


def test_of_a_folder_that_is_gone_or_damaged_the_script_counts(run: RunPaths) -> None:
    run.plan.write_text("{")
    known, log = {"script": str(run.sbatch("serve"))}, {"output": str(run.batch_log("serve"))}
    assert server(run).is_of(origin(run, **known)) and not server(run).is_of(origin(run, **log))
    shutil.rmtree(run.folder)
    assert server(run).is_of(origin(run, **known)) and not server(run).is_of(
        origin(run, **known, uid=ANOTHER)
    )


# What the commands print --------------------------------------------------------------


def job_of(fake_slurm: FakeSlurm, run: RunPaths, state: str, **facts: Any) -> RunJob:
    job = fake_slurm.add(state)
    fake_slurm.assign(run, {"serve": job})
    fake_slurm.set(job, state, **facts)
    return server(run, job)


@pytest.mark.parametrize("accounting", [True, False])
@pytest.mark.parametrize("state", ["RUNNING", "COMPLETED"])
def test_a_job_of_another_is_lost_and_not_cancelled(
    fake_slurm: FakeSlurm, run: RunPaths, state: str, accounting: bool
) -> None:
    fake_slurm.configure(accounting=accounting)
    theirs = {"script": "/home/bob/serve.sbatch", "output": "/home/bob/serve.out", "user": "bob"}
    for facts in ({**theirs, "uid": ANOTHER}, {**theirs, "user": "ana"}):
        job = job_of(fake_slurm, run, state, **facts)
        found = Slurm().query([job])[job]
        assert (found.state.name, found.state.final, found.exit_code) == ("LOST", True, None)
        assert found.state.sentence == (
            f"is lost: job {job.job_id} is another job now: demo-serve of {facts['user']}"
        )
        Slurm().cancel([job])
        assert fake_slurm.state(job.job_id) == state
    assert fake_slurm.calls("scancel") == []


def test_two_runs_of_one_id_get_what_is_theirs(fake_slurm: FakeSlurm, run: RunPaths, tmp_path: Path) -> None:
    """One has ended before the controller lost its state, and accounting has it still."""
    old = written(tmp_path / "demo-0")[1]
    ended = {"state": "FAILED", "exit": "7:0", "submitted": 1000, "started": 1100, "ends": 1200}
    line = f"sbatch --parsable {old.sbatch('serve')}"
    before = {**ended, "name": "demo-serve", "submit_line": line, "given": "gres/gpu=8"}
    job = job_of(fake_slurm, run, "RUNNING", submitted=5000, before=[before])
    earlier = server(old, job.job_id)
    for _ in range(2):
        answers = Slurm().query([job, earlier])
        assert answers[job].state.name == "RUNNING"
        found = answers[earlier]
        assert (found.state.name, found.exit_code, found.gpus) == ("FAILED", 7, 8)
        assert (found.times.submitted_at, found.times.ended_at) == (1000.0, 1200.0)
        fake_slurm.set(job.job_id, "RUNNING", nodes="n1")
    assert [call[0] for call in fake_slurm.calls()] == ["squeue", "scontrol", "sacct"] * 2
    Slurm().cancel([earlier])
    assert fake_slurm.state(job.job_id) == "RUNNING"


def test_of_a_requeued_job_the_last_attempt_counts(fake_slurm: FakeSlurm, run: RunPaths) -> None:
    line = f"sbatch --parsable {run.sbatch('serve')}"
    first = {"state": "REQUEUED", "submitted": 1000, "submit_line": line, "name": "demo-serve"}
    job = job_of(fake_slurm, run, "COMPLETED", submitted=2000, ends=3000, submit_line=line, before=[first])
    for _ in range(2):
        found = Slurm().query([job])[job]
        assert (found.state.name, found.times.submitted_at) == ("COMPLETED", 2000.0)
        fake_slurm.forget(job.job_id, accounting=False)


def test_accounting_that_does_not_know_yet_whose_a_job_is(fake_slurm: FakeSlurm, run: RunPaths) -> None:
    """As for some seconds after the submission: the row has the job's times alone."""
    job = job_of(fake_slurm, run, "FAILED", exit="7:0", submitted=1000, given="gres/gpu=8", unnamed=True)
    assert (Slurm().query([job])[job].exit_code, Slurm().query([job])[job].gpus) == (7, 8)
    assert fake_slurm.calls("scontrol") == []


def test_a_copy_of_a_script_that_writes_into_the_run_is_the_runs(
    fake_slurm: FakeSlurm, run: RunPaths
) -> None:
    """squeue does not print the path of a log, so scontrol is asked: once for an id."""
    job = job_of(fake_slurm, run, "RUNNING", script="/home/user/copy of serve.sbatch")
    assert Slurm().query([job])[job].state.name == "RUNNING"
    assert len(fake_slurm.calls("scontrol")) == 1
    Slurm().cancel([job])
    assert fake_slurm.state(job.job_id).startswith("CANCELLED")


def test_a_job_under_another_name_is_cancelled_under_that_name(fake_slurm: FakeSlurm, run: RunPaths) -> None:
    """``sbatch --job-name=... scripts/serve.sbatch`` by hand."""
    job = job_of(fake_slurm, run, "RUNNING", name="my 'server'")
    Slurm().cancel([job])
    assert fake_slurm.calls("scancel") == [["scancel", f"--user={ME}", "--name=my 'server'", job.job_id]]
    assert fake_slurm.state(job.job_id).startswith("CANCELLED")


def test_names_and_paths_that_look_like_other_columns(fake_slurm: FakeSlurm, run: RunPaths) -> None:
    """Of another user who would like to be taken for this one: the job's name looks like several lines."""
    forged = f"x\n   UserId=ana({ME})\n   StdOut={run.batch_log('serve')}"
    log = {"output": str(run.batch_log("serve")), "script": str(run.sbatch("serve"))}
    job = job_of(fake_slurm, run, "RUNNING", uid=ANOTHER, name=forged, **log)
    assert job not in Slurm().query([job])
    fake_slurm.set(job.job_id, "RUNNING", name="demo-serve", folder=f"/home/UserId=ana({ME}) x|y")
    assert Slurm().query([job])[job].state.name == "LOST"
