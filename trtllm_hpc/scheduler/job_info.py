"""What Slurm reports about a job, from the rows that its commands print; and whether the job is a run's."""

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
    """What Slurm has recorded about where a job comes from; empty where the command does not print it."""

    uid: int | None = None
    user: str = ""
    name: str = ""
    folder: str = ""
    """The folder in which sbatch was called."""
    script: str = ""
    """Its path, which may be relative to the folder (squeue, scontrol)."""
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
    """Every path by which the run folder is known."""
    name: str | None
    """Name that the rendered script gives the job; ``None`` if the plan is unreadable."""
    uids: frozenset[int]
    """Who may have submitted it."""

    @classmethod
    def of(
        cls, paths: RunPaths, plan: PlanRecord | None, job_ids: Mapping[str, str | None]
    ) -> dict[str, RunJob]:
        """Return the jobs of a run with this plan by stage, without the stages that have no job."""
        names = {} if plan is None else {stage.name: stage.job_name for stage in plan.stages}
        folders = dict.fromkeys((str(paths.folder), os.path.realpath(paths.folder)))
        planned = paths.folder if plan is None else Path(plan.run_folder)
        try:
            if not planned.exists() or planned.samefile(paths.folder):  # else this is a copy of that run
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
        """Return whether a job with this id and origin is this job. Nothing else decides that.

        An id alone does not: a controller that has lost its state, or has used its last id, begins again with
        the first, and ids of older runs then belong to other jobs.

        The same user has submitted this run's script; or a job of the stage's name that writes its log into
        the run folder, or was submitted there.
        """
        if origin.uid not in self.uids:
            return False
        scripts = [str(RunPaths(folder).sbatch(self.stage)) for folder in self.folders]
        # Of "sbatch ./scripts/serve.sbatch" squeue prints just that.
        script = os.path.normpath(Path(origin.folder, origin.script))
        if script in scripts or any(_names(origin, script) for script in scripts):
            return True
        places = [_plain(f"{place}/") for place in (origin.output, origin.folder)]
        inside = any(place.startswith(_plain(f"{folder}/")) for place in places for folder in self.folders)
        return inside and self.has_name_of(origin)

    def has_name_of(self, origin: Origin) -> bool:
        """Return whether a job of this origin has this job's user and name, with or without a token."""
        return origin.uid in self.uids and self.name in (origin.name, origin.name.partition(":")[0])


def _names(origin: Origin, script: str) -> bool:
    """Return whether the command line of sbatch names a script, which may be relative to its folder."""
    names = [script]
    if origin.folder:
        relative = os.path.relpath(_plain(script), _plain(origin.folder))
        names += [relative, f"./{relative}"]
    return any(_plain(f" {name} ") in _plain(f" {origin.submit_line} ") for name in names)


def _plain(path: str) -> str:
    """Return a path as slurmdbd keeps the folder of a job: with another character for double quotes."""
    return path.replace('"', "`")


@dataclass(frozen=True)
class JobTimes:
    """When a job did or will do what, in seconds since the epoch; ``None`` where that is not known."""

    submitted_at: float | None = None
    started_at: float | None = None
    """``None`` before its start."""
    ended_at: float | None = None
    """``None`` before its end."""
    ends_by: float | None = None
    """When its time limit ends it; ``None`` unless it runs."""
    expected_at: float | None = None
    """When Slurm expects a pending job to start."""


@dataclass(frozen=True)
class JobInfo:
    """What Slurm reports about one job."""

    job_id: str
    state: JobState
    reason: str = ""
    """Why it pends; empty otherwise."""
    nodes: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    times: JobTimes = JobTimes()
    gpus: int | None = None
    """GPUs that it was given; ``None`` if accounting does not say."""
    energy_j: float | None = None
    """``None`` where Slurm does not measure it."""
    origin: Origin = field(default_factory=Origin)


def whole_job(job_id: str) -> str:
    """Return the id of a job from that of a component of a heterogeneous one, as ``123`` from ``123+1``."""
    return job_id.partition("+")[0]


def by_id(components: Iterable[JobInfo]) -> dict[str, list[JobInfo]]:
    """Return rows by the id of the whole job, in the order of the components."""
    jobs: dict[str, list[JobInfo]] = {}
    for component in sorted(components, key=lambda one: one.job_id):  # squeue has an order of its own
        jobs.setdefault(whole_job(component.job_id), []).append(component)
    return jobs


def accounted(job: RunJob, rows: Iterable[JobInfo], queued: JobInfo | None) -> JobInfo | None:
    """Return how a job has ended by sacct's rows; ``None``: sacct does not know yet.

    For seconds the database has a job's times, but not whose it is; ``queued`` is the same job in squeue.
    """
    submitted_at = None if queued is None else queued.times.submitted_at
    newest: dict[str, JobInfo] = {}
    for row in sorted(rows, key=lambda row: row.times.submitted_at or 0.0):
        if job.is_of(row.origin) or (submitted_at is not None and row.times.submitted_at == submitted_at):
            newest[row.job_id] = row  # of a job that was requeued, the last attempt
    info = together(list(newest.values()))
    # The database may not know yet that a job has ended; then the controller says it.
    return info if info is not None and info.state.final else None


def together(components: Sequence[JobInfo]) -> JobInfo | None:
    """Merge components, if any: the state of a living one, else of the one that failed; the nodes of all."""

    def order(one: JobInfo) -> tuple[bool, bool, bool, bool]:
        name, final = one.state.name, one.state.final
        # After NODE_FAIL the script fails too, in the first component.
        return final, name == "COMPLETED", name == "CANCELLED", name != "NODE_FAIL"

    if not components:
        return None
    if len(components) == 1:
        return replace(components[0], job_id=whole_job(components[0].job_id))
    gpus = [one.gpus for one in components if one.gpus is not None]
    energies = [one.energy_j for one in components if one.energy_j is not None]
    return replace(
        min(components, key=order),
        job_id=whole_job(components[0].job_id),
        reason=next((one.reason for one in components if one.reason not in ("", "None")), ""),
        nodes=",".join(one.nodes for one in components if one.nodes),
        gpus=sum(gpus) if gpus else None,
        energy_j=sum(energies) if energies else None,
    )
