"""Finding a run by what a person calls it: folder, id, job name or ``latest``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.paths import RunPaths, read_json

RUNS_VARIABLE = "TRTLLM_HPC_RUNS"
"""Environment variable that names the folder of runs."""


def default_runs_folder() -> Path:
    """The folder of runs when nobody names one: ``$TRTLLM_HPC_RUNS``, else ``./runs``."""
    return Path(os.environ.get(RUNS_VARIABLE) or "runs")


def is_run(folder: Path) -> bool:
    """Whether a folder holds a rendered run."""
    try:
        return RunPaths(folder).plan.is_file()
    except OSError:  # somebody else's folder, or no name that a folder can have
        return False


def list_runs(runs_folder: Path) -> list[RunPaths]:
    """All runs below ``runs_folder``, the newest first."""
    try:
        folders = [folder for folder in runs_folder.iterdir() if is_run(folder)]
    except OSError:
        return []
    return [RunPaths(folder) for folder in sorted(folders, key=_age, reverse=True)]


def _age(folder: Path) -> tuple[int, str]:
    # The plan is written once, when the run is made; folder times change with every log.
    return RunPaths(folder).plan.stat().st_mtime_ns, folder.name


def find_run(name: str, runs_folder: Path) -> RunPaths:
    """The run that ``name`` stands for.

    Args:
        name: a run folder, the id of a run in ``runs_folder``, a job name (its
            newest run), or ``latest``.
        runs_folder: where runs are kept.

    Raises:
        RunNotFound: nothing goes by that name, or its plan is damaged.
    """
    if "\0" in name:
        raise RunNotFound(f"{name!r} cannot be the name of a run.")
    if name != "latest" and is_run(Path(name)):
        return _readable(RunPaths(Path(name)))
    runs = list_runs(runs_folder)
    if name == "latest" and runs:
        return _readable(runs[0])
    for run in runs:
        if run.run_id == name:
            return _readable(run)
    for run in runs:
        if _plan(run).get("name") == name:
            return run
    raise _not_found(name, runs_folder, runs)


def _plan(run: RunPaths) -> dict[str, Any]:
    """The run's plan; empty if it cannot be read."""
    try:
        plan = read_json(run.plan)
    except (ValueError, OSError):
        return {}
    return plan if isinstance(plan, dict) else {}


def _readable(run: RunPaths) -> RunPaths:
    if not _plan(run):
        raise RunNotFound(f"{run.plan} is damaged: nothing can be told of this run.")
    return run


def _not_found(name: str, runs_folder: Path, runs: list[RunPaths]) -> RunNotFound:
    if not runs:
        return RunNotFound(
            f"No run is called {name!r}: there are no runs in {runs_folder}.",
            hint="trtllm-hpc submit JOB.yaml, or name the folder of runs with --runs",
        )
    newest = ", ".join(run.run_id for run in runs[:5])
    return RunNotFound(
        f"No run is called {name!r}. The newest in {runs_folder}: {newest}.",
        hint=f"trtllm-hpc status {runs[0].run_id}",
    )
