"""Job ids that Slurm gives to jobs a second time, on a real Slurm and with two users."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.plans import planned_stage, write_plan
from tests.sharing import sandbox_name
from tests.slurm.conftest import Person, bare_server
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.sandbox import Sandbox
from trtllm_hpc.sandbox.hosts import Folder
from trtllm_hpc.scheduler.job_info import RunJob
from trtllm_hpc.scheduler.slurm import Slurm, run_command

pytestmark = [pytest.mark.slurm, pytest.mark.thorough]

NODES, GPUS = 2, 4


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    """A cluster of these tests' own, which they start anew."""
    made = Sandbox(sandbox_name("identity"))
    made.up(NODES, GPUS)
    yield made
    made.down()


@pytest.fixture
def people(sandbox: Sandbox, installed: Path, home: Path) -> Iterator[tuple[Person, Person]]:
    """Two ordinary users of it, each with a folder of their own; none of their jobs is left."""
    found = []
    for user in (pwd.getpwnam("nobody"), pwd.getpwnam("daemon")):
        folder = home.parent / f"identity of {user.pw_name}"
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, user.pw_uid, user.pw_gid)
        profile = folder / "cluster.yaml"
        settings = {
            "name": "identity",
            "slurm_conf": str(sandbox.slurm_conf),
            "partition": "batch",
            "gpus_per_node": GPUS,
            "triton": {"server": "pytriton"},
            "runs_folder": str(folder / "runs"),
        }
        profile.write_text(json.dumps(settings), encoding="utf-8")
        found.append(Person(sandbox, installed, folder, profile, user=user))
    yield (found[0], found[1])
    for person in found:
        person.slurm("scancel", f"--user={person.user.pw_name}")
        assert person.has_no_jobs()


def started(person: Person) -> tuple[RunPaths, str]:
    """A server of theirs that is ready, and its job."""
    job = person.job("demo", **bare_server(person.folder, keep_running=True))
    run = person.serves(job)
    return run, serve_of(person, run)["job_id"]


def serve_of(person: Person, run: RunPaths) -> dict[str, Any]:
    [stage] = person.status(run)["stages"]
    return dict(stage)


def states(person: Person) -> dict[str, str]:
    """What ``runs`` says of each run."""
    listed = person.types("runs", "--runs", person.folder / "runs", "--json")
    assert listed.returncode == 0, listed.stderr
    return {row["run_id"]: row["state"] for row in json.loads(listed.stdout)}


def runs_on(person: Person, job: str) -> bool:
    return job in person.jobs_in_queue("--states=RUNNING")


def test_who_cancels_a_run_of_yesterday_ends_no_job_of_today(
    sandbox: Sandbox, people: tuple[Person, Person], monkeypatch: pytest.MonkeyPatch
) -> None:
    ana, bob = people
    (first, first_job), (second, second_job) = started(ana), started(ana)
    start_anew(sandbox, monkeypatch)
    mine, my_job = started(ana)
    theirs, their_job = started(bob)
    assert [my_job, their_job] == [first_job, second_job], "ids begin again"

    for run, job, owner in ((first, my_job, "nobody"), (second, their_job, "daemon")):
        stage = serve_of(ana, run)
        assert stage["state"] == "LOST" and stage["gpu_hours"] is None, stage
        assert f"job {job} is another job now: demo-serve of {owner}" in stage["sentence"]
    assert states(ana) == {first.run_id: "lost", second.run_id: "lost", mine.run_id: "serving"}

    root = replace(ana, user=pwd.getpwnam("root"))  # may cancel everybody's jobs
    for person, run in ((ana, first), (ana, first), (root, first), (root, second)):
        cancelled = person.types("cancel", run.folder)
        assert "is another job now" in cancelled.stdout, cancelled.stdout + cancelled.stderr
    assert runs_on(ana, my_job) and runs_on(bob, their_job)

    again = ana.types("resume", first.folder)
    assert again.returncode == 0, again.stderr
    new_job = serve_of(ana, first)["job_id"]
    assert new_job not in (my_job, their_job)
    assert ana.types("cancel", first.folder).returncode == 0
    assert eventually(lambda: new_job not in ana.jobs_in_queue(), 60)
    assert runs_on(ana, my_job) and runs_on(bob, their_job)
    assert bob.types("cancel", theirs.folder).returncode == 0
    assert eventually(bob.has_no_jobs, 60) and runs_on(ana, my_job)


def test_every_way_to_submit_a_script_is_seen_in_what_slurm_records(sandbox: Sandbox, home: Path) -> None:
    """Slurm prints each of them in another way; beside them a job of the same user and name of no run."""
    run, parts = (hand_made(home / "by hand" / name) for name in ("demo-1", "parts-1"))
    script = run.sbatch("serve")
    parts.sbatch("serve").write_text(script_of(parts, "#SBATCH hetjob", "#SBATCH --ntasks=1"))
    copy = run.folder.parent / "copy.sbatch"
    shutil.copy(script, copy)
    slurm = Slurm(str(sandbox.slurm_conf))

    def job(paths: RunPaths, *words: str | Path, cwd: Path = home, text: str | None = None) -> RunJob:
        command = ["sbatch", "--parsable", *map(str, words)]
        environment = {**os.environ, **sandbox.environment()}
        said = subprocess.check_output(command, cwd=cwd, input=text, text=True, env=environment)
        return RunJob.of(paths, PlanRecord.read(paths), {"serve": said.strip()})["serve"]

    ways = {
        "by its path": job(run, script),
        "from its folder": job(run, "scripts/serve.sbatch", cwd=run.folder),
        "under another name": job(run, "-J", "my, 'own' x", "./demo-1/scripts/serve.sbatch", cwd=copy.parent),
        "on standard input": job(run, cwd=run.folder, text=script.read_text()),
        "a copy": job(run, copy),
        "in two parts": job(parts, parts.sbatch("serve")),
    }
    other = job(run, "-J", "demo-serve", "-o", "/dev/null", "--wrap", "echo x\nsleep 600")

    def states() -> dict[str, str]:
        found = slurm.query([*ways.values(), other])
        return {way: found[it].state.name for way, it in {**ways, "other": other}.items()}

    def all_are(state: str) -> bool:
        return states() == {**dict.fromkeys(ways, state), "other": "LOST"}

    assert eventually(lambda: all_are("RUNNING"), 60), str(states())
    requeued = run_command(["scontrol", "requeue", ways["by its path"].job_id], str(sandbox.slurm_conf))
    assert requeued.returncode == 0, requeued.stderr
    assert eventually(lambda: states()["by its path"] == "PENDING", 60), states()
    slurm.cancel([*ways.values(), other])
    assert eventually(lambda: all_are("CANCELLED"), 60), states()
    [left] = run_command(["squeue", "--noheader", "--format=%i"], str(sandbox.slurm_conf)).stdout.split()
    assert left == other.job_id
    assert run_command(["scancel", other.job_id], str(sandbox.slurm_conf)).returncode == 0


def hand_made(folder: Path) -> RunPaths:
    """A run whose only script sleeps."""
    paths = RunPaths(folder)
    paths.make_folders()
    write_plan(paths, stages=(planned_stage("serve"),))
    paths.sbatch("serve").write_text(script_of(paths), encoding="utf-8")
    return paths


def script_of(paths: RunPaths, *further: str) -> str:
    log = str(paths.batch_log("serve")).replace('"', '\\"')
    lines = ["#!/bin/bash", "#SBATCH --job-name=demo-serve", f'#SBATCH --output="{log}"', "#SBATCH --requeue"]
    return "\n".join([*lines, *further, "sleep 600", ""])


def start_anew(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """``sandbox down`` and ``up``; no other sandbox takes its network meanwhile, which decides the ids."""
    assert sandbox.layout is not None
    subnet = sandbox.layout.subnet
    claim = Folder(f"{sandbox.name}-kept").state
    claim.parent.mkdir()
    try:
        claim.write_text(json.dumps({"subnet": subnet}), encoding="utf-8")
        sandbox.down()
        monkeypatch.setattr("trtllm_hpc.sandbox.sandbox.free_subnet", lambda taken: subnet)
        sandbox.up(NODES, GPUS)
    finally:
        shutil.rmtree(claim.parent)
