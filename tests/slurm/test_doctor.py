"""The checks on a real Slurm: before the queue, and in the job's first seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.schemas.check import documented
from tests.slurm.conftest import Person
from tests.slurm.test_backbone import two_ranks
from trtllm_hpc.errors import ExitCode
from trtllm_hpc.runtime.records import read_events

pytestmark = pytest.mark.slurm


def outcomes(person: Person, job: Path, *words: str) -> dict[str, dict[str, str]]:
    answer = person.types("doctor", job, "--cluster", person.profile, "--json", *words)
    return {row["code"]: row for row in documented("doctor", answer.stdout)["checks"]}


def test_doctor_asks_this_slurm(person: Person, engine: Path) -> None:
    job = person.job("asked", **two_ranks(engine))
    rows = outcomes(person, job)
    assert {row["state"] for row in rows.values()} <= {"ok", "unknown"}, rows
    assert rows["mpi-plugin"]["message"] == "this Slurm has the MPI plugin pmix"
    found = "the partition 'batch' has 4 nodes with 4 GPUs that are simulated: nothing can compute on them"
    assert rows["partition"]["message"] == found
    assert rows["engine-files"]["state"] == rows["engine-world"]["state"] == "ok"
    wrong = outcomes(person, job, "--set", "cluster.mpi=openmpi", "--set", "cluster.partition=gpu")
    assert "no MPI plugin 'openmpi', only" in wrong["mpi-plugin"]["message"]
    assert "no partition 'gpu'; you can use batch" in wrong["partition"]["message"]
    assert rows["partition-limits"]["state"] == "ok"
    long = outcomes(person, job, "--set", "cluster.partition=debug")["partition-limits"]
    assert "requests 60 minutes, but the partition 'debug' allows 30" in long["message"]
    wide = outcomes(person, job, "--set", "serve.nodes=5", "--set", "serve.instances=5")["partition-limits"]
    assert "nodes, but the partition 'batch' allows a job at most 4 nodes" in wide["message"]


def test_what_cannot_work_does_not_reach_the_queue(person: Person, engine: Path) -> None:
    job = person.job("refused", **two_ranks(engine))
    words = ("submit", job, "--cluster", person.profile, "--set", "cluster.mpi=openmpi")
    answer = person.types(*words)
    assert answer.returncode == ExitCode.CONFIG and answer.stdout == ""
    assert "check mpi-plugin: this Slurm has no MPI plugin 'openmpi'" in answer.stderr
    assert "--ignore mpi-plugin" in answer.stderr
    assert person.has_no_jobs()


@pytest.mark.thorough
def test_what_is_ignored_before_the_queue_is_refused_in_the_job(
    person: Person, engine: Path, home: Path
) -> None:
    broken = home.parent / "a broken engine"
    shutil.copytree(engine, broken)
    (broken / "model" / "model.safetensors").unlink()
    job = person.job("broken", **two_ranks(broken))
    refused = person.types("submit", job, "--cluster", person.profile)
    assert refused.returncode == ExitCode.CONFIG and "model.safetensors is missing" in refused.stderr
    _, run = person.submit(job, "--ignore", "engine-files", exit_code=ExitCode.START)
    [event] = [event for event in read_events(run) if event.name == "preflight_failed"]
    assert "is incomplete: model/model.safetensors is missing; build it again" in event.data["reason"]
    assert "error: preflight: the engine in" in run.rank_log("preflight", 0).read_text()
