"""submitit's executor, job and watcher for rendered scripts.

submitit's own Slurm executor writes a script and pickles a function. Here the
scripts exist already and are what the user reviewed, so this executor submits
them unchanged. Job states have one owner, :class:`JobWatcher`; file names have
one owner, :class:`trtllm_hpc.paths.RunPaths`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.scheduler.job_info import JobInfo
from trtllm_hpc.scheduler.job_origin import RunJob
from trtllm_hpc.scheduler.local import StageScript
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.states import LOST
from trtllm_hpc.scheduler.waiting import Queue, Waiting

_LONGEST_PAUSE_S = 15
"""Longest pause between two queries; submitit starts at 2 s and doubles."""


class JobWatcher(core.InfoWatcher):  # type: ignore[misc]
    """Knows the states of one cluster's jobs: one query for all of them, with submitit's back-off.

    A job that has ended with a known exit code is not queried again. A job
    that Slurm does not know is: accounting may only be late.
    """

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(delay_s=_LONGEST_PAUSE_S)
        self.slurm = slurm
        self._known: dict[RunJob, JobInfo] = {}
        self._queried: set[RunJob] = set()
        self._queue = Queue(slurm.conf)
        self._waiting: dict[str, Waiting] = {}
        self._looked_after = 0

    def job_infos(self, jobs: Collection[RunJob], mode: str = "standard") -> dict[RunJob, JobInfo]:
        """Return what Slurm knows of these jobs; jobs unknown to it are left out.

        Args:
            mode: submitit's ``force`` (query now), ``standard`` (query new jobs now and others
                when the pause is over) or ``cache``.

        Raises:
            SubmissionError: Slurm did not answer.
        """
        for job in jobs:
            if job not in self._registered:
                self.register_job(job)
        if jobs:
            self.update_if_long_enough(mode)
        return {job: self._known[job] for job in jobs if job in self._known}

    def register_job(self, job: RunJob) -> None:
        """Query this job from now on; at once, and then at short pauses again."""
        self._registered.add(job)
        self._start_time, self._last_status_check = time.time(), float("-inf")

    def waiting(self) -> dict[str, Waiting]:
        """Return where the pending jobs stand in the queue, by id; asked once after each query at most."""
        if self._looked_after != self._num_calls:
            self._looked_after = self._num_calls
            self._waiting = self._queue.look(self._known.values())
        return self._waiting

    def restart_pauses(self) -> None:
        """Query at once and then at short pauses again: something has happened."""
        for job in self._registered:
            self.register_job(job)

    def update(self) -> None:
        """Query all jobs that have not ended. If Slurm does not answer, what was known before stays known."""
        self._num_calls += 1
        self._last_status_check = time.time()
        queried = self._registered - self._finished
        answers = self.slurm.query(queried)
        self._queried |= queried
        for job in queried:
            self._known.pop(job, None)
        self._known.update(answers)
        self._finished |= {
            job for job, info in answers.items() if info.state.final and info.exit_code is not None
        }

    def is_queried(self, job: RunJob) -> bool:
        """Return whether Slurm has answered a query for this job."""
        return job in self._queried


@lru_cache(maxsize=8)
def _shared_watcher(conf: str | None) -> JobWatcher:
    return JobWatcher(Slurm(conf))


class SingleJobWatcher:
    """What submitit's :class:`~submitit.core.core.Job` asks about itself; jobs share their queries."""

    def __init__(self, job: RunJob, shared: JobWatcher) -> None:
        self.job = job
        self._shared = shared

    def register_job(self, job_id: str) -> None:
        """Query this job from now on."""
        self._shared.register_job(self.job)

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """Return the job's state as submitit reads it."""
        try:
            self._shared.job_infos([self.job], mode)
        except SubmissionError as error:
            if not error.transient:  # else what was known stays valid until the next query
                raise
        if not self._shared.is_queried(self.job):
            return {}
        info = self._shared.job_infos([self.job], "cache").get(self.job)
        state = info.state if info else LOST
        return {
            "State": state.name,
            "Final": "yes" if state.final else "",
            "ExitCode": "" if info is None or info.exit_code is None else str(info.exit_code),
            "NodeList": info.nodes if info else "",
        }

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Return Slurm's name of the state, or UNKNOWN before the first answer."""
        return str(self.get_info(job_id, mode=mode).get("State") or "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Return whether the job has ended, by the table of states and not by submitit's list."""
        return bool(self.get_info(job_id, mode=mode).get("Final"))


class ScriptPaths(utils.JobPaths):  # type: ignore[misc]
    """The files of a rendered script under submitit's names for them."""

    def __init__(self, script: StageScript, job_id: str) -> None:
        super().__init__(Path(script.run_folder), job_id, 0)
        self._script = script

    @property
    def submission_file(self) -> Path:
        """The script itself."""
        return self._script.path

    @property
    def stdout(self) -> Path:
        """The batch script's log; the ranks have their own."""
        return RunPaths(self._script.run_folder).batch_log(self._script.stage)

    @property
    def stderr(self) -> Path:
        """The same file: sbatch writes both to it."""
        return self.stdout


class RenderedJob(core.Job[int]):  # type: ignore[misc]
    """A submitted script; its result is the script's exit code."""

    def __init__(self, script: StageScript, job_id: str, conf: str | None) -> None:
        self._script = script
        self._conf = conf
        self.run_job = RunJob.of(RunPaths(script.run_folder), {script.stage: job_id})[script.stage]
        """What Slurm must have recorded about this job."""
        super().__init__(folder=script.run_folder, job_id=job_id)
        self._paths = ScriptPaths(script, job_id)

    @property
    def watcher(self) -> SingleJobWatcher:
        """This job as the watcher sees it that all jobs of this cluster share in this process."""
        return SingleJobWatcher(self.run_job, _shared_watcher(self._conf))

    @property
    def stage(self) -> str:
        """The stage whose script this is."""
        return self._script.stage

    def cancel(self, check: bool = True) -> None:
        """Cancel the job in Slurm; do nothing if it has ended.

        Args:
            check: raise if Slurm refuses; without it another error is already on its way.
        """
        try:
            Slurm(self._conf).cancel([self.run_job])
        except SubmissionError:
            if check:
                raise

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        info = self.watcher.get_info(self.job_id, mode="force")
        if info.get("State") == "COMPLETED":
            return "success", 0
        return (
            "error",
            f"{self.job_id} ended as {info.get('State')} with exit code {info.get('ExitCode') or '?'}",
        )


class RenderedScriptExecutor(core.Executor):  # type: ignore[misc]
    """Submits :class:`StageScript` objects; registered as a submitit plugin.

    Args:
        folder: the run folder.
        slurm_conf: value for ``SLURM_CONF``, if it is not the machine's own.
    """

    job_class = RenderedJob

    def __init__(self, folder: str | Path, slurm_conf: str | None = None) -> None:
        super().__init__(folder)
        self._slurm = Slurm(slurm_conf)
        self._job_ids: dict[str, str] = {}

    @classmethod
    def name(cls) -> str:
        """The name for ``submitit.AutoExecutor(cluster=...)``."""
        return "trtllm_hpc"

    @classmethod
    def affinity(cls) -> int:
        """0 (available, but only on request) where sbatch is installed; -1 elsewhere."""
        return 0 if shutil.which("sbatch") else -1

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        return [self._submit(submission.function) for submission in delayed_submissions]

    def _submit(self, script: Any) -> RenderedJob:
        if not isinstance(script, StageScript):
            raise SubmissionError(f"Only rendered scripts can be submitted here, not {script!r}.")
        conditions = [
            f"{kind}:{self._job_ids[stage]}" for kind, stage in script.after if stage in self._job_ids
        ]
        job_id = self._slurm.submit(
            script.path,
            dependency=",".join(conditions) or None,
            environment=dict(script.environment),
            further=script.options,
        )
        self._job_ids[script.stage] = job_id
        return RenderedJob(script, job_id, self._slurm.conf)
