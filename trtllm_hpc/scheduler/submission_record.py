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
    """A submitted stage."""

    job_id: str
    """Slurm's job ID; with the local profile, the process ID of submitit's controller."""
    submitted_at: float
    """Seconds since the epoch."""
    process_started: int | None = None
    """Local profile: start time of the process in clock ticks since boot, because process IDs are reused."""


@dataclass
class SubmissionRecord:
    """The progress of ``submit``; written again after every step."""

    scheduler: str
    token: str = field(default_factory=lambda: os.urandom(8).hex())
    """Shared by all jobs of this submission; see ``runtime.stage``."""
    slurm_conf: str | None = None
    slurm_cluster: str | None = None
    """Name of the jobs' cluster, if the machine serves several."""
    complete: bool = False
    """Whether every stage was submitted. Jobs wait for this before they do anything."""
    stages: dict[str, StageJob] = field(default_factory=dict)
    lane: int | None = None
    """Lane of a sweep's variant; variants in the same lane run one after another (``sweep.max_running``)."""
    within: str | None = None
    """Folder of the sweep whose single job runs the stages, one variant after another."""

    @property
    def controller(self) -> tuple[str | None, str | None]:
        """``SLURM_CONF`` and the cluster that Slurm's commands use."""
        return self.slurm_conf, self.slurm_cluster

    def add(self, paths: RunPaths, stage: str, job_id: str, process_started: int | None = None) -> None:
        """Add a submitted stage and write the record."""
        self.stages[stage] = StageJob(job_id, time.time(), process_started)
        self.write(paths)

    def write(self, paths: RunPaths) -> None:
        """Write the record atomically: readers see the old or the new record, never a part."""
        write_json(paths.jobs, asdict(self))


def read_submission(paths: RunPaths) -> SubmissionRecord | None:
    """Return the submission record of a run, even a newer version's; ``None`` if never submitted."""
    try:
        raw: Any = read_json(paths.jobs)
        jobs = raw.pop("stages", {}).items()
        stages = {name: StageJob(**known_fields(StageJob, job)) for name, job in jobs}
        return SubmissionRecord(**known_fields(SubmissionRecord, raw), stages=stages)
    except (ValueError, AttributeError, TypeError):
        return None
