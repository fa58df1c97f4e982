"""Submitting the variants of a sweep that have not completed, and cancelling what is left of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

from trtllm_hpc.config.files import read_cluster
from trtllm_hpc.errors import RunNotFound, SubmissionError
from trtllm_hpc.logs.snapshot import RunSnapshot
from trtllm_hpc.paths import RunPaths, locked, read_json
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runs.status import RunState, sweep_job
from trtllm_hpc.runs.submit import (
    cancel_run,
    prepare_rest,
    refuse_cancelled,
    resume_run,
    sole_command,
    submit_stages,
)
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import SubmissionRecord, read_submission
from trtllm_hpc.sweeps.allocation import submit_in_one
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, Variant, read_record, run_folders
from trtllm_hpc.sweeps.status import SweepStatus, sweep_status

OnProgress = Callable[[str, int, int], object]
"""Receives the name of a variant that was submitted, its number, and how many there are to submit."""


@contextmanager
def alone(paths: SweepPaths) -> Iterator[None]:
    """Keep other processes from submitting or cancelling variants. Raises SubmissionError if one is at it."""
    message = f"Another process submits or cancels variants of {paths.sweep_id} right now."
    with locked(paths.lock, SubmissionError(message, hint=f"trtllm-hpc sweep status {paths.sweep_id}")):
        yield


def require_variants(record: SweepRecord, names: Collection[str]) -> None:
    """Raise RunNotFound for a name that no variant has."""
    known = [it.name for it in record.variants]
    for name in names:
        if name not in known:
            raise RunNotFound(f"No variant is called {name!r}. There are: {', '.join(known)}.")


def submit_variants(
    paths: SweepPaths,
    record: SweepRecord,
    *,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda name, number, count: None,
) -> int:
    """Submit every variant that has not completed and is not in the queue; return how many these were.

    Args:
        only: names of variants; without any, all that are not refused.

    Raises:
        SubmissionError: Slurm refused a script, or does not answer. What was submitted before stays so, and
            the same call goes on.
    """
    require_variants(record, only)
    with alone(paths):
        rows = {row.run_id: row for row in listed_runs(paths.folder, warn=_refuse_silence)}
        live = [paths.run(name) for name, row in rows.items() if row.live]
        left = [
            it.name
            for it in record.variants
            if not it.refused and it.name in rows and (not only or it.name in only)
            if not rows[it.name].live and rows[it.name].state is not RunState.COMPLETED
        ]
        for run in map(paths.run, left):
            if read_submission(run) is None:
                run.stop_request.unlink(missing_ok=True)  # of a cancel before this command
        if record.allocation == "one":
            with ExitStack() as held:
                for run in map(paths.run, left):
                    held.enter_context(sole_command(run))
                    refuse_cancelled(run) if read_submission(run) is None else prepare_rest(run)
                if left:
                    submit_in_one(paths, record, left)
            return len(left)
        queue = _Queue(record.max_running, live)
        for number, name in enumerate(left, 1):
            try:
                queue.submit(paths.run(name))
            except (SubmissionError, OSError) as cause:
                error = cause if isinstance(cause, SubmissionError) else SubmissionError(str(cause))
                error.hint = f"once that is mended, trtllm-hpc sweep resume {paths.sweep_id} submits the rest"
                error.message += f"\n{number - 1} of {len(left)} variants were submitted before, and stay so."
                raise error from None
            on_progress(name, number, len(left))
    return len(left)


def _refuse_silence(sentence: str) -> None:
    raise SubmissionError(sentence, hint="the same command again, once Slurm answers", transient=True)


class _Queue:
    """Submits runs so that at most ``lanes`` of them run at once.

    Each run is in a lane, and its first job waits (``afterany``) for all jobs of the run before it there. No
    process has to live for that. Builds of the same engine wait for each other, too: the first one builds,
    and the others find it in the cache.
    """

    def __init__(self, lanes: int | None, live: Collection[RunPaths]) -> None:
        self._lanes = lanes
        self._last: dict[int, list[str]] = {}
        self._length = Counter[int]()
        self._builds: dict[str, str] = {}
        records = [(run, found) for run in live if (found := read_submission(run)) is not None]
        for run, found in sorted(
            records, key=lambda it: max((job.submitted_at for job in it[1].stages.values()), default=0.0)
        ):
            self._remember(run, found)

    def submit(self, run: RunPaths) -> None:
        """Submit a run that was only rendered, or what is left of it. Raises SubmissionError."""
        lane = min(range(self._lanes), key=lambda it: self._length[it]) if self._lanes else 0
        before = self._last.get(lane, []) if self._lanes else []
        builder = self._builds.get(_engine(run) or "")
        waits = [*before, *([builder] if builder and builder not in before else [])]
        conditions = tuple(f"afterany:{job}" for job in waits)
        if read_submission(run) is None:
            with sole_command(run):
                self._remember(run, submit_stages(run, lane=lane, conditions=conditions))
        else:
            self._remember(run, resume_run(run, lane=lane, conditions=conditions))

    def _remember(self, run: RunPaths, record: SubmissionRecord) -> None:
        lane = record.lane or 0
        self._last[lane] = [job.job_id for job in record.stages.values()]
        self._length[lane] += 1
        engine, build = _engine(run), record.stages.get("build")
        if engine is not None and build is not None:
            self._builds.setdefault(engine, build.job_id)


def _engine(run: RunPaths) -> str | None:
    """Return what the engine of a run depends on, as text; ``None`` without a build."""
    recipe = read_json(run.build_recipe)
    keys = ("model_path", "steps", "tensorrt_llm", "compute_capability")
    return None if recipe is None else json.dumps([recipe.get(key) for key in keys])


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
