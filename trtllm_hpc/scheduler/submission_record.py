"""The record of a submission (``jobs.json``): the job of each stage, and whether all were submitted."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runtime.records import known_fields


@dataclass
class StageJob:
    """One submitted stage."""

    job_id: str
    """Slurm's job id; with the local profile the process id of submitit's controller."""
    submitted_at: float
    process_started: int | None = None
    """Local profile: start time of that process in clock ticks since boot, because process ids are reused."""


@dataclass
class SubmissionRecord:
    """What ``submit`` has done so far; written again after every step."""

    scheduler: str
    token: str = field(default_factory=lambda: os.urandom(8).hex())
    """Shared by all jobs of this submission; see ``runtime.stage``."""
    slurm_conf: str | None = None
    slurm_cluster: str | None = None
    """The cluster that has the jobs, of several that the machine serves."""
    complete: bool = False
    """Whether every stage was submitted. Jobs wait for this before they do anything."""
    stages: dict[str, StageJob] = field(default_factory=dict)
    lane: int | None = None
    """Of a sweep's variant: those of one lane run one after another (``sweep.max_running``)."""
    within: str | None = None
    """Folder of the sweep whose single job runs the stages, one variant after another."""

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """Where Slurm's commands ask: ``SLURM_CONF`` and the cluster."""
        return self.slurm_conf, self.slurm_cluster

    def add(self, paths: RunPaths, stage: str, job_id: str, process_started: int | None = None) -> None:
        """Add a submitted stage and write the record."""
        self.stages[stage] = StageJob(job_id, time.time(), process_started)
        self.write(paths)

    def write(self, paths: RunPaths) -> None:
        """Write the record; readers see the old or the new one, never a part."""
        write_json(paths.jobs, asdict(self))


def read_submission(paths: RunPaths) -> SubmissionRecord | None:
    """Return the record of a run, a newer version's too; ``None`` if it was never submitted."""
    try:
        raw: Any = read_json(paths.jobs)
        jobs = raw.pop("stages", {}).items()
        stages = {name: StageJob(**known_fields(StageJob, job)) for name, job in jobs}
        return SubmissionRecord(**known_fields(SubmissionRecord, raw), stages=stages)
    except (ValueError, AttributeError, TypeError):
        return None
