"""Find, watch, use, resume and cancel a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, default_runs_folder
from trtllm_hpc.runs.find import find_run, list_runs
from trtllm_hpc.runtime.plan_record import PlanRecord

if TYPE_CHECKING:
    from trtllm_hpc.client.async_client import AsyncClient
    from trtllm_hpc.client.connect import Protocol
    from trtllm_hpc.client.sync_client import Client
    from trtllm_hpc.config.job import JobFile
    from trtllm_hpc.engine_cache import CachedEngine
    from trtllm_hpc.runs.status import RunStatus
    from trtllm_hpc.runs.watch import RunProgress
    from trtllm_hpc.runtime.records import Endpoint

READY_TIMEOUT_S = 3600.0


class Run:
    """A submitted or rendered run, as returned by ``submit``, ``render``, :meth:`find` and :meth:`list`.

    As a context manager, it cancels the run at the end of the block, unless the run has ended.

    Args:
        paths: the run's folder.
        engine: result of the search in the engine cache; ``None`` if the run needs no cached engine, or if
            another process created the run.
    """

    def __init__(self, paths: RunPaths, engine: CachedEngine | None = None) -> None:
        self.paths = paths
        self.engine = engine

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.status.settled:
            self.cancel()

    # The run ------------------------------------------------------------------------------------

    @classmethod
    def find(cls, name: str | Path = "latest", runs: Path | str | None = None) -> Run:
        """Return a run by its folder, its ID or the beginning of its ID, its job's name, or ``latest``.

        ``latest`` is the run that was submitted last. A run that was only rendered, or whose submission was
        refused, is never the latest. Its job's name finds it if no run of this job was submitted.

        Args:
            name: folder, ID, beginning of the ID, name of the job, or ``latest``.
            runs: folder of the runs; by default ``$TRTLLM_HPC_RUNS``, else the user's, else ``./runs``.

        Raises:
            RunNotFound: no run matches, or several runs match.
        """
        return cls(find_run(str(name), default_runs_folder() if runs is None else Path(runs)))

    @classmethod
    def list(cls, runs: Path | str | None = None) -> Sequence[Run]:
        """Return the runs of a folder, the newest first."""
        folder = default_runs_folder() if runs is None else Path(runs)
        return [cls(paths) for paths in list_runs(folder)]

    @property
    def id(self) -> str:
        """The name of the run's folder."""
        return self.paths.run_id

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self.paths.folder

    @property
    def job(self) -> JobFile:
        """The job file with every default written out.

        Raises:
            ConfigError: another version of this package wrote it.
        """
        from trtllm_hpc.config.files import read_spec

        return read_spec(self.paths.spec)

    @property
    def scripts(self) -> Sequence[Path]:
        """The batch scripts, in the order of their submission."""
        plan = PlanRecord.read(self.paths)
        return [] if plan is None else [self.paths.sbatch(stage.name) for stage in plan.stages]

    @property
    def jobs(self) -> dict[str, str]:
        """The job ID of each submitted stage; with the profile ``local``, the process ID."""
        record = RunSnapshot(self.paths).submission
        return {} if record is None else {stage: job.job_id for stage, job in record.stages.items()}

    # The run's state ----------------------------------------------------------------------------

    @property
    def status(self) -> RunStatus:
        """The current state of the run's jobs, ranks and instances.

        The state comes from Slurm, or from the run's files if Slurm does not answer.

        Raises:
            SubmissionError: Slurm cannot be asked at all, for example because its commands are missing.
        """
        from trtllm_hpc.runs.status import status_or_files

        return status_or_files(self.paths)[0]

    @property
    def endpoint(self) -> Endpoint | None:
        """The server's address; ``None`` while the server is not ready."""
        return self.status.endpoint

    def wait(
        self,
        until: Literal["ready", "done", "end"] = "end",
        *,
        timeout_s: float = READY_TIMEOUT_S,
        progress: bool | Callable[[RunProgress], object] = False,
    ) -> RunStatus:
        """Wait until the server is ready, or until the run has ended.

        If the run's folder is removed meanwhile, the run's jobs are cancelled.

        Args:
            until: ``ready``: the server is ready. ``end``: the run has ended. ``done``, as for
                ``submit --wait``: the run has ended, or only a server is left that nothing stops
                (``serve.keep_running``, or no companion).
            timeout_s: seconds to wait for ``ready``. ``done`` and ``end`` wait until the jobs' time limits.
            progress: ``True`` shows the progress as ``submit --wait`` does; a function is called with the
                progress about twice a second.

        Raises:
            NotReady: the server was not ready in time.
            BuildFailed, StartFailed, RunCancelled, JobLost: the server can no longer become ready.
            SubmissionError: Slurm did not answer the first query, or did not answer for a long time.
        """
        from trtllm_hpc.runs.submit import end_orphans
        from trtllm_hpc.runs.watch import follow, follow_until_ready

        record = RunSnapshot(self.paths).submission
        shown: AbstractContextManager[Callable[[RunProgress], object] | None]
        if progress is True:
            from trtllm_hpc.report.live import live_printer

            shown = live_printer()
        else:
            shown = nullcontext(progress or None)
        with shown as show:
            if until == "ready":
                return follow_until_ready(self.paths, timeout_s, show)
            keeps_serving = until == "done" and not self.job.stops_server
            for step in follow(self.paths, keeps_serving=keeps_serving):
                if show is not None:
                    show(step)
        status = step.status
        if status.stages or record is None:
            return status
        end_orphans(self.paths, record)
        return replace(status, sentence=f"{status.sentence}; its jobs were cancelled")

    def logs(self, rank: int | None = None, stage: str = "serve", instance: int | None = None) -> str:
        """Return the log of a rank, or of the stage's batch script; empty if the log does not exist yet.

        Args:
            rank: number of the rank; ``None`` for the output of the batch script.
            stage: a stage, or a job step before the server: ``repository`` or ``preflight``.
            instance: number of the server instance; ``None`` for all, one after the other.
        """
        from trtllm_hpc.logs.files import list_logs

        logs = list_logs(RunSnapshot(self.paths), stage, rank, instance)
        files = [log.path for log in logs if log.rank == rank and log.path.exists()]
        return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

    # Use, cancel and resume ---------------------------------------------------------------------

    def client(self, model: str | None = None, *, protocol: Protocol | None = None) -> Client:
        """Return a client of the server, which is also a context manager.

        Args:
            model: name of the model; by default the server's usual model.
            protocol: by default ``grpc`` for Triton, else ``openai``. Chats need ``openai``.

        Raises:
            NotReady: the server is not ready.
        """
        from trtllm_hpc.client.sync_client import Client
        from trtllm_hpc.runs.endpoint import endpoint_of, follower_of

        follow = follower_of(self.paths)
        return Client(endpoint_of(self.paths, 0.0), model, protocol=protocol, follow=follow)

    def async_client(self, model: str | None = None, *, protocol: Protocol | None = None) -> AsyncClient:
        """Return a client for asyncio, which is also an asynchronous context manager; see :meth:`client`.

        Raises:
            NotReady: the server is not ready.
        """
        from trtllm_hpc.client.async_client import AsyncClient
        from trtllm_hpc.runs.endpoint import endpoint_of, follower_of

        follow = follower_of(self.paths)
        return AsyncClient(endpoint_of(self.paths, 0.0), model, protocol=protocol, follow=follow)

    def cancel(self) -> RunStatus:
        """Cancel all jobs, wait until they have ended, and return the status; idempotent.

        A submission in progress is stopped.

        Raises:
            SubmissionError: Slurm refused the cancellation, or does not answer.
        """
        from trtllm_hpc.runs.submit import cancel_run

        return cancel_run(self.paths)

    def resume(self) -> Run:
        """Submit again every stage that has not completed, in the same folder, and return this run.

        Completed stages are not repeated, except the server if the companion needs it again. Files of the
        former attempt are kept in ``attempts/``.

        Raises:
            SubmissionError: jobs of the run are in the queue or running; another command submits, cancels or
                removes the run; every stage has completed; or Slurm refused a script.
        """
        from trtllm_hpc.runs.submit import resume_run

        resume_run(self.paths)
        return self
