"""List all runs of a folder with their states; one query to Slurm covers all runs that have not ended.

The end of a run is recorded in its folder (``ended.json``), so for an old run a few files are read and Slurm
is not asked.
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
"""Used in place of ``slurm.conf`` and cluster for runs of the local profile."""

_FAILED = (RunState.FAILED, RunState.CANCELLED, RunState.LOST)

Warn = Callable[[str], object]


@dataclass(frozen=True)
class ListedRun:
    """A run in a list."""

    run_id: str
    folder: str
    """The run folder."""
    name: str
    """The job's name."""
    model: str | None
    """Folder of the model, or name of a synthetic model; ``None``: a finished engine, or an older version's
    run."""
    state: RunState | None
    """State of the run; ``None``: Slurm does not answer."""
    endpoint: str | None
    """Address of the server, while the run serves: ``address:port`` for HTTP, or the URL of OpenAI's
    protocol."""
    created_at: float
    """Creation of the run, in seconds since the epoch."""
    ended_at: float | None = None
    """End of the run's last job, in seconds since the epoch; ``None`` before, or if unknown."""
    gpu_hours: float | None = None
    """GPU-hours of all jobs, as far as known."""
    sentence: str | None = None
    """Why the run failed; ``None`` unless it has failed, and set only for the variants of a sweep."""
    exit_code: int | None = None
    """Exit code of ``submit --wait``; ``None`` as above."""
    settled: bool = False
    """Whether every job has ended, so that the run stays as it is."""
    live: bool = False
    """Whether a job of the run is in the queue or runs."""


def listed_runs(
    runs_folder: Path,
    *,
    states: Sequence[RunState] = (),
    reasons: bool = False,
    warn: Warn = lambda sentence: None,
) -> list[ListedRun]:
    """Return the runs of a folder, the newest first; with ``states``, only runs in these states.

    With ``reasons``, read the logs of failed runs. ``warn`` receives a sentence about each cluster that does
    not answer; the runs of that cluster have the state ``None``.
    """
    paths = list_runs(runs_folder)
    created = {RunSnapshot(run): at for run in paths if (at := created_at_of(run)) is not None}
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
    """Return the recorded row of an ended run, if nothing has happened since.

    A resumed run has another token, and a stage that was repeated by hand adds events.
    """
    with suppress(
        OSError, ValueError, TypeError, KeyError, AttributeError
    ):  # ended.json is missing or damaged
        ended: Any = read_json(run.paths.ended)
        token = None if run.submission is None else run.submission.token
        if token is not None and (ended["token"], ended["events"]) == (token, _event_bytes(run.paths)):
            # The folder may have been renamed since.
            now = {"run_id": run.paths.run_id, "folder": str(run.paths.folder), "created_at": created_at}
            row = ListedRun(**{**known_fields(ListedRun, ended["run"]), **now})
            return replace(row, state=None if row.state is None else RunState(row.state))
    return None


def _event_bytes(paths: RunPaths) -> int | None:
    """Return the size of all event files in bytes; ``None`` if unreadable: then no end is recorded."""
    with suppress(OSError):
        return sum(file.stat().st_size for file in paths.events.iterdir() if file.suffix == ".jsonl")
    return None


def _query(slurm: Slurm, runs: Sequence[RunSnapshot]) -> tuple[JobWatcher, dict[Path, str]]:
    """Query the jobs of all runs at once, and search the queue for scripts of incompletely submitted runs."""
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
    """Return the row of a run, and record it if the run has ended; ``stages``: ``None`` if unknown."""
    state = None if stages is None else state_of(run, stages)
    stages = stages or []
    settled = state is not None and is_settled(state, stages)
    if settled and run.is_local:  # this machine cannot see processes on other machines
        here = socket.gethostname()
        begun = {
            event.stage: event.data.get("host") for event in run.all_events if event.name == "stage_begin"
        }
        over = {event.stage for event in run.all_events if event.name in ("stage_end", "stage_cancelled")}
        settled = all(stage.stage in over or begun.get(stage.stage, here) == here for stage in stages)
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
    # Only after a complete submission: Slurm may still have a job of an interrupted one.
    if settled and run.submission is not None and run.submission.complete and size is not None:
        with suppress(OSError):  # without a record, the next call looks the run up again
            ended = {"token": run.submission.token, "events": size, "run": asdict(row)}
            write_json(run.paths.ended, ended)
    return row
