"""A job that waits in the queue: its expected start and limits, and how often Slurm is asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.typed import Types
from tests.cli.typed import home as home
from tests.cli.typed import types as types
from tests.runs.made import submitted
from tests.scheduler.fake_slurm import FakeSlurm
from tests.schemas.check import documented
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.stages import watcher_of
from trtllm_hpc.runs.status import run_status


def waits(fake_slurm: FakeSlurm, folder: Path, reason: str, **facts: Any) -> RunPaths:
    """A run whose server waits in the queue for this reason, with its companion behind it."""
    serve = fake_slurm.add("PENDING", reason=reason, **facts)
    jobs = {"serve": serve, "companion": fake_slurm.add("PENDING", reason="Dependency")}
    paths = submitted(folder, jobs)
    fake_slurm.assign(paths, jobs)
    return paths


def waiting(types: Types) -> dict[str, Any]:
    """What ``status --json`` says of the waiting server."""
    stages = {one["stage"]: one for one in documented("status", types("status", "--json").output)["stages"]}
    found: dict[str, Any] = stages["serve"]["waiting"]
    return found


def test_a_waiting_job_has_an_expected_start(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    start = int(time.time()) + 90_000
    waits(fake_slurm, home / "runs" / "demo-1", "Priority", started=start)
    assert waiting(types) == {"reason": "Priority", "limits": []}
    shown = types("status").output
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(start))
    assert "other jobs have a higher priority" in shown and f"expected to start {day})" in shown


@pytest.mark.parametrize(
    ("reason", "question", "shown"),
    [
        ("AssocMaxJobsLimit", "assoc user=ana account=mine", ["MaxTRES=gres/gpu=8", "MaxJobs=2"]),
        ("AssocGrpGRES", "assoc user= account=mine", ["GrpTRES=gres/gpu=16"]),
        ("QOSMaxGRESPerUser", "qos name=normal", ["MaxTRES=gres/gpu=8"]),
        ("AssociationJobLimit", "assoc user=ana account=mine", None),
    ],
)
def test_a_limit_is_shown_for_a_reason_that_is_one(
    fake_slurm: FakeSlurm,
    home: Path,
    types: Types,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    question: str,
    shown: list[str] | None,
) -> None:
    monkeypatch.setattr("trtllm_hpc.scheduler.watcher._user", lambda: "ana")
    limits = {"GrpTRES": "gres/gpu=16", "MaxTRES": "gres/gpu=8", "MaxJobs": "2"}
    fake_slurm.configure(limits={question: limits})
    waits(fake_slurm, home / "runs" / "demo-1", reason)
    every = [f"{name}={value}" for name, value in limits.items()]
    assert waiting(types)["limits"] == (every if shown is None else shown)
    assert "limits: " in types("status").output


def test_commands_that_do_not_answer_are_silent_and_not_asked_again(
    fake_slurm: FakeSlurm, home: Path, types: Types
) -> None:
    fake_slurm.configure(limits=None)
    paths = waits(fake_slurm, home / "runs" / "demo-1", "AssocGrpCpuLimit")
    shown = types("status")
    assert (shown.code, shown.errors) == (0, "")
    assert "the jobs of your account together already use all the CPUs" in shown.output
    asked = len(fake_slurm.calls("sacctmgr"))
    watcher = watcher_of(RunSnapshot(paths))
    for _ in range(3):
        run_status(paths, watcher, limits=True)
    assert len(fake_slurm.calls("sacctmgr")) == 2 * asked == 2


def test_each_question_is_asked_once_between_two_queries(fake_slurm: FakeSlurm, home: Path) -> None:
    fake_slurm.configure(limits={})
    paths = waits(fake_slurm, home / "runs" / "demo-1", "AssocMaxJobsLimit")
    watcher = watcher_of(RunSnapshot(paths))
    for _ in range(3):
        assert run_status(paths, watcher, mode="standard", limits=True).stages[1].waiting is not None
    assert (len(fake_slurm.calls("squeue")), len(fake_slurm.calls("sacctmgr"))) == (1, 1)


def test_a_running_job_is_not_asked_for(fake_slurm: FakeSlurm, home: Path, types: Types) -> None:
    waits(fake_slurm, home / "runs" / "demo-1", "AssocMaxJobsLimit")
    fake_slurm.set("101", "RUNNING", nodes="n1")
    assert waiting(types) is None
    assert not fake_slurm.calls("sacctmgr")
