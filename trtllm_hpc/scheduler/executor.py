"""submitit executors for rendered scripts.

submitit's own Slurm executor writes a script and pickles a function. Here the
scripts are there already and are what a person reviewed, so this executor
hands them to sbatch byte for byte, and gives submitit a ``Job`` for state,
waiting, cancelling and output paths.
"""

from __future__ import annotations

import shutil
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from submitit.core import core, utils

from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.scheduler.script import StageScript
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.states import LOST

_MAX_POLL_S = 30
"""Longest pause between two questions to Slurm; submitit starts at 2 s and doubles."""


class RunWatcher(core.InfoWatcher):  # type: ignore[misc]
    """Asks one cluster about all registered jobs at once, with submitit's back-off."""

    def __init__(self, slurm: Slurm) -> None:
        super().__init__(delay_s=_MAX_POLL_S)
        self._slurm = slurm

    def update(self) -> None:
        """One question for all jobs that have not ended."""
        self._num_calls += 1
        self._last_status_check = time.time()
        asked = self._registered - self._finished
        try:
            answers = self._slurm.query(asked)
        except SubmissionError as error:
            if error.transient:
                return  # what was known last stands until the next question
            raise
        for job_id in asked:
            info = answers.get(job_id)
            state = info.state if info else LOST
            self._info_dict[job_id] = {
                "State": state.name,
                "Final": "yes" if state.final else "",
                "ExitCode": "" if info is None or info.exit_code is None else str(info.exit_code),
                "NodeList": info.nodes if info else "",
            }
        self._finished |= {job_id for job_id in asked if self._info_dict[job_id]["Final"]}

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """Slurm's name of the state, or UNKNOWN before the first answer."""
        return str(self.get_info(job_id, mode=mode).get("State") or "UNKNOWN")

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether the job has ended, by the table of states and not by submitit's list."""
        return bool(self.get_info(job_id, mode=mode).get("Final"))


@lru_cache(maxsize=8)
def _watcher(conf: str | None) -> RunWatcher:
    return RunWatcher(Slurm(conf))


class ScriptPaths(utils.JobPaths):  # type: ignore[misc]
    """Where a rendered script writes, in submitit's words."""

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
        self.watcher = _watcher(conf)
        super().__init__(folder=script.run_folder, job_id=job_id)
        self._paths = ScriptPaths(script, job_id)

    @property
    def stage(self) -> str:
        """The stage whose script this is."""
        return self._script.stage

    def cancel(self, check: bool = True) -> None:
        """Cancel the job in Slurm; one that has ended is passed over.

        Args:
            check: whether a refusal is an error; without it there is a reason already.
        """
        try:
            Slurm(self._conf).cancel([self.job_id])
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

    def __getstate__(self) -> dict[str, Any]:
        # The watcher is shared by all jobs of a cluster and is found again.
        return {name: value for name, value in self.__dict__.items() if name != "watcher"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.watcher = _watcher(self._conf)
        self._register_in_watcher()


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
        """0 (there, but only on request) where sbatch is; -1 elsewhere."""
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
        )
        self._job_ids[script.stage] = job_id
        return RenderedJob(script, job_id, self._slurm.conf)
