"""Remove runs that ended long ago, and no others."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.find import REMOVED
from trtllm_hpc.runs.listing import ListedRun, Warn, listed_runs
from trtllm_hpc.runtime.engine_cache.files import remove
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
    """Choose ended runs, and remove them; also what an interrupted removal has left.

    A run of which a job has not ended, or may not have, is never chosen.

    Args:
        older_than_s: only runs that ended longer ago.
        keep: not the so many newest runs that have ended.
        remove_them: without it they are only listed.
        warn: receives a sentence about each cluster that does not answer.
    """
    ended = [run for run in listed_runs(runs_folder, warn=warn) if run.settled]
    now = time.time()
    chosen = [_half_removed(folder) for folder in sorted(runs_folder.glob(f"{REMOVED}*"))]
    for run in ended[keep or 0 :]:
        age_s = now - _ended_at(run)
        if older_than_s is None or age_s > older_than_s:
            chosen.append(
                PrunedRun(run.run_id, run.folder, f"ended {_ago(age_s)} ago", _foreign(Path(run.folder)))
            )
    return [_removed(run) if remove_them else run for run in chosen]


def _half_removed(folder: Path) -> PrunedRun:
    run_id = folder.name.removeprefix(REMOVED)
    return PrunedRun(run_id, str(folder), "was left by an interrupted removal", _foreign(folder))


def _ended_at(run: ListedRun) -> float:
    """Return when a run ended; without that the last time that it wrote something."""
    if run.ended_at is not None:
        return run.ended_at
    paths = RunPaths(run.folder)
    files = [paths.jobs, *paths.events.glob("*.jsonl")]
    return max([run.created_at, *(file.stat().st_mtime for file in files if file.exists())])


def _ago(age_s: float) -> str:
    days = age_s / 86400
    return f"{days:.0f} days" if days >= 2 else f"{age_s / 3600:.0f} h"


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
