"""Cancelling what is left of a sweep."""

from __future__ import annotations

from collections.abc import Collection

from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.runs.cancel import cancel_run
from trtllm_hpc.runs.stages import sweep_job
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import read_submission
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord
from trtllm_hpc.sweeps.status import SweepStatus, sweep_status
from trtllm_hpc.sweeps.submit import alone


def cancel_sweep(paths: SweepPaths, record: SweepRecord, *, only: Collection[str] = ()) -> SweepStatus:
    """Cancel the jobs of all variants, or of those named; return the status. Idempotent.

    The last variant is cancelled first: otherwise Slurm would start each one that waits for the one before.
    Raises RunNotFound if no variant has a name of ``only``; SubmissionError as ``cancel_run``, or if another
    process submits variants right now.
    """
    require_variants(record, only)
    with alone(paths):
        for variant in reversed(sweep_status(paths, record).variants):
            if (variant.live or variant.state is None) and (not only or variant.name in only):
                cancel_run(paths.run(variant.name))
        if not only:
            _cancel_single_job(paths, record)
    return sweep_status(paths, record)


def _cancel_single_job(paths: SweepPaths, record: SweepRecord) -> None:
    """Cancel a job that was to run all variants: without one left it ends by itself once it has begun."""
    submissions = [found for it in record.variants if (found := read_submission(paths.run(it.name)))]
    jobs = {(it.slurm_conf, job) for it in submissions if it.scheduler == "slurm" and (job := sweep_job(it))}
    for conf, job in jobs:
        Slurm(conf).cancel([job])


def require_variants(record: SweepRecord, names: Collection[str]) -> None:
    """Raise RunNotFound for a name that no variant has."""
    known = [it.name for it in record.variants]
    for name in names:
        if name not in known:
            raise RunNotFound(f"No variant is called {name!r}. There are: {', '.join(known)}.")
