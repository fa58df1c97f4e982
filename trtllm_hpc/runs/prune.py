"""What may go: runs that ended long ago, and engines that no run needs any more."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from trtllm_hpc.errors import SubmissionError, TrtllmHpcError
from trtllm_hpc.paths import STAGES, RunPaths
from trtllm_hpc.runs.find import REMOVED
from trtllm_hpc.runs.listing import ListedRun, Warn, listed_runs
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runtime.engine_cache.cache import Use
from trtllm_hpc.runtime.engine_cache.files import remove
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import read_submission


@dataclass(frozen=True)
class PrunedRun:
    """One run that was chosen."""

    run_id: str
    folder: str
    why: str
    """Why it was chosen, e.g. ``ended 40 days ago``."""
    kept: str | None
    """Why it stays; ``None``: it goes."""


@dataclass(frozen=True)
class PrunedRuns:
    """The runs that were chosen, and which of them go."""

    removed: bool
    """Whether runs were removed (``--yes``), or only listed."""
    runs: tuple[PrunedRun, ...]


def prune_runs(
    runs_folder: Path,
    *,
    older_than_s: float | None = None,
    keep: int | None = None,
    remove_them: bool = False,
    warn: Warn = lambda sentence: None,
) -> list[PrunedRun]:
    """Choose ended runs, and with ``remove_them`` remove them, and what an interrupted removal has left.

    A run of which a job has not ended, or may not have, is never chosen. One that a link beside it leads to,
    that the job file of a run that stays names, or of which a script is queued by hand, stays. Arguments are
    those of :meth:`trtllm_hpc.Run.prune`; ``warn`` receives a sentence about each cluster that does not
    answer.
    """
    runs = listed_runs(runs_folder, warn=warn)
    ended = [run for run in runs if run.settled]
    now = time.time()
    chosen = []
    for folder in sorted(runs_folder.glob(f"{REMOVED}*")):
        run_id, why = folder.name.removeprefix(REMOVED), "was left by an interrupted removal"
        chosen.append(PrunedRun(run_id, str(folder), why, _foreign(folder)))
    for run in ended[keep or 0 :]:
        age_s = now - _ended_at(run)
        if older_than_s is None or age_s > older_than_s:
            days = age_s / 86400
            ago = f"{days:.0f} days" if days >= 2 else f"{age_s / 3600:.0f} h"
            chosen.append(PrunedRun(run.run_id, run.folder, f"ended {ago} ago", _foreign(Path(run.folder))))
    names = {run.folder for run in chosen if run.kept is None}
    needed = _needed(runs_folder, [run for run in runs if run.folder in names], runs)
    chosen = [run if run.kept else replace(run, kept=needed.get(run.folder)) for run in chosen]
    return [_removed(run) if remove_them else run for run in chosen]


def _needed(runs_folder: Path, going: Sequence[ListedRun], runs: Sequence[ListedRun]) -> dict[str, str]:
    """Return by their folders why runs that would go are needed."""
    if not going:
        return {}
    needed = _queued_by_hand(going)
    links = {entry.resolve(): entry.name for entry in runs_folder.iterdir() if entry.is_symlink()}
    for run in going:
        if Path(run.folder).is_symlink():
            needed[run.folder] = "is a link to a folder elsewhere"
        elif link := links.get(Path(run.folder).resolve()):
            needed[run.folder] = f"is what the link {link} leads to"
    folders = {run.folder for run in going}
    job_files = {run.run_id: _text(RunPaths(run.folder).spec) for run in runs if run.folder not in folders}
    for folder in folders - needed.keys():
        named = re.compile(rf"{re.escape(folder)}(?![\w.-])")
        user = next((run_id for run_id, text in job_files.items() if named.search(text)), None)
        if user is not None:
            needed[folder] = f"is named in the job file of {user}"
    return needed


def _queued_by_hand(runs: Sequence[ListedRun]) -> dict[str, str]:
    """Return by their folders the runs of which a script is in the queue again, or may be."""
    clusters: dict[str | None, dict[Path, str]] = {}
    for run in runs:
        paths = RunPaths(run.folder)
        record = read_submission(paths)
        if record is not None and record.scheduler != "local":
            scripts = {paths.sbatch(stage): run.folder for stage in STAGES}
            clusters.setdefault(record.slurm_conf, {}).update(scripts)
    needed: dict[str, str] = {}
    for conf, scripts in clusters.items():
        try:
            queued = Slurm(conf).find_scripts(dict.fromkeys(scripts))
        except SubmissionError:
            needed |= dict.fromkeys(scripts.values(), "may have a script in the queue: Slurm does not answer")
        else:
            needed |= {
                scripts[script]: f"has a script in the queue, job {job}" for script, job in queued.items()
            }
    return needed


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _ended_at(run: ListedRun) -> float:
    """Return when a run ended; without that the last time that it wrote something."""
    if run.ended_at is not None:
        return run.ended_at
    paths = RunPaths(run.folder)
    files = [paths.jobs, *paths.events.glob("*.jsonl")]
    return max([run.created_at, *(file.stat().st_mtime for file in files if file.exists())])


def _foreign(folder: Path) -> str | None:
    """Return why a folder is not ours to remove; ``None`` if it is."""
    try:
        return None if folder.stat().st_uid == os.geteuid() else "belongs to another user"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _removed(run: PrunedRun) -> PrunedRun:
    """Remove one run; returns it as it turned out.

    Its folder gets another name first, which no command takes for a run: who interrupts the removal leaves
    nothing that looks whole. A run that was resumed in that moment gets its name back.
    """
    if run.kept is not None:
        return run
    folder = Path(run.folder)
    aside = folder
    if not folder.name.startswith(REMOVED):
        before = _token(folder)
        aside = folder.with_name(f"{REMOVED}{folder.name}")
        try:
            folder.rename(aside)
        except FileNotFoundError:
            return run  # somebody else has removed it
        except OSError as error:
            return replace(run, kept=f"cannot be removed: {error.strerror}")
        if _token(aside) != before:
            aside.rename(folder)
            return replace(run, kept="was submitted again just now")
    return run if remove(aside) else replace(run, kept=f"could not be removed completely: {aside}")


def _token(folder: Path) -> str | None:
    record = read_submission(RunPaths(folder))
    return None if record is None else record.token


_CREATION_S = 3_600.0
"""How long a registered run may have no folder: it is registered before its folder is written."""

_FOREIGN_S = 30 * 86_400.0
"""How long a run counts as active if we may not read its folder."""

_RENDERED_S = 7 * 86_400.0
"""How long a run that was never submitted keeps its engine."""


def is_active(use: Use) -> str | None:
    """Return why a registered use still counts; ``None`` if it does not."""
    paths = RunPaths(use.run)
    try:
        created_at = paths.plan.stat().st_mtime
    except PermissionError:
        return f"is used by {use.run}, which belongs to another user" if use.age_s < _FOREIGN_S else None
    except OSError:
        return f"is registered by {use.run}, which is being created" if use.age_s < _CREATION_S else None
    return _of_run(str(paths.folder), created_at)


@lru_cache
def _of_run(folder: str, created_at: float) -> str | None:
    """Cached, so that Slurm is queried once for each run, however many outputs it uses."""
    paths = RunPaths(folder)
    try:
        status = run_status(paths)
    except TrtllmHpcError as error:
        return f"is used by the run {paths.run_id}, which may be active ({error.message})"
    if status.state is RunState.RENDERED:
        fresh = time.time() - created_at < _RENDERED_S
        return f"waits for the run {paths.run_id}, which is rendered and not submitted" if fresh else None
    busy = any(not stage.final and stage.state != "NOT SUBMITTED" for stage in status.stages)
    return f"is used by the run {paths.run_id}, which is {status.state.value}" if busy else None
