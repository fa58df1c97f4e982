"""Slurm's information about a job, from its commands' rows, and the check that a job belongs to a run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.scheduler.states import JobState


@dataclass(frozen=True)
class Origin:
    """Slurm's record of where a job comes from; a field is empty if the command does not print it."""

    uid: int | None = None
    user: str = ""
    name: str = ""
    folder: str = ""
    """Folder in which sbatch was called."""
    script: str = ""
    """Path of the script, which may be relative to ``folder`` (squeue, scontrol)."""
    output: str = ""
    """Path of the log (scontrol)."""
    submit_line: str = ""
    """The command line of sbatch (sacct)."""


@dataclass(frozen=True)
class RunJob:
    """A job that a run has submitted, and what Slurm must have recorded about it."""

    job_id: str
    stage: str
    folders: tuple[str, ...]
    """All known paths of the run folder."""
    name: str | None
    """Name that the rendered script gives the job; ``None`` if the plan is unreadable."""
    uids: frozenset[int]
    """IDs of the users who may have submitted the job."""

    @classmethod
    def of(
        cls, paths: RunPaths, plan: PlanRecord | None, job_ids: Mapping[str, str | None]
    ) -> dict[str, RunJob]:
        """Return the jobs of a run with this plan by stage; stages without a job are left out."""
        names = {} if plan is None else {stage.name: stage.job_name for stage in plan.stages}
        folders = dict.fromkeys((str(paths.folder), os.path.realpath(paths.folder)))
        planned = paths.folder if plan is None else Path(plan.run_folder)
        try:
            if not planned.exists() or planned.samefile(paths.folder):  # otherwise this folder is a copy
                folders[str(planned)] = None
            uids = frozenset((os.getuid(), paths.folder.stat().st_uid))
        except OSError:  # the folder is gone
            uids = frozenset((os.getuid(),))
        return {
            stage: cls(job_id, stage, tuple(folders), names.get(stage), uids)
            for stage, job_id in job_ids.items()
            if job_id
        }

    def is_of(self, origin: Origin) -> bool:
        """Return whether a job with this ID and origin is this job.

        A job ID does not identify a job: a controller that has lost its state, or has used its last ID,
        begins again with the first, and IDs of older runs then belong to other jobs.

        The origin must show that the same user has submitted this run's script, or a job with the stage's
        name that writes its log into the run folder or was submitted there.
        """
        if origin.uid not in self.uids:
            return False
        scripts = [str(RunPaths(folder).sbatch(self.stage)) for folder in self.folders]
        # squeue prints the script as it was passed to sbatch, e.g. ./scripts/serve.sbatch.
        script = os.path.normpath(Path(origin.folder, origin.script))
        if script in scripts or any(_names(origin, script) for script in scripts):
            return True
        places = [_plain(f"{place}/") for place in (origin.output, origin.folder)]
        inside = any(place.startswith(_plain(f"{folder}/")) for place in places for folder in self.folders)
        return inside and self.has_name_of(origin)

    def has_name_of(self, origin: Origin) -> bool:
        """Return whether the origin has this job's user and name, with or without a token."""
        return origin.uid in self.uids and self.name in (origin.name, origin.name.partition(":")[0])


def _names(origin: Origin, script: str) -> bool:
    """Return whether sbatch's command line names a script, by its full or its relative path."""
    names = [script]
    if origin.folder:
        relative = os.path.relpath(_plain(script), _plain(origin.folder))
        names += [relative, f"./{relative}"]
    return any(_plain(f" {name} ") in _plain(f" {origin.submit_line} ") for name in names)


def _plain(path: str) -> str:
    """Return a path as slurmdbd stores it: with backquotes in place of double quotes."""
    return path.replace('"', "`")


@dataclass(frozen=True)
class JobTimes:
    """Times of a job in seconds since the epoch; ``None``: not known."""

    submitted_at: float | None = None
    started_at: float | None = None
    """Start of the job; ``None`` before."""
    ended_at: float | None = None
    """End of the job; ``None`` before."""
    ends_by: float | None = None
    """Time at which the time limit ends the job; ``None`` unless the job runs."""
    expected_at: float | None = None
    """Time at which Slurm expects a pending job to start; ``None`` if unknown."""


@dataclass(frozen=True)
class JobInfo:
    """Slurm's information about one job."""

    job_id: str
    state: JobState
    reason: str = ""
    """Reason why the job is pending; empty otherwise."""
    nodes: str = ""
    """The job's nodes in Slurm's notation."""
    exit_code: int | None = None
    exit_signal: int | None = None
    """The number that Slurm shows beside the exit code."""
    times: JobTimes = JobTimes()
    gpus: int | None = None
    """Number of GPUs that the job has; ``None`` if accounting does not show it."""
    energy_j: float | None = None
    """Energy in joules; ``None`` if Slurm does not measure it."""
    origin: Origin = field(default_factory=Origin)


def whole_job(job_id: str) -> str:
    """Return a job's ID from the ID of a component of a heterogeneous job: ``123`` from ``123+1``."""
    return job_id.partition("+")[0]


def by_id(components: Iterable[JobInfo]) -> dict[str, list[JobInfo]]:
    """Return rows by the ID of the whole job, in the order of the components."""
    jobs: dict[str, list[JobInfo]] = {}
    for component in sorted(components, key=lambda row: row.job_id):  # squeue prints another order
        jobs.setdefault(whole_job(component.job_id), []).append(component)
    return jobs


def accounted(job: RunJob, rows: Iterable[JobInfo], queued: JobInfo | None) -> JobInfo | None:
    """Return the end of a job from sacct's rows; ``None``: sacct does not know it yet.

    ``queued`` is the same job in squeue. It identifies a row by its time, because for a few seconds the
    database has a job's times but not its user.
    """
    submitted_at = None if queued is None else queued.times.submitted_at
    newest: dict[str, JobInfo] = {}
    for row in sorted(rows, key=lambda row: row.times.submitted_at or 0.0):
        if job.is_of(row.origin) or (submitted_at is not None and row.times.submitted_at == submitted_at):
            newest[row.job_id] = row  # the last attempt of a requeued job
    info = together(list(newest.values()))
    # If the database does not know yet that the job has ended, the controller is asked.
    return info if info is not None and info.state.final else None


def together(components: Sequence[JobInfo]) -> JobInfo | None:
    """Merge the components of a job: the state of a living or else a failed component, the nodes of all."""

    def order(component: JobInfo) -> tuple[bool, bool, bool, bool]:
        name, final = component.state.name, component.state.final
        # NODE_FAIL first: it makes the script fail as well, in the first component.
        return final, name == "COMPLETED", name == "CANCELLED", name != "NODE_FAIL"

    if not components:
        return None
    if len(components) == 1:
        return replace(components[0], job_id=whole_job(components[0].job_id))
    gpus = [component.gpus for component in components if component.gpus is not None]
    energies = [component.energy_j for component in components if component.energy_j is not None]
    reasons = (component.reason for component in components if component.reason not in ("", "None"))
    return replace(
        min(components, key=order),
        job_id=whole_job(components[0].job_id),
        reason=next(reasons, ""),
        nodes=",".join(component.nodes for component in components if component.nodes),
        gpus=sum(gpus) if gpus else None,
        energy_j=sum(energies) if energies else None,
    )
