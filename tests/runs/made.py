"""Runs that are written, submitted or noted by hand, for tests to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.render.cases import plan_of
from tests.scheduler.fake_slurm import FakeSlurm
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.render.run_folder import write_run
from trtllm_hpc.scheduler.submission_record import SubmissionRecord

CLUSTER: dict[str, Any] = {"name": "here", "partition": "batch"}


def written(folder: Path, job: dict[str, Any] | None = None, **cluster: Any) -> tuple[Plan, RunPaths]:
    """A rendered run of three stages."""
    plan = plan_of({"name": "demo", **(job or {})}, {**CLUSTER, **cluster}, str(folder))
    return plan, write_run(plan)


def submitted(folder: Path, job_ids: dict[str, str], *, complete: bool = True) -> RunPaths:
    """A rendered run with a record that says which job is which stage."""
    _, paths = written(folder)
    record = SubmissionRecord(scheduler="slurm")
    for stage, job_id in job_ids.items():
        record.add(paths, stage, job_id)
    record.complete = complete
    record.write(paths)
    return paths


def run_with(fake_slurm: FakeSlurm, folder: Path, *stages: str) -> RunPaths:
    """A submitted run whose jobs are in these states; an exit code may follow, as in ``FAILED=1:0``."""
    jobs = {}
    for name, stage in zip(STAGES[1:], stages, strict=True):
        state, _, code = stage.partition("=")
        nodes = "" if state == "PENDING" else "n1"
        jobs[name] = fake_slurm.add(state, exit=code or "0:0", nodes=nodes, reason="Dependency")
    paths = submitted(folder, jobs)
    fake_slurm.assign(paths, jobs)
    return paths
