"""A run: find, watch, query, resume and cancel it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from trtllm_hpc.logs.snapshot import RunSnapshot, plan_of
from trtllm_hpc.paths import RunPaths, default_runs_folder
from trtllm_hpc.runs.find import find_run, list_runs

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
    """A run, submitted or only rendered; usually from ``submit``, ``render``, :meth:`find` or :meth:`list`.

    As a context manager it cancels the run on leaving, unless the run has ended.

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
        """Return a run by folder, ID or its beginning, job name, or ``latest``.

        ``latest`` is the run submitted last, never one that was only rendered or whose submission failed. A
        job's name finds such a run only if no run of the job was submitted.

        Args:
            runs: folder of run folders; by default ``$TRTLLM_HPC_RUNS``, else the user's, else ``./runs``.

        Raises:
            RunNotFound: no run or several runs match.
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
        """The job file with every default.

        Raises:
            ConfigError: the file is of another version.
        """
        from trtllm_hpc.config.files import read_spec

        return read_spec(self.paths.spec)

    @property
    def scripts(self) -> Sequence[Path]:
        """The batch scripts, in the order of their submission."""
        plan = plan_of(self.paths)
        return [] if plan is None else [self.paths.sbatch(stage.name) for stage in plan.stages]

    @property
    def jobs(self) -> dict[str, str]:
        """The job ID of each submitted stage; with the profile ``local`` a process ID."""
        record = RunSnapshot(self.paths).submission
        return {} if record is None else {stage: job.job_id for stage, job in record.stages.items()}

    # Its state ----------------------------------------------------------------------------------

    @property
    def status(self) -> RunStatus:
        """The current state of jobs, ranks and instances, from Slurm or, if it does not answer, from files.

        Raises:
            SubmissionError: Slurm cannot be asked, for example because its commands are missing.
        """
        from trtllm_hpc.runs.status import status_or_files

        return status_or_files(self.paths)[0]

    @property
    def endpoint(self) -> Endpoint | None:
        """The server's endpoint; ``None`` while the server is not ready."""
        return self.status.endpoint

    def wait(
        self,
        until: Literal["ready", "done", "end"] = "end",
        *,
        timeout_s: float = READY_TIMEOUT_S,
        progress: bool | Callable[[RunProgress], object] = False,
    ) -> RunStatus:
        """Wait until the server is ready, or until the run has ended.

        If the run's folder is removed meanwhile, its jobs are cancelled.

            Args: until: ``ready``, ``end``, or ``done``: until every stage has ended, except a server that
            keeps running (``serve.keep_running``, or no companion), as for ``submit --wait``. timeout_s: time
            limit of ``ready``; the others end with the time limits of the jobs. progress: ``True`` shows the
            progress like ``submit --wait``; a function is called with it about twice a second.

        Raises:
            NotReady: the server is not ready in time.
            BuildFailed, StartFailed, RunCancelled, JobLost: the server can no longer become ready.
            SubmissionError: Slurm does not answer at first, or for a long time.
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
        """Return the log of a rank, or of the stage's script; empty if there is no log yet.

        Args:
            rank: a rank; ``None``: the batch script's output.
            stage: a stage, or a step before the server: ``repository`` or ``preflight``.
            instance: an instance of the server; ``None``: all, one after another.
        """
        from trtllm_hpc.logs.files import list_logs

        logs = list_logs(RunSnapshot(self.paths), stage, rank, instance)
        files = [log.path for log in logs if log.rank == rank and log.path.exists()]
        return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)

    # What is done with it -----------------------------------------------------------------------

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
        """Return an asyncio client of the server, an asynchronous context manager; see :meth:`client`.

        Raises:
            NotReady: the server is not ready.
        """
        from trtllm_hpc.client.async_client import AsyncClient
        from trtllm_hpc.runs.endpoint import endpoint_of, follower_of

        follow = follower_of(self.paths)
        return AsyncClient(endpoint_of(self.paths, 0.0), model, protocol=protocol, follow=follow)

    def cancel(self) -> RunStatus:
        """Cancel all jobs, wait until they have ended, and return the status; idempotent.

        A running submission is stopped, too.

        Raises:
            SubmissionError: Slurm refuses the cancellation or does not answer.
        """
        from trtllm_hpc.runs.submit import cancel_run

        return cancel_run(self.paths)

    def resume(self) -> Run:
        """Submit failed and missing stages again in the same folder, and return this run.

        Completed stages are not repeated, except the server that a companion needs. Files of the earlier
        attempt are kept in ``attempts/``.

            Raises: SubmissionError: jobs of the run are queued or running, another command submits, cancels
            or removes it, every stage has completed, or Slurm refuses a script.
        """
        from trtllm_hpc.runs.submit import resume_run

        resume_run(self.paths)
        return self
