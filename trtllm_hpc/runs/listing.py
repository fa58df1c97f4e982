"""All runs of a folder with their states; Slurm is asked once for all that have not ended.

How a run ended is kept in its folder (``ended.json``), so thousands of old runs cost a look at their files.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths, read_plan
from trtllm_hpc.runs.find import list_runs
from trtllm_hpc.runs.stages import StageStatus, planned, stages_of, watched_jobs
from trtllm_hpc.runs.status import RunState, is_settled, run_use, state_of
from trtllm_hpc.runtime.records import Endpoint, JsonRecord, read_events
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission

if TYPE_CHECKING:
    from trtllm_hpc.scheduler.executor import JobWatcher

Warn = Callable[[str], object]


@dataclass(frozen=True)
class ListedRun:
    """One run."""

    run_id: str
    folder: str
    """The run folder."""
    name: str
    """The job's."""
    model: str | None
    """Its folder, or the name of a synthetic one; ``None``: a finished engine, or an older version's run."""
    state: RunState | None
    """``None``: Slurm does not answer."""
    endpoint: str | None
    """``address:port`` for HTTP, while the run serves."""
    created_at: float
    """Seconds since the epoch."""
    ended_at: float | None = None
    """When its last job ended; ``None`` before that, or if it is not known."""
    waited_s: float | None = None
    """From the submission to the start of the first job."""
    gpu_hours: float | None = None
    """Of all its jobs, as far as it is known."""
    settled: bool = False
    """Whether every job has ended, and the run stays as it is."""
    live: bool = False
    """Whether a job of the run is in the queue or runs."""


@dataclass(frozen=True)
class _Ended(JsonRecord):
    """What ``ended.json`` holds."""

    token: str
    """Of the submission that ended so: a resumed run has another one."""
    events: int
    """Bytes in the run's event files then: a stage that was run again by hand adds to them."""
    name: str
    model: str | None
    state: str
    ended_at: float | None
    waited_s: float | None
    gpu_hours: float | None


@dataclass(frozen=True)
class _Found:
    """A run whose state is not known yet."""

    paths: RunPaths
    created_at: float
    record: SubmissionRecord | None

    @property
    def conf(self) -> str | None:
        """``SLURM_CONF`` of its cluster."""
        return self.record.slurm_conf if self.record else planned(self.paths, "slurm_conf")

    @property
    def is_local(self) -> bool:
        """Whether its jobs are processes."""
        return (self.record.scheduler if self.record else planned(self.paths, "scheduler")) == "local"


def listed_runs(
    runs_folder: Path,
    *,
    states: Sequence[RunState] = (),
    name: str | None = None,
    since: float | None = None,
    warn: Warn = lambda sentence: None,
) -> list[ListedRun]:
    """Return the runs of a folder, the newest first.

    Args:
        states: only runs in one of these; all without any.
        name: only runs of the job of that name.
        since: only runs created after that, in seconds since the epoch.
        warn: receives a sentence about each cluster that does not answer.
    """
    known: dict[RunPaths, ListedRun] = {}
    unknown: list[_Found] = []
    order = []
    for paths in list_runs(runs_folder):
        created_at = _created_at(paths)
        if created_at is None or (since is not None and created_at < since):
            continue
        order.append(paths)
        record = read_submission(paths)
        ended = _remembered(paths, record, created_at)
        if ended is not None:
            known[paths] = ended
        elif name is None or read_plan(paths).get("name") == name:
            unknown.append(_Found(paths, created_at, record))
    known |= _asked(unknown, warn)
    rows = [known[paths] for paths in order if paths in known]
    return [row for row in rows if name in (None, row.name) and (not states or row.state in states)]


def _created_at(paths: RunPaths) -> float | None:
    try:
        return paths.plan.stat().st_mtime
    except OSError:
        return None  # removed meanwhile


def _remembered(paths: RunPaths, record: SubmissionRecord | None, created_at: float) -> ListedRun | None:
    ended = _Ended.read(paths.ended)
    if ended is None or record is None or (ended.token, ended.events) != (record.token, _event_bytes(paths)):
        return None
    return ListedRun(
        paths.run_id,
        str(paths.folder),
        ended.name,
        ended.model,
        RunState(ended.state),
        None,
        created_at,
        ended.ended_at,
        ended.waited_s,
        ended.gpu_hours,
        settled=True,
    )


def _event_bytes(paths: RunPaths) -> int:
    return sum(file.stat().st_size for file in paths.events.glob("*.jsonl"))


def _asked(runs: Sequence[_Found], warn: Warn) -> dict[RunPaths, ListedRun]:
    """Return these runs by their paths; each cluster is asked once."""
    rows = {run.paths: _row(run, None, {}) for run in runs if run.is_local}
    by_cluster: dict[str | None, list[_Found]] = {}
    for run in runs:
        if not run.is_local:
            by_cluster.setdefault(run.conf, []).append(run)
    for conf, its in by_cluster.items():
        try:
            watcher, queued = _query(Slurm(conf), its)
        except SubmissionError as error:
            warn(f"The states of {len(its)} runs are not known: {error.message}")
            rows |= {run.paths: _unanswered(run) for run in its}
        else:
            rows |= {run.paths: _row(run, watcher, queued) for run in its}
    return rows


def _query(slurm: Slurm, runs: Iterable[_Found]) -> tuple[JobWatcher, dict[Path, str]]:
    """Ask for the jobs of all runs at once, and for the scripts of those that nobody has submitted yet."""
    from trtllm_hpc.scheduler.executor import JobWatcher  # submitit takes 0.1 s to import

    watcher, scripts, known = JobWatcher(slurm), [], list(runs)
    for run in known:
        if run.record is None:
            scripts += [run.paths.sbatch(stage["name"]) for stage in read_plan(run.paths).get("stages", [])]
    queued = slurm.find_scripts(scripts)
    jobs = {job for run in known for job in watched_jobs(run.paths, run.record, queued).values()}
    watcher.job_infos(jobs, "force")
    return watcher, queued


def _row(run: _Found, watcher: JobWatcher | None, queued: dict[Path, str]) -> ListedRun:
    stages = stages_of(run.paths, run.record, watcher, mode="cache", queued=queued)
    state, endpoint = state_of(run.paths, stages, run.record)
    settled = is_settled(state, stages) and (not run.is_local or _ended_here(run.paths, stages))
    row = _listed(run, state, endpoint, stages, settled=settled)
    if settled and run.record is not None:
        _remember(run, row)
    return row


def _unanswered(run: _Found) -> ListedRun:
    return _listed(run, None, None, [], settled=False)


def _listed(
    run: _Found,
    state: RunState | None,
    endpoint: Endpoint | None,
    stages: Sequence[StageStatus],
    *,
    settled: bool,
) -> ListedRun:
    plan = read_plan(run.paths)
    times = [stage.times for stage in stages]
    ends = [it.ended_at for it in times if it.ended_at is not None]
    use = run_use(run.paths, stages)
    return ListedRun(
        run.paths.run_id,
        str(run.paths.folder),
        str(plan.get("name", "")),
        plan.get("model"),
        state,
        None if endpoint is None else endpoint.place,
        run.created_at,
        max(ends) if ends and settled else None,
        use.waited_s,
        use.gpu_hours,
        settled,
        any(stage.job_id is not None and not stage.final for stage in stages),
    )


def _ended_here(paths: RunPaths, stages: Iterable[StageStatus]) -> bool:
    """Return whether a local run's processes have ended: those on other machines cannot be seen."""
    begun = {it.stage: it.data.get("host") for it in read_events(paths) if it.name == "stage_begin"}
    ended = {it.stage for it in read_events(paths) if it.name in ("stage_end", "stage_cancelled")}
    return all(
        stage.stage in ended or begun.get(stage.stage, socket.gethostname()) == socket.gethostname()
        for stage in stages
    )


def _remember(run: _Found, row: ListedRun) -> None:
    """Write down how a run ended; a folder that cannot be written is asked for again the next time."""
    if run.record is None or row.state is None:
        return
    facts = {key: value for key, value in asdict(row).items() if key in ("name", "model", "ended_at")}
    ended = _Ended(
        token=run.record.token,
        events=_event_bytes(run.paths),
        state=row.state.value,
        waited_s=row.waited_s,
        gpu_hours=row.gpu_hours,
        **facts,
    )
    with suppress(OSError):
        ended.write(run.paths.ended)
