"""Find a run by its folder, ID, job name or ``latest`` (the run that was submitted last)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.logs.reading import stat_of
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import SWEEPS, RunPaths, call_name, user_config_file
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.runtime.records import read_events
from trtllm_hpc.scheduler.submission_record import read_submission

REMOVED = ".removed-"
"""Prefix of a folder that is being removed."""


def is_run(folder: Path) -> bool:
    """Return whether a folder is a rendered run that this user may read."""
    return created_at_of(RunPaths(folder)) is not None


def list_runs(runs_folder: Path) -> list[RunPaths]:
    """Return all runs in ``runs_folder`` that this user may read, the newest first."""
    try:
        folders = list(runs_folder.iterdir())
    except OSError:
        return []
    ages = {
        paths: created_at
        for paths in map(RunPaths, folders)
        if not paths.run_id.startswith(REMOVED) and (created_at := created_at_of(paths)) is not None
    }
    return sorted(ages, key=lambda run: (ages[run], run.run_id), reverse=True)


def created_at_of(paths: RunPaths) -> float | None:
    """Return when a run was created, in seconds since the epoch; ``None`` if it is not a readable run."""
    # Files that are written early, because every log changes the folder's own time. Without plan.json,
    # jobs.json still lists the jobs.
    for file in (paths.plan, paths.jobs):
        with suppress(OSError, ValueError):  # another user's folder, or an impossible name
            entry = file.stat()
            if stat.S_ISREG(entry.st_mode) and os.access(file, os.R_OK):
                return entry.st_mtime
    return None


def find_run(name: str, runs_folder: Path) -> RunPaths:
    """Return the run in ``runs_folder`` that ``name`` names.

    ``name`` is a run folder, ``SWEEP/VARIANT``, a run ID or a unique beginning of one, a job name (the job's
    run that was submitted last, else the newest), or ``latest``. Raises RunNotFound if there is no such run,
    it is unreadable or damaged, or, for ``latest``, no run was submitted.
    """
    if "\0" in name:
        raise RunNotFound(f"{name!r} cannot be the name of a run.")
    runs_folder = runs_folder.absolute()
    runs = list_runs(runs_folder)
    if name == "latest" and runs:
        if (latest := _latest(runs)) is not None:
            return latest
        if (newest := next((run for run in runs if PlanRecord.read(run)), None)) is None:
            return _readable(runs[0])
        raise RunNotFound(
            f"No run in {newest.folder.parent} was submitted. The newest was only rendered, or Slurm refused "
            f"it: {newest.run_id}.",
            hint=f"trtllm-hpc status {call_name(newest)}",
        )
    for folder in (Path(name), runs_folder / SWEEPS / name) if name not in ("", "latest") else ():
        if is_run(folder):
            return _readable(RunPaths(folder))
    matching = [run for run in runs if name and run.run_id.startswith(name)]
    if (named := next((run for run in matching if run.run_id == name), None)) is not None:
        return _readable(named)
    if (latest := _latest(runs, name)) is not None:
        return latest
    for run in runs:
        if (plan := PlanRecord.read(run)) is not None and plan.name == name:
            return run
    if len(matching) == 1:
        return _readable(matching[0])
    raise _forbidden(name, runs_folder) or _not_found(name, runs_folder, runs, matching)


def _latest(runs: Iterable[RunPaths], job: str | None = None) -> RunPaths | None:
    """Return the run (of ``job``) that was submitted or resumed last; ``None`` if no run was submitted."""
    times = {run: at for run in runs if (at := submitted_at(run)) is not None}
    for run in sorted(times, key=lambda submitted: times[submitted], reverse=True):
        if (plan := PlanRecord.read(run)) is not None and job in (None, plan.name):
            return run
    return None


def submitted_at(paths: RunPaths) -> float | None:
    """Return when a run was last submitted, in seconds since the epoch; ``None``: never.

    A refused or interrupted submission does not count. If the scripts were submitted by hand, the time is the
    begin of the first script.
    """
    try:
        record = read_submission(paths)
        if record is None:
            times = [event.time for event in read_events(paths) if event.name == "stage_begin"][:1]
        else:
            times = [job.submitted_at for job in record.stages.values() if record.complete]
    except OSError:  # use the record's own time, so that another run does not become the latest
        changed = stat_of(paths.jobs)
        times = [] if changed is None else [changed.st_mtime]
    return max(times, default=None)


def _readable(run: RunPaths) -> RunPaths:
    if not PlanRecord.read(run) and RunSnapshot(run).submission is None:
        raise RunNotFound(f"{run.plan} is damaged, so nothing is known about this run.")
    return run


def _forbidden(name: str, runs_folder: Path) -> RunNotFound | None:
    """Return the error for a run, or a folder of runs, that exists but is not readable."""
    for folder in (runs_folder, Path(name), runs_folder / name):
        try:
            next(folder.iterdir(), None)
            RunPaths(folder).plan.stat()
            RunPaths(folder).plan.open().close()
        except PermissionError as error:
            return RunNotFound(
                f"{error.filename} cannot be read: {error.strerror}.",
                hint="ask its owner, or name the folder of your own runs with --runs",
            )
        except (OSError, ValueError):
            continue
    return None


def _not_found(name: str, runs_folder: Path, runs: list[RunPaths], matching: list[RunPaths]) -> RunNotFound:
    if not runs:
        return RunNotFound(
            f"No run is called {name!r}: there are no runs in {runs_folder}.",
            hint="trtllm-hpc submit starts a run; are your runs elsewhere? Name their folder with "
            f"--runs, or as runs_folder in {user_config_file()}",
        )
    message = f"No run is called {name!r}. The newest in {runs_folder}: "
    if matching:
        message = f"{len(matching)} runs in {runs_folder} begin with {name!r}. The newest: "
    message += ", ".join(run.run_id for run in (matching or runs)[:5])
    return RunNotFound(f"{message}.", hint=f"trtllm-hpc status {call_name((matching or runs)[0])}")
