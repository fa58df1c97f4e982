"""Whether the job that Slurm knows by an id is the job that a run has submitted.

An id alone does not show that. A controller that has lost its state, or has used its last id, begins again
with the first: the ids that older runs have recorded then belong to other jobs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtllm_hpc.paths import RunPaths


@dataclass(frozen=True)
class Origin:
    """What Slurm has recorded about where a job comes from; empty where the command does not print it."""

    uid: int | None = None
    user: str = ""
    name: str = ""
    folder: str = ""
    """The folder in which sbatch was called."""
    script: str = ""
    """Its path, which may be relative to the folder (squeue, scontrol)."""
    output: str = ""
    """Path of the log (scontrol)."""
    submit_line: str = ""
    """The command line of sbatch (sacct)."""


@dataclass(frozen=True)
class RunJob:
    """A job that a run has submitted, and what Slurm must have recorded about it."""

    job_id: str
    stage: str
    folders: tuple[str, ...]
    """Every path by which the run folder is known."""
    name: str | None
    """Name that the rendered script gives the job; ``None`` if the plan is unreadable."""
    uids: frozenset[int]
    """Who may have submitted it."""

    @classmethod
    def of(
        cls, paths: RunPaths, plan: Mapping[str, Any], job_ids: Mapping[str, str | None]
    ) -> dict[str, RunJob]:
        """Return the jobs of a run with this plan by stage, without the stages that have no job."""
        names = {
            stage["name"]: directive["value"]
            for stage in plan.get("stages", [])
            for directive in stage.get("directives", ())
            if directive["option"] == "--job-name"
        }
        folders = dict.fromkeys((str(paths.folder), os.path.realpath(paths.folder)))
        planned = Path(str(plan.get("run_folder", paths.folder)))
        try:
            if not planned.exists() or planned.samefile(paths.folder):  # else this is a copy of that run
                folders[str(planned)] = None
            uids = frozenset((os.getuid(), paths.folder.stat().st_uid))
        except OSError:  # the folder is gone
            uids = frozenset((os.getuid(),))
        return {
            stage: cls(job_id, stage, tuple(folders), names.get(stage), uids)
            for stage, job_id in job_ids.items()
            if job_id
        }

    def is_of(self, origin: Origin) -> bool:
        """Return whether a job with this id and origin is this job. Nothing else decides that.

        The same user has submitted this run's script; or a job of the stage's name that writes its log into
        the run folder, or was submitted there.
        """
        if origin.uid not in self.uids:
            return False
        scripts = [str(RunPaths(folder).sbatch(self.stage)) for folder in self.folders]
        # Of "sbatch ./scripts/serve.sbatch" squeue prints just that.
        script = os.path.normpath(Path(origin.folder, origin.script))
        if script in scripts or any(_names(origin, script) for script in scripts):
            return True
        places = [_plain(f"{place}/") for place in (origin.output, origin.folder)]
        inside = any(place.startswith(_plain(f"{folder}/")) for place in places for folder in self.folders)
        return inside and self.has_name_of(origin)

    def has_name_of(self, origin: Origin) -> bool:
        """Return whether a job of this origin has this job's user and name."""
        return origin.uid in self.uids and origin.name == self.name


def _names(origin: Origin, script: str) -> bool:
    """Return whether the command line of sbatch names a script, which may be relative to its folder."""
    names = [script]
    if origin.folder:
        relative = os.path.relpath(_plain(script), _plain(origin.folder))
        names += [relative, f"./{relative}"]
    return any(_plain(f" {name} ") in _plain(f" {origin.submit_line} ") for name in names)


def _plain(path: str) -> str:
    """Return a path as slurmdbd keeps the folder of a job: with another character for double quotes."""
    return path.replace('"', "`")
