"""The journal of a submission: which job is which stage, and whether all are sent."""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from trtllm_hpc.paths import RunPaths, read_json, write_json


@dataclass
class StageJob:
    """One submitted stage."""

    job_id: str
    """Slurm's job id; with the local profile the process id of submitit's controller."""
    submitted_at: float
    process_started: int | None = None
    """Local profile: start time of that process in clock ticks since boot, against reuse of its id."""


@dataclass
class Journal:
    """What ``submit`` has done so far; rewritten after every step."""

    scheduler: str
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Shared by all jobs of this submission; see ``runtime.stage``."""
    slurm_conf: str | None = None
    complete: bool = False
    """Whether every stage was submitted. Jobs wait for it before they do anything."""
    stages: dict[str, StageJob] = field(default_factory=dict)

    def add(self, paths: RunPaths, stage: str, job_id: str, process_started: int | None = None) -> None:
        """Note a submitted stage."""
        self.stages[stage] = StageJob(job_id, time.time(), process_started)
        self.write(paths)

    def write(self, paths: RunPaths) -> None:
        """Write the journal; readers see the old or the new one."""
        write_json(paths.jobs, asdict(self))


def read_journal(paths: RunPaths) -> Journal | None:
    """The journal of a run; ``None`` if it was never submitted by ``submit``.

    Keys that this version does not know are passed over: the writer may be newer.
    """
    try:
        raw: Any = read_json(paths.jobs)
    except ValueError:
        return None
    try:
        stages = {name: StageJob(**_known(StageJob, job)) for name, job in raw.pop("stages", {}).items()}
        return Journal(**_known(Journal, raw), stages=stages)
    except (AttributeError, TypeError):
        return None


def _known(kind: type, raw: dict[str, Any]) -> dict[str, Any]:
    names = {item.name for item in fields(kind)}
    return {name: value for name, value in raw.items() if name in names}
