"""What Slurm reports about a job, put together from the rows that its commands print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from trtllm_hpc.scheduler.job_origin import Origin, RunJob
from trtllm_hpc.scheduler.states import JobState


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
    unavailable: str = ""
    """The nodes that it waits for, if they are down or drained: ``n2 is drained (new disk)``."""
    nodes: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    times: JobTimes = JobTimes()
    gpus: int | None = None
    """GPUs that it was given; ``None`` if accounting does not say."""
    energy_j: float | None = None
    """``None`` where Slurm does not measure it."""
    priority: int | None = None
    """Of a pending job, as are the next two."""
    account: str = ""
    qos: str = ""
    origin: Origin = field(default_factory=Origin)


def whole_job(job_id: str) -> str:
    """Return the id of a job from that of a component of a heterogeneous one, as ``123`` from ``123+1``."""
    return job_id.partition("+")[0]


def by_id(components: Iterable[JobInfo]) -> dict[str, list[JobInfo]]:
    """Return rows by the id of the whole job, in the order of the components."""
    jobs: dict[str, list[JobInfo]] = {}
    for component in sorted(components, key=lambda one: one.job_id):  # squeue has an order of its own
        job_id = whole_job(component.job_id)
        jobs.setdefault(job_id, []).append(component)
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
        name = one.state.name
        return (
            one.state.final,
            name == "COMPLETED",
            name == "CANCELLED",
            name != "NODE_FAIL",  # after it the script fails too, in the first component
        )

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
        unavailable=next((one.unavailable for one in components if one.unavailable), ""),
        nodes=",".join(one.nodes for one in components if one.nodes),
        gpus=sum(gpus) if gpus else None,
        energy_j=sum(energies) if energies else None,
    )
