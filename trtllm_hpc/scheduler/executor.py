"""An executor and a job class of submitit for rendered scripts.

submitit's own Slurm executor writes a script and pickles a function. Here the user may have reviewed the
rendered scripts, so they are submitted unchanged. Job states come from ``JobWatcher``.
"""

from __future__ import annotations

import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.plan_record import PlanRecord
from trtllm_hpc.scheduler.job_info import RunJob
from trtllm_hpc.scheduler.local import StageScript
from trtllm_hpc.scheduler.slurm import JobWatcher, Slurm


@lru_cache(maxsize=8)
def _shared_watcher(conf: str | None, clusters: str | None = None) -> JobWatcher:
    return JobWatcher(Slurm(conf, clusters))


class RenderedJob(core.Job[int]):  # type: ignore[misc]
    """A submitted script; its result is the script's exit code."""

    def __init__(self, script: StageScript, job_id: str, controller: tuple[str | None, str | None]) -> None:
        self._controller = controller
        run = RunPaths(script.run_folder)
        self.run_job = RunJob.of(run, PlanRecord.read(run), {script.stage: job_id})[script.stage]
        """The job with what Slurm must have recorded about it."""
        super().__init__(folder=script.run_folder, job_id=job_id)

    @property
    def watcher(self) -> JobWatcher:
        """The watcher shared by all jobs of this cluster in this process."""
        watcher = _shared_watcher(*self._controller)
        watcher.add([self.run_job])
        return watcher

    def cancel(self, check: bool = True) -> None:
        """Cancel the job in Slurm unless it has ended."""
        try:
            Slurm(*self._controller).cancel([self.run_job])
        except SubmissionError:
            if check:  # otherwise the caller is already raising another error
                raise

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        info = self.watcher.get_info(self.job_id, mode="force")
        if info.get("State") == "COMPLETED":
            return "success", 0
        code = info.get("ExitCode") or "?"
        return "error", f"{self.job_id} ended as {info.get('State')} with exit code {code}"


class RenderedScriptExecutor(core.Executor):  # type: ignore[misc]
    """Submits :class:`StageScript` objects from a run folder; registered as a submitit plugin."""

    job_class = RenderedJob

    def __init__(
        self, folder: str | Path, slurm_conf: str | None = None, clusters: str | None = None
    ) -> None:
        super().__init__(folder)
        self._slurm = Slurm(slurm_conf, clusters)
        self._job_ids: dict[str, str] = {}

    @classmethod
    def name(cls) -> str:
        """The name for ``submitit.AutoExecutor(cluster=...)``."""
        return "trtllm_hpc"

    @classmethod
    def affinity(cls) -> int:
        """0 (available, but only on request) if sbatch is installed; -1 otherwise."""
        return 0 if shutil.which("sbatch") else -1

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        jobs, ids = [], self._job_ids
        for script in (submission.function for submission in delayed_submissions):
            if not isinstance(script, StageScript):
                raise SubmissionError(f"Only rendered scripts can be submitted here, not {script!r}.")
            own = [f"{kind}:{ids[stage]}" for kind, stage in script.after if stage in ids]
            ids[script.stage] = self._slurm.submit(
                script.path,
                dependency=",".join([*script.conditions, *own]) or None,
                environment=dict(script.environment),
                further=script.options,
            )
            jobs.append(RenderedJob(script, ids[script.stage], (self._slurm.conf, self._slurm.clusters)))
        return jobs
