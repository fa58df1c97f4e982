"""Jobs that a real Slurm took while the site's ``sbatch`` said that it had not."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.slurm.conftest import Person, bare_server
from tests.waiting import eventually
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.renewal import Renewal

pytestmark = pytest.mark.slurm

TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


def site_sbatch(person: Person, line: str) -> None:
    """Put an ``sbatch`` before Slurm's, also in jobs: once the job is queued it runs a line."""
    tools = person.folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "sbatch").write_text(
        f'#!/bin/bash\nsaid=$({shutil.which("sbatch")} "$@")\n{line}\n', encoding="utf-8"
    )
    (tools / "sbatch").chmod(0o755)
    person.environment = {"PATH": f"{tools}:{person.bin}:{os.environ['PATH']}"}


def test_what_slurm_took_is_found_once_and_cancelled(person: Person) -> None:
    """A server that is renewed: its job and the next one; then a submission that is killed."""
    job = person.job("taken", **bare_server(person.folder, keep_running=True, renew=True))
    site_sbatch(person, f"echo '{TIMED_OUT}' >&2; exit 1")
    run = person.serves(job)
    assert eventually(lambda: Renewal.read(run.renewal), 30)
    serve = person.status(run)["stages"][0]
    assert sorted(person.jobs_in_queue()) == [serve["job_id"], serve["next_job_id"]]
    person.cancel(run)

    site_sbatch(person, "kill -9 $PPID")
    assert (
        person.types("submit", job, "--cluster", person.profile, "--set", "serve.renew=false").returncode < 0
    )
    person.environment = {}
    [folder] = {*(person.folder / "runs").glob("taken-*")} - {run.folder}
    killed = RunPaths(folder)
    [left] = person.jobs_in_queue()
    assert person.status(killed)["stages"][0]["job_id"] == left
    assert "is not over" in person.types("resume", folder).stderr
    person.cancel(killed)
