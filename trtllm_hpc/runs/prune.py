"""Remove what is no longer needed: runs that ended long ago, and engines and models that no run uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from trtllm_hpc.engine_cache import list_entries
from trtllm_hpc.errors import SubmissionError, TrtllmHpcError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import SWEEPS, RunPaths
from trtllm_hpc.runs.find import REMOVED, list_runs
from trtllm_hpc.runs.hub import hub_rows, names_model
from trtllm_hpc.runs.listing import ListedRun, Warn, listed_runs
from trtllm_hpc.runs.status import RunState, run_status
from trtllm_hpc.runs.submit import sole_command
from trtllm_hpc.runtime.engine_cache.cache import CREATION_S, Cache, CacheEntry, EntryHeld, Use
from trtllm_hpc.runtime.engine_cache.shared_files import remove

_FOREIGN_S = 30 * 86_400.0
"""Seconds for which a run with an unreadable folder counts as active."""
_RENDERED_S = 7 * 86_400.0
"""Seconds for which a run that was never submitted keeps its engine."""
_LEFT = "was left by an interrupted removal"


@dataclass(frozen=True)
class Pruned:
    """A run, sweep, engine or model that was chosen for removal."""

    name: str
    """Name of the object; for a sweep ``sweeps/ID``."""
    folder: str
    bytes: int | None
    """Size in bytes; ``None`` for a run or sweep, which is not measured."""
    why: str
    """Why the object was chosen, e.g. ``ended 40 days ago``."""
    kept: str | None = None
    """Why the object stays after all; ``None``: it is removed."""


def _choose(
    candidates: Iterable[tuple[float, Pruned]],
    verb: str,
    older_than_s: float | None,
    names: Sequence[str] = (),
) -> list[Pruned]:
    """Return only the candidates with these names; without names, old candidates and leftovers.

    Each candidate comes with a time; ``verb`` describes what happened then. A candidate that already has a
    ``why`` is the useless leftover of a killed command.
    """
    chosen, now = [], time.time()
    for last, candidate in sorted(candidates, key=lambda pair: -pair[0]):
        age_s = now - last
        if names:
            chosen += [replace(candidate, why="is named")] if candidate.name in names else []
        elif candidate.why:
            chosen.append(candidate)
        elif older_than_s is not None and age_s > older_than_s:
            ago = f"{age_s / 86400:.0f} days" if age_s >= 2 * 86400 else f"{age_s / 3600:.0f} h"
            chosen.append(replace(candidate, why=f"{verb} {ago} ago"))
    return chosen


# Engines and models -------------------------------------------------------------------


def prune_engines(
    cache: Cache, names: Sequence[str] = (), older_than_s: float | None = None, *, remove_them: bool = False
) -> list[Pruned]:
    """Choose engines by name or by the time of their last use; with ``remove_them``, remove them.

    An engine that is being built, or used by an active run, stays. Without ``names``, broken engines and
    leftovers of killed builds are chosen as well.
    """
    candidates = [
        (row.last_used or 0.0, Pruned(row.name, row.folder, row.bytes, leftover))
        for row in list_entries(cache)
        if row.state in ("whole", "broken", "half-built") or row.name in names
        for leftover in ["" if row.state == "whole" else f"is {row.state}"]
    ]
    chosen = _choose(candidates, "was last used", older_than_s, names)
    done = [_pruned_entry(engine, "built", is_active, remove_it=remove_them) for engine in chosen]
    if remove_them:
        for use in (use for entry in cache.entries() for use in entry.uses() if is_active(use) is None):
            remove(use.file)  # so that later calls need not check the use's run again
        cache.remove_leftovers()
    return done


def prune_models(models: Path, older_than_s: float | None, *, remove_them: bool = False) -> list[Pruned]:
    """Choose models from hubs by the time of their last use; with ``remove_them``, remove them.

    A model that is being downloaded, or that the job file of a run names, stays.
    """
    candidates = [
        (row.last_used or 0.0, Pruned(row.name, row.folder, row.bytes, "")) for row in hub_rows(models)
    ]
    chosen = _choose(candidates, "was last used", older_than_s)
    done = [
        _pruned_entry(model, "downloaded", names_model(model.folder), remove_it=remove_them)
        for model in chosen
    ]
    if remove_them:
        for leftover in models.glob(f"*--*/{REMOVED}{'[0-9a-f]' * 40}-*"):
            remove(leftover)
    return done


def _pruned_entry(
    pruned: Pruned, made: str, counts: Callable[[Use], str | None], *, remove_it: bool
) -> Pruned:
    """Remove an entry (with ``remove_it``) unless it is used or being made; return the result.

    ``counts`` returns why a use still counts; ``None`` if it does not. The entry is moved away by one rename
    under its lock, and its uses are read once more after that: a run that registers later sees that the entry
    is gone.
    """
    entry = CacheEntry(Path(pruned.folder).parent)
    if (holder := entry.holder()) is not None:
        return replace(pruned, kept=f"is being {made} by {holder}")

    def used(entry: CacheEntry) -> str | None:
        return next((why for use in entry.uses() if (why := counts(use)) is not None), None)

    if (kept := used(entry)) is not None or not remove_it:
        return replace(pruned, kept=kept)
    try:
        with entry.locked("prune", wait_s=1.0):
            aside = entry.put_aside()
    except EntryHeld:
        if not entry.folder.exists():
            return pruned  # already removed
        return replace(pruned, kept=f"is being {made} by {entry.holder() or 'another process'}")
    except OSError as error:
        return replace(pruned, kept=f"cannot be removed: {error.strerror}")
    kept = used(CacheEntry(aside))
    if kept is not None and not entry.folder.exists():
        aside.rename(entry.folder)
        return replace(pruned, kept=kept)
    return pruned if remove(aside) else replace(pruned, kept=f"could not be removed completely: {aside}")


# Runs ---------------------------------------------------------------------------------


def prune_runs(
    runs_folder: Path,
    older_than_s: float | None,
    *,
    remove_them: bool = False,
    warn: Warn = lambda sentence: None,
) -> list[Pruned]:
    """Choose runs that ended long ago, and leftovers of earlier removals; with ``remove_them``, remove them.

    A sweep is chosen as a whole. Links, and runs with a job that has not ended, or may not have, are never
    chosen. ``warn`` receives a sentence about each cluster that does not answer.
    """
    folders_of_sweeps = (runs_folder.absolute() / SWEEPS).glob("*")
    sweeps = [sweep for sweep in folders_of_sweeps if not sweep.name.startswith(REMOVED)]
    # Read the tokens before the states: a run that is resumed in between has another token at its removal.
    folders = [*(paths.folder for paths in list_runs(runs_folder)), *sweeps]
    tokens = {str(folder): _tokens(folder) for folder in folders if remove_them}
    runs = {run.folder: [run] for run in listed_runs(runs_folder, warn=warn)}
    runs |= {str(sweep): listed_runs(sweep, warn=warn) for sweep in sweeps}
    candidates = [
        (0.0, Pruned(leftover.name.removeprefix(REMOVED), str(leftover), None, _LEFT))
        for pattern in (f"{REMOVED}*", f"{SWEEPS}/{REMOVED}*")
        for leftover in runs_folder.glob(pattern)
    ]
    for folder, variants in runs.items():
        if variants and all(run.settled for run in variants) and not Path(folder).is_symlink():
            name = Path(folder).name if variants[0].folder == folder else f"{SWEEPS}/{Path(folder).name}"
            candidates.append((max(map(_ended_at, variants)), Pruned(name, folder, None, "")))
    done = []
    for chosen in _choose(candidates, "ended", older_than_s):
        try:
            kept = None if Path(chosen.folder).stat().st_uid == os.geteuid() else "belongs to another user"
        except OSError as error:
            kept = f"cannot be read: {error.strerror}"
        removes = remove_them and kept is None
        token = tokens.get(chosen.folder)
        done.append(_pruned_run(chosen, token) if removes else replace(chosen, kept=kept))
    return done


def _ended_at(run: ListedRun) -> float:
    """Return when a run ended, or, if that is unknown, when it last wrote a file."""
    if run.ended_at is not None:
        return run.ended_at
    paths = RunPaths(run.folder)
    files = [paths.jobs, *paths.events.glob("*.jsonl")]
    return max([run.created_at, *(file.stat().st_mtime for file in files if file.exists())])


def _pruned_run(run: Pruned, tokens: list[str] | None) -> Pruned:
    """Remove a run or sweep unless it was submitted again, which changes ``tokens``; return the result.

    The folder is first renamed, so that no command takes it for a run: an interrupted removal leaves nothing
    that looks complete.
    """
    aside = folder = Path(run.folder)
    if not folder.name.startswith(REMOVED):
        aside = folder.with_name(f"{REMOVED}{folder.name}")
        try:
            with sole_command(RunPaths(folder)):
                if _tokens(folder) != tokens:
                    return replace(run, kept="was submitted again just now")
                folder.rename(aside)
        except SubmissionError:
            if not folder.exists():
                return run  # another command has removed it
            return replace(run, kept="is submitted, cancelled or removed by another command right now")
        except OSError as error:
            return replace(run, kept=f"cannot be removed: {error.strerror}")
    return run if remove(aside) else replace(run, kept=f"could not be removed completely: {aside}")


def _tokens(folder: Path) -> list[str]:
    """Return the submission tokens of a run, or of the variants of a sweep."""
    runs = (RunSnapshot(paths) for paths in (RunPaths(folder), *list_runs(folder)))
    return [run.submission.token for run in runs if run.submission is not None]


# Runs that need an engine -------------------------------------------------------------


def is_active(use: Use) -> str | None:
    """Return why a use of an engine still counts; ``None`` if it does not."""
    paths = RunPaths(use.run)
    try:
        created_at = paths.plan.stat().st_mtime
    except PermissionError:
        return f"is used by {use.run}, which belongs to another user" if use.age_s < _FOREIGN_S else None
    except OSError:
        is_gone = use.has_folder and not paths.folder.exists()
        is_new = use.age_s < CREATION_S and not is_gone
        return f"is registered by {use.run}, which is being created" if is_new else None
    return _of_run(str(paths.folder), created_at)


@lru_cache
def _of_run(folder: str, created_at: float) -> str | None:
    # Cached, so that Slurm is queried once for each run, however many outputs the run uses.
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
