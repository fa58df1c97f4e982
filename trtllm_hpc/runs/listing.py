"""All runs of a folder with their states; Slurm is asked once for all that have not ended.

How a run ended is kept in its folder (``ended.json``), so thousands of old runs cost a look at their files.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, read_json, write_json
from trtllm_hpc.runs.find import created_at_of, list_runs
from trtllm_hpc.runs.status import (
    RunState,
    StageStatus,
    is_settled,
    run_use,
    stages_of,
    state_of,
    status_of,
    watched_jobs,
)
from trtllm_hpc.runtime.records import known_fields
from trtllm_hpc.scheduler.slurm import JobWatcher, Slurm

_LOCAL = ("local", None)
"""In place of a cluster's ``slurm.conf``: the runs of this machine."""

_FAILED = (RunState.FAILED, RunState.CANCELLED, RunState.LOST)

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
    gpu_hours: float | None = None
    """Of all its jobs, as far as it is known."""
    sentence: str | None = None
    """Why it has not completed; ``None`` unless it has failed, and only for the variants of a sweep."""
    exit_code: int | None = None
    """Of ``submit --wait``; ``None`` as above."""
    settled: bool = False
    """Whether every job has ended, and the run stays as it is."""
    live: bool = False
    """Whether a job of the run is in the queue or runs."""


def listed_runs(
    runs_folder: Path,
    *,
    states: Sequence[RunState] = (),
    reasons: bool = False,
    warn: Warn = lambda sentence: None,
) -> list[ListedRun]:
    """Return the runs of a folder, the newest first, or only those in some ``states``.

    ``reasons``: read the logs of those that have failed; ``warn`` receives a sentence about each cluster that
    does not answer, whose runs have the state ``None``.
    """
    paths = list_runs(runs_folder)
    created = {RunSnapshot(it): at for it in paths if (at := created_at_of(it)) is not None}
    rows: dict[RunSnapshot, ListedRun] = {}
    clusters: dict[tuple[str | None, str | None], list[RunSnapshot]] = {}
    for run, created_at in created.items():
        ended = _remembered(run, created_at)
        if ended is not None and not (reasons and ended.state in _FAILED and ended.exit_code is None):
            rows[run] = ended
        else:
            clusters.setdefault(_LOCAL if run.is_local else run.controller, []).append(run)
    for controller, asked in clusters.items():
        try:
            watcher, queued = (None, {}) if controller == _LOCAL else _query(Slurm(*controller), asked)
        except SubmissionError as error:
            warn(f"The states of {len(asked)} runs are not known: {error.message}")
            rows |= {run: _row(run, created[run], None, reasons=reasons) for run in asked}
            continue
        for run in asked:
            stages = stages_of(run, watcher, mode="cache", queued=queued)
            rows[run] = _row(run, created[run], stages, reasons=reasons)
    return [rows[run] for run in created if not states or rows[run].state in states]


def _remembered(run: RunSnapshot, created_at: float) -> ListedRun | None:
    """Return the row that was kept, if nothing has happened since.

    A resumed run has another token, and a stage that was run again by hand adds to the events.
    """
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):  # no such file, or damaged
        ended: Any = read_json(run.paths.ended)
        token = None if run.submission is None else run.submission.token
        if token is not None and (ended["token"], ended["events"]) == (token, _event_bytes(run.paths)):
            # The folder may have another name now.
            here = {"run_id": run.paths.run_id, "folder": str(run.paths.folder), "created_at": created_at}
            row = ListedRun(**{**known_fields(ListedRun, ended["run"]), **here})
            return replace(row, state=None if row.state is None else RunState(row.state))
    return None


def _event_bytes(paths: RunPaths) -> int | None:
    """Return the size of all events; ``None`` if they cannot be read, so that no end is remembered."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in paths.events.iterdir() if file.suffix == ".jsonl")
    return None


def _query(slurm: Slurm, runs: Sequence[RunSnapshot]) -> tuple[JobWatcher, dict[Path, str]]:
    """Query the jobs of all runs at once, and the scripts of runs that ``submit`` has not submitted whole."""
    watcher = JobWatcher(slurm)
    scripts = {
        run.paths.sbatch(stage): run.submission.token if run.submission else None
        for run in runs
        if run.submission is None or not run.submission.complete
        for stage in run.stages
    }
    queued = slurm.find_scripts(scripts)
    watcher.job_infos({job for run in runs for job in watched_jobs(run, queued).values()}, "force")
    return watcher, queued


def _row(
    run: RunSnapshot, created_at: float, stages: list[StageStatus] | None, *, reasons: bool
) -> ListedRun:
    """Return the row of a run, and keep it if the run has ended; ``stages``: ``None`` if they are unknown."""
    state = None if stages is None else state_of(run, stages)
    stages = stages or []
    settled = state is not None and is_settled(state, stages)
    if settled and run.is_local:  # processes on other machines cannot be seen
        here = socket.gethostname()
        begun = {it.stage: it.data.get("host") for it in run.all_events if it.name == "stage_begin"}
        over = {it.stage for it in run.all_events if it.name in ("stage_end", "stage_cancelled")}
        settled = all(it.stage in over or begun.get(it.stage, here) == here for it in stages)
    endpoint = None if state is None or state.final else run.endpoint
    ends = [stage.times.ended_at for stage in stages if stage.times.ended_at is not None]
    status = status_of(run, stages) if reasons and state in _FAILED else None
    row = ListedRun(
        run_id=run.paths.run_id,
        folder=str(run.paths.folder),
        name="" if run.plan is None else run.plan.name,
        model=None if run.plan is None else run.plan.model,
        state=state,
        endpoint=None if endpoint is None else endpoint.place,
        created_at=created_at,
        ended_at=max(ends) if ends and settled else None,
        gpu_hours=run_use(run, stages).gpu_hours,
        sentence=None if status is None else status.sentence,
        exit_code=None if status is None else int(status.exit_code),
        settled=settled,
        live=any(stage.job_id is not None and not stage.final for stage in stages),
    )
    size = _event_bytes(run.paths)
    # Slurm may have a job yet of a submission that did not come to its end.
    if settled and run.submission is not None and run.submission.complete and size is not None:
        with suppress(OSError):  # a run whose folder cannot be written is looked up again the next time
            ended = {"token": run.submission.token, "events": size, "run": asdict(row)}
            write_json(run.paths.ended, ended)
    return row
