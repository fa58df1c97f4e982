"""Cancelling what is left of a sweep."""

from __future__ import annotations

from collections.abc import Collection

from trtllm_hpc.config.files import read_cluster
from trtllm_hpc.errors import RunNotFound
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runs.cancel import cancel_run
from trtllm_hpc.runs.status import sweep_job
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, Variant, read_record, run_folders
from trtllm_hpc.sweeps.status import SweepStatus, sweep_status
from trtllm_hpc.sweeps.submit import alone


def cancel_sweep(paths: SweepPaths, *, only: Collection[str] = ()) -> SweepStatus:
    """Cancel the jobs of all variants, or of those named; return the status. Idempotent.

    If the record of the sweep is damaged, its variants are the run folders that are there.
    The last variant is cancelled first: otherwise Slurm would start each one that waits for the one before.
    Raises RunNotFound if no variant has a name of ``only``; SubmissionError as ``cancel_run``, or if another
    process submits variants right now.
    """
    try:
        record = read_record(paths)
    except RunNotFound:
        record = SweepRecord(paths.sweep_id, "", (), [Variant(name, {}) for name in run_folders(paths)])
    require_variants(record, only)
    with alone(paths):
        for variant in reversed(sweep_status(paths, record).variants):
            if (variant.live or variant.state is None) and (not only or variant.name in only):
                cancel_run(paths.run(variant.name))
        if not only:
            _cancel_single_job(paths)
    return sweep_status(paths, record)


def _cancel_single_job(paths: SweepPaths) -> None:
    """Cancel a job that was to run all variants: without one left it ends by itself once it has begun.

    No variant has recorded it if the process that submitted it was killed.
    """
    runs, script = [paths.run(name) for name in run_folders(paths)], RunPaths(paths.folder).sbatch("sweep")
    cluster = read_cluster(runs[0].cluster) if runs and script.exists() else None
    if cluster is not None and cluster.scheduler == "slurm":
        slurm = Slurm(cluster.slurm_conf)
        records = filter(None, (RunSnapshot(run).submission for run in runs))
        recorded = (job.job_id for record in records for job in record.stages.values())
        jobs = {*recorded, *slurm.find_scripts({script: None}).values()}
        slurm.cancel([sweep_job(str(paths.folder), job_id) for job_id in jobs])


def require_variants(record: SweepRecord, names: Collection[str]) -> None:
    """Raise RunNotFound for a name that no variant has."""
    known = [it.name for it in record.variants]
    for name in names:
        if name not in known:
            raise RunNotFound(f"No variant is called {name!r}. There are: {', '.join(known)}.")
