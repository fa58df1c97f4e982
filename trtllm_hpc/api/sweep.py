"""Submit, follow, resume and compare the variants of a job file."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtllm_hpc.api.run import Run
from trtllm_hpc.paths import default_runs_folder
from trtllm_hpc.runs.create import JobSource, Warn
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, find_sweep, list_sweeps, read_record

if TYPE_CHECKING:
    from trtllm_hpc.sweeps.create import PlannedSweep
    from trtllm_hpc.sweeps.measured import SweepResults
    from trtllm_hpc.sweeps.status import SweepStatus
    from trtllm_hpc.sweeps.submit import OnProgress

_logger = logging.getLogger("trtllm_hpc")
_PAUSE_S = 5.0


def plan_sweep(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    skip_refused: bool = False,
    ignored_checks: Collection[str] = (),
) -> PlannedSweep:
    """Check every variant of a job file, without writing anything.

    Args:
        vary: keys with values, added to the grid of the job file's section ``sweep``; or texts such as
            ``engine.tensor_parallel=2,4``.
        skip_refused: leave out wrong variants instead of refusing the sweep.
        ignored_checks: IDs of checks that may fail.

    Other arguments are those of :func:`trtllm_hpc.submit`.

    Raises:
        ConfigError: a file, a setting, the section ``sweep`` or a variant is wrong.
        SubmissionError: this machine cannot submit to the cluster.
    """
    from trtllm_hpc.config.dump import flow
    from trtllm_hpc.sweeps import create

    if isinstance(vary, Mapping):
        vary = [f"{key}={', '.join(map(flow, values))}" for key, values in vary.items()]
    source = JobSource.of(job, cluster, settings, runs)
    return create.plan_sweep(source, vary, ignored_checks=ignored_checks, skip=skip_refused)


def sweep(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    vary: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    skip_refused: bool = False,
    ignored_checks: Collection[str] = (),
    on_warning: Warn = _logger.warning,
) -> Sweep:
    """Check every variant of a job file, and submit all of them.

    Args:
        on_warning: called with each warning of one or more lines.

    Other arguments and errors are those of :func:`plan_sweep`. If Slurm refuses a script, earlier variants
    stay submitted, and ``Sweep.find().resume()`` submits the rest.
    """
    planned = plan_sweep(
        job, cluster, settings, runs, vary=vary, skip_refused=skip_refused, ignored_checks=ignored_checks
    )
    for warning in planned.warnings:
        on_warning(warning)
    planned.write()
    submitted = Sweep(planned.paths)
    submitted.resume()
    return submitted


class Sweep:
    """A sweep; usually from :func:`trtllm_hpc.sweep` or :meth:`find`."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths

    def __repr__(self) -> str:
        return f"Sweep({self.id!r})"

    @classmethod
    def find(cls, name: str | Path = "latest", runs: Path | str | None = None) -> Sweep:
        """Return a sweep by folder, ID or its beginning, job name, or ``latest``.

        Args:
            runs: folder of run folders; by default ``$TRTLLM_HPC_RUNS``, else the user's, else ``./runs``.

        Raises:
            RunNotFound: no sweep or several sweeps match.
        """
        return cls(find_sweep(str(name), default_runs_folder() if runs is None else Path(runs)))

    @classmethod
    def list(cls, runs: Path | str | None = None) -> Sequence[Sweep]:
        """Return the sweeps of a folder of runs, the newest first."""
        return [cls(paths) for paths in list_sweeps(default_runs_folder() if runs is None else Path(runs))]

    @property
    def id(self) -> str:
        """The name of the sweep's folder."""
        return self.paths.sweep_id

    @property
    def record(self) -> SweepRecord:
        """The variants, and the keys that differ between them.

        Raises:
            RunNotFound: the record is damaged.
        """
        return read_record(self.paths)

    @property
    def runs(self) -> dict[str, Run]:
        """The run of each variant that was not refused, by the variant's name."""
        accepted = (variant.name for variant in self.record.variants if not variant.refused)
        return {name: Run(self.paths.run(name)) for name in accepted}

    @property
    def status(self) -> SweepStatus:
        """The state of every variant; Slurm is asked once."""
        from trtllm_hpc.sweeps.status import sweep_status

        return sweep_status(self.paths, self.record, warn=_logger.warning)

    def results(self, *, slo: str | None = None) -> SweepResults:
        """Return the results so far: points, frontier and best variant.

        Args:
            slo: limits that override the job file's, as for ``--slo``.

        Raises:
            BadSlo: the limits cannot be parsed.
        """
        from trtllm_hpc.sweeps.measured import read_results

        return read_results(self.paths, slo=slo, status=self.status)

    def wait(self, on_progress: Callable[[SweepStatus], object] = lambda status: None) -> SweepStatus:
        """Wait until all jobs of the sweep have ended; ``on_progress`` is called every few seconds."""
        while True:
            status = self.status
            on_progress(status)
            if status.settled:
                return status
            time.sleep(_PAUSE_S)

    def cancel(self, only: Collection[str] = ()) -> SweepStatus:
        """Cancel the jobs of all variants, or of those in ``only``.

        Raises:
            RunNotFound: a name in ``only`` is not a variant.
            SubmissionError: Slurm does not answer, or another process is submitting variants.
        """
        from trtllm_hpc.sweeps.submit import cancel_sweep

        return cancel_sweep(self.paths, only=only)

    def resume(
        self, only: Collection[str] = (), on_progress: OnProgress = lambda name, number, count: None
    ) -> int:
        """Submit the variants that are neither completed nor queued; return their number.

        Args:
            only: names of variants; empty: all.
            on_progress: called with the name of each submitted variant, its number, and the total number.

        Raises:
            RunNotFound: a name in ``only`` is not a variant.
            SubmissionError: Slurm refuses a script or does not answer.
        """
        from trtllm_hpc.sweeps.submit import submit_variants

        return submit_variants(self.paths, self.record, only=only, on_progress=on_progress)
