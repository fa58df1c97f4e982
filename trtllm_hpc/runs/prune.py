"""What may go: runs that ended long ago, and engines that no run needs any more."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from trtllm_hpc.errors import SubmissionError, TrtllmHpcError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import STAGES, SWEEPS, RunPaths
from trtllm_hpc.runs.find import REMOVED, list_runs
from trtllm_hpc.runs.listing import ListedRun, Warn, listed_runs
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runs.submit import sole_command
from trtllm_hpc.runtime.engine_cache.cache import Use
from trtllm_hpc.runtime.engine_cache.files import remove
from trtllm_hpc.scheduler.slurm import Slurm


@dataclass(frozen=True)
class PrunedRun:
    """One run, or one sweep with its variants, that was chosen."""

    run_id: str
    """Of a sweep ``sweeps/ID``."""
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

    A sweep is chosen as a whole, as if it were one run. A run of which a job has not ended, or may not have,
    is never chosen. A chosen run stays if a link beside it leads to it, the job file of a run that stays
    names it, or one of its scripts is queued by hand. Arguments are those of
    :meth:`trtllm_hpc.Run.prune`; ``warn`` receives a sentence about each cluster that does not answer.
    """
    sweeps = [it for it in (runs_folder.absolute() / SWEEPS).glob("*") if not it.name.startswith(REMOVED)]
    # Before the runs are looked at: one that is resumed meanwhile has another token when it would be removed.
    folders = [*(paths.folder for paths in list_runs(runs_folder)), *sweeps]
    tokens = {str(folder): _tokens(folder) for folder in folders if remove_them}
    runs = {run.folder: [run] for run in listed_runs(runs_folder, warn=warn)}
    runs |= {str(sweep): listed_runs(sweep, warn=warn) for sweep in sweeps}
    newest = sorted(runs, key=lambda it: max((run.created_at for run in runs[it]), default=0.0), reverse=True)
    ended = [it for it in newest if runs[it] and all(run.settled for run in runs[it])]
    now = time.time()
    chosen = []
    for leftover in sorted([*runs_folder.glob(f"{REMOVED}*"), *runs_folder.glob(f"{SWEEPS}/{REMOVED}*")]):
        run_id, why = leftover.name.removeprefix(REMOVED), "was left by an interrupted removal"
        chosen.append(PrunedRun(run_id, str(leftover), why, _foreign(leftover)))
    for folder in ended[keep or 0 :]:
        age_s = now - max(map(_ended_at, runs[folder]))
        if older_than_s is None or age_s > older_than_s:
            days = age_s / 86400
            ago = f"{days:.0f} days" if days >= 2 else f"{age_s / 3600:.0f} h"
            is_run = runs[folder][0].folder == folder
            name = Path(folder).name if is_run else f"{SWEEPS}/{Path(folder).name}"
            chosen.append(PrunedRun(name, folder, f"ended {ago} ago", _foreign(Path(folder))))
    needed = _needed(runs_folder, {it.folder for it in chosen if it.kept is None} & runs.keys(), runs)
    chosen = [run if run.kept else replace(run, kept=needed.get(run.folder)) for run in chosen]
    return [_removed(run, tokens.get(run.folder)) if remove_them else run for run in chosen]


def _needed(
    runs_folder: Path, folders: Collection[str], runs: Mapping[str, Sequence[ListedRun]]
) -> dict[str, str]:
    """Return why folders that would go are needed; ``runs`` by the folders of runs and sweeps."""
    if not folders:
        return {}
    queued = _queued_by_hand([run for folder in folders for run in runs[folder]])
    links = {entry.resolve(): entry.name for entry in runs_folder.iterdir() if entry.is_symlink()}
    needed = {}
    for folder in folders:
        for place in (folder, *(run.folder for run in runs[folder])):
            if Path(place).is_symlink():
                needed[folder] = "is a link to a folder elsewhere"
            elif link := links.get(Path(place).resolve()):
                needed[folder] = f"is what the link {link} leads to"
            elif place in queued:
                needed[folder] = queued[place]
    staying = [run for folder, its in runs.items() if folder not in folders for run in its]
    job_files = {run.run_id: _text(RunPaths(run.folder).spec) for run in staying}
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
        record = RunSnapshot(paths).submission
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


def _removed(run: PrunedRun, tokens: list[str] | None) -> PrunedRun:
    """Remove one run or sweep, unless its submissions have other tokens now; returns it as it turned out.

    Its folder gets another name first, which no command takes for a run: who interrupts the removal leaves
    nothing that looks whole.
    """
    if run.kept is not None:
        return run
    folder = Path(run.folder)
    aside = folder
    if not folder.name.startswith(REMOVED):
        aside = folder.with_name(f"{REMOVED}{folder.name}")
        try:
            with sole_command(RunPaths(folder)):
                if _tokens(folder) != tokens:
                    return replace(run, kept="was submitted again just now")
                folder.rename(aside)
        except SubmissionError:
            if not folder.exists():
                return run  # somebody else has removed it
            return replace(run, kept="is submitted, cancelled or removed by another command right now")
        except OSError as error:
            return replace(run, kept=f"cannot be removed: {error.strerror}")
    return run if remove(aside) else replace(run, kept=f"could not be removed completely: {aside}")


def _tokens(folder: Path) -> list[str]:
    """Return the submissions of a run, or of the variants of a sweep."""
    runs = (RunSnapshot(paths) for paths in (RunPaths(folder), *list_runs(folder)))
    return [run.submission.token for run in runs if run.submission is not None]


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
        is_gone = use.has_folder and not paths.folder.exists()
        is_new = use.age_s < _CREATION_S and not is_gone
        return f"is registered by {use.run}, which is being created" if is_new else None
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
