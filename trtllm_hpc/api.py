"""The package from Python: what the commands do, without a terminal.

::

    from trtllm_hpc import api

    with api.submit("tiny-llama", cluster="sandbox", settings=["serve.nodes=2"]) as run:
        run.wait("ready")
        print(run.client().generate("What is machine learning?", max_tokens=64).text)

Every error is a :class:`trtllm_hpc.errors.TrtllmHpcError`: it has a sentence, an
``exit_code`` that tells what failed, and a ``hint`` where there is something to do.
(A keyword that is no option of a request is a ``TypeError``, as for any function.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Address
from trtllm_hpc.client.lora import Adapter, read_adapter
from trtllm_hpc.client.request import Answer
from trtllm_hpc.client.sync_client import Client
from trtllm_hpc.logs.files import list_logs
from trtllm_hpc.paths import RunPaths, default_runs_folder
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.runs import find
from trtllm_hpc.runs.cancel import cancel_run
from trtllm_hpc.runs.create import create_run, plan_run
from trtllm_hpc.runs.endpoint import endpoint_of
from trtllm_hpc.runs.status import RunStatus, run_status
from trtllm_hpc.runs.submit import create_for_submission, submit_stages
from trtllm_hpc.runs.watch import Progress, follow
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.validation.checks import check_rendering

__all__ = [
    "Adapter",
    "Address",
    "Answer",
    "AsyncClient",
    "Client",
    "Run",
    "plan",
    "read_adapter",
    "render",
    "submit",
]

READY_TIMEOUT_S = 3600.0

_log = logging.getLogger(__name__)


class Run:
    """A run, submitted or only rendered.

    As a context manager it cancels the run at its end, unless that has ended.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.status.settled:
            self.cancel()

    @classmethod
    def find(cls, name: str = "latest", runs: Path | str | None = None) -> Run:
        """Return a run by its folder, its id or the beginning of it, its job's name, or ``latest``.

        Args:
            runs: folder of the runs; by default ``$TRTLLM_HPC_RUNS``, else ``./runs``.

        Raises:
            RunNotFound: there is none, or there are several.
        """
        return cls(find.find_run(name, default_runs_folder() if runs is None else Path(runs)))

    @classmethod
    def list(cls, runs: Path | str | None = None) -> Sequence[Run]:
        """Return the runs of a folder, the newest first."""
        folder = default_runs_folder() if runs is None else Path(runs)
        return [cls(paths) for paths in find.list_runs(folder)]

    @property
    def id(self) -> str:
        """The name of the run's folder."""
        return self._paths.run_id

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return self._paths.folder

    @property
    def status(self) -> RunStatus:
        """The state of its jobs, ranks and instances now; asks Slurm.

        Raises:
            SubmissionError: Slurm does not answer.
        """
        return run_status(self._paths)

    @property
    def cause(self) -> str | None:
        """What failed first, in a sentence; ``None`` while nothing has."""
        status = self.status
        return status.sentence if status.exit_code else None

    @property
    def endpoint(self) -> Endpoint | None:
        """Where the server is; ``None`` while it is not ready."""
        return self.status.endpoint

    def wait(
        self,
        until: Literal["ready", "end"] = "end",
        *,
        timeout_s: float = READY_TIMEOUT_S,
        on_progress: Callable[[Progress], object] = lambda progress: None,
    ) -> RunStatus:
        """Wait until the server is ready, or until the run has ended.

        Args:
            timeout_s: for ``ready``.
            on_progress: for ``end``, called about twice a second.

        Raises:
            NotReady: the server was not ready in time.
            BuildFailed, StartFailed, RunCancelled, JobLost: it can no longer become ready.
        """
        if until == "ready":
            endpoint_of(self._paths, timeout_s)
            return self.status
        for progress in follow(self._paths):
            on_progress(progress)
        return self.status

    def logs(self, rank: int | None = None, stage: str = "serve") -> str:
        """Return the log of a rank, or of the stage's script; empty if there is none yet."""
        texts = [log.path for log in list_logs(self._paths, stage) if log.rank == rank]
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in texts if path.exists())

    def client(self, model: str | None = None) -> Client:
        """Return a client of the server.

        Raises:
            NotReady: it is not ready.
        """
        return Client(endpoint_of(self._paths, 0.0), model)

    def async_client(self, model: str | None = None) -> AsyncClient:
        """Return a client of the server for asyncio, a context manager.

        Raises:
            NotReady: it is not ready.
        """
        return AsyncClient(endpoint_of(self._paths, 0.0), model)

    def cancel(self) -> RunStatus:
        """Cancel all jobs, and wait until they have ended."""
        return cancel_run(self._paths)


def plan(
    job: Path | str, cluster: str = "sandbox", settings: Sequence[str] = (), runs: Path | str | None = None
) -> Plan:
    """Return what a job file and a profile lead to, without writing anything.

    Args:
        job: a job file, or the name of a shipped one.
        cluster: a profile's file or name.
        settings: overrides such as ``serve.nodes=2``, as for ``--set``.
        runs: folder of the runs.

    Raises:
        ConfigError: a file is wrong; its diagnostics say where.
    """
    with plan_run(Path(job), cluster, settings, _folder(runs), command="render") as planned:
        return planned.plan


def render(
    job: Path | str, cluster: str = "sandbox", settings: Sequence[str] = (), runs: Path | str | None = None
) -> Run:
    """Write a run folder with all its scripts, and submit nothing. Arguments are those of :func:`plan`.

    Raises:
        ConfigError, RenderError: see :func:`plan`; a path cannot be written into a script.
    """
    place = (Path(job), cluster, settings, _folder(runs))
    created = create_run(*place, check=check_rendering, warn=_log.warning, command="render")
    return Run(created.paths)


def submit(
    job: Path | str,
    cluster: str = "sandbox",
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    ignored_checks: Collection[str] = (),
) -> Run:
    """Check a job as ``doctor`` does, and submit it. Warnings go to :mod:`logging`.

    Args:
        ignored_checks: ids of checks whose failure does not matter.

    Others are those of :func:`plan`.

    Raises:
        ConfigError, RenderError: see :func:`render`; or a check fails.
        SubmissionError: Slurm refused a script, or is not there.
    """
    created = create_for_submission(
        Path(job), cluster, settings, _folder(runs), ignored_checks=ignored_checks, warn=_log.warning
    )
    submit_stages(created.plan, created.paths)
    return Run(created.paths)


def _folder(runs: Path | str | None) -> Path | None:
    return None if runs is None else Path(runs)
