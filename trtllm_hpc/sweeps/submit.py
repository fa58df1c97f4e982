"""Submit the variants of a sweep that have not completed, separately or as one job, and cancel them."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from trtllm_hpc import __version__
from trtllm_hpc.config.files import read_cluster, read_spec
from trtllm_hpc.errors import RunNotFound, SubmissionError
from trtllm_hpc.logs.snapshot import RunSnapshot, readable_plan
from trtllm_hpc.paths import RunPaths, locked, read_json, write_text
from trtllm_hpc.render.environment import render_template
from trtllm_hpc.runs.listing import listed_runs
from trtllm_hpc.runs.status import SWEEP_JOB_NAME, RunState, sweep_job
from trtllm_hpc.runs.submit import (
    cancel_run,
    prepare_rest,
    refuse_cancelled,
    resume_run,
    sole_command,
    submit_stages,
)
from trtllm_hpc.runtime.plan_record import Stage
from trtllm_hpc.runtime.process import signal_group, start_ticks
from trtllm_hpc.runtime.records import TOKEN_VARIABLE
from trtllm_hpc.scheduler.discovery import query_limits
from trtllm_hpc.scheduler.local import StageScript
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import StageJob, SubmissionRecord, read_submission
from trtllm_hpc.sweeps.record import SweepPaths, SweepRecord, Variant, read_record, run_folders
from trtllm_hpc.sweeps.status import SweepStatus, sweep_status

_STAGE = "sweep"
"""Name of the stage of a single job for all variants."""

OnProgress = Callable[[str, int, int], object]
"""Called with the name of a submitted variant, its number, and the total number."""


@contextmanager
def alone(paths: SweepPaths) -> Iterator[None]:
    """Lock the sweep. Raises SubmissionError if another process submits or cancels variants."""
    message = f"Another process is submitting or cancelling variants of {paths.sweep_id}."
    with locked(paths.lock, SubmissionError(message, hint=f"trtllm-hpc sweep status {paths.sweep_id}")):
        yield


def require_variants(record: SweepRecord, names: Collection[str]) -> None:
    """Raise RunNotFound for a name that is not a variant."""
    known = [variant.name for variant in record.variants]
    for name in names:
        if name not in known:
            raise RunNotFound(f"No variant is called {name!r}. The variants are {', '.join(known)}.")


def submit_variants(
    paths: SweepPaths,
    record: SweepRecord,
    *,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda name, number, count: None,
) -> int:
    """Submit every variant that is neither completed nor queued; return their number.

    Args:
        only: names of variants; empty: all that are not refused.

        Raises: SubmissionError: Slurm refuses a script or does not answer. Earlier variants stay submitted,
        and another call submits the rest.
    """
    require_variants(record, only)
    with alone(paths):
        rows = {row.run_id: row for row in listed_runs(paths.folder, warn=_refuse_silence)}
        live = [paths.run(name) for name, row in rows.items() if row.live]
        left = [
            variant.name
            for variant in record.variants
            if not variant.refused and variant.name in rows and (not only or variant.name in only)
            if not rows[variant.name].live and rows[variant.name].state is not RunState.COMPLETED
        ]
        for run in map(paths.run, left):
            if read_submission(run) is None:
                run.stop_request.unlink(missing_ok=True)  # from an earlier cancel
        if record.allocation == "one":
            with ExitStack() as held:
                for run in map(paths.run, left):
                    held.enter_context(sole_command(run))
                    refuse_cancelled(run) if read_submission(run) is None else prepare_rest(run)
                if left:
                    submit_in_one(paths, record, left)
            return len(left)
        submitting = _submitted([paths.run(name) for name in left], record.max_running, live)
        for number, name in enumerate(left, 1):
            try:
                next(submitting)
            except (SubmissionError, OSError) as cause:
                error = cause if isinstance(cause, SubmissionError) else SubmissionError(str(cause))
                error.hint = f"fix that, and type trtllm-hpc sweep resume {paths.sweep_id} to submit the rest"
                error.message += f"\n{number - 1} of {len(left)} variants are submitted and stay so."
                raise error from None
            on_progress(name, number, len(left))
    return len(left)


def _refuse_silence(sentence: str) -> None:
    raise SubmissionError(sentence, hint="the same command again, once Slurm answers", transient=True)


def _submitted(runs: Sequence[RunPaths], lanes: int | None, live: Collection[RunPaths]) -> Iterator[None]:
    """Submit new or partly completed runs, one per iteration; at most ``lanes`` of them run at once.

    Each run is in a lane, in which its first job waits (``afterany``) for all jobs of the run before, so that
    no process needs to stay alive. A build also waits for an earlier build of the same engine, which it then
    finds in the cache. Raises SubmissionError.
    """
    last: dict[int, list[str]] = {}
    length, builds = Counter[int](), dict[str, str]()

    def remember(run: RunPaths, record: SubmissionRecord) -> None:
        lane = record.lane or 0
        last[lane] = [job.job_id for job in record.stages.values()]
        length[lane] += 1
        engine, build = _engine(run), record.stages.get("build")
        if engine is not None and build is not None:
            builds.setdefault(engine, build.job_id)

    def submitted_at(item: tuple[RunPaths, SubmissionRecord]) -> float:
        return max((job.submitted_at for job in item[1].stages.values()), default=0.0)

    records = [(run, record) for run in live if (record := read_submission(run)) is not None]
    for run, record in sorted(records, key=submitted_at):
        remember(run, record)
    for run in runs:
        lane = min(range(lanes), key=length.__getitem__) if lanes else 0
        before = last.get(lane, []) if lanes else []
        builder = builds.get(_engine(run) or "")
        waits = [*before, *([builder] if builder and builder not in before else [])]
        conditions = tuple(f"afterany:{job}" for job in waits)
        if read_submission(run) is None:
            with sole_command(run):
                remember(run, submit_stages(run, lane=lane, conditions=conditions))
        else:
            remember(run, resume_run(run, lane=lane, conditions=conditions))
        yield


def _engine(run: RunPaths) -> str | None:
    """Return a text that identifies the engine of a run; ``None`` without a build."""
    recipe = read_json(run.build_recipe)
    keys = ("model_path", "steps", "tensorrt_llm", "compute_capability")
    return None if recipe is None else json.dumps([recipe.get(key) for key in keys])


# One job for all variants ---------------------------------------------------------------------------


def submit_in_one(paths: SweepPaths, record: SweepRecord, names: Sequence[str]) -> None:
    """Submit one job that runs the variants ``names`` in order. Their stages must be ready to run.

    Raises SubmissionError if Slurm refuses the job.
    """
    plans = {run: readable_plan(run) for run in map(paths.run, names)}
    first, plan = next(iter(plans.items()))
    cluster = read_cluster(first.cluster)
    minutes = record.time_limit_minutes
    if not minutes:  # the sum of the variants' limits, within the site's and the partition's limits
        needed = 0
        for run, planned in plans.items():
            spec = read_spec(run.spec)
            needed += spec.serve.time_limit_minutes
            needed += spec.build.time_limit_minutes if planned.stage("build") is not None else 0
        bounds = [needed, cluster.limits.time_minutes]
        for limits in query_limits(*cluster.controller) if cluster.scheduler == "slurm" else ():
            if limits.is_default if cluster.partition is None else limits.name == cluster.partition:
                bounds.append(limits.minutes)
        minutes = min(bound for bound in bounds if bound is not None)
    # The job requests the maximum of each resource over all stages of all variants.
    asked = [stage.first for planned in plans.values() for stage in planned.stages]
    resources = replace(
        next(stage.first for stage in plan.stages if stage.name == "serve"),
        nodes=max(stage.nodes for stage in asked),
        tasks=None,
        tasks_per_node=1,
        cpus_per_task=max(stage.cpus_per_task * (stage.tasks_per_node or 1) for stage in asked),
        memory_gib=_most_memory(stage.memory_gib for stage in asked),
        gpus_per_node=max(stage.gpus_per_node for stage in asked),
        minutes=minutes,
        warning_seconds=None,
    )
    here = RunPaths(paths.folder)
    for folder in (here.scripts, here.logs):
        folder.mkdir(exist_ok=True)
    script = render_template(
        "scripts/sweep.sbatch.j2",
        stage=Stage(_STAGE, SWEEP_JOB_NAME, str(here.batch_log(_STAGE)), (resources,)),
        folder=str(paths.folder),
        python=plan.python,
        runtime=str(first.runtime),
        minutes=minutes,
        names=names,
        version=__version__,
    )
    write_text(here.sbatch(_STAGE), script, mode=0o700)
    token = SubmissionRecord(cluster.scheduler).token
    stage_script = StageScript(str(here.folder), _STAGE, (), ((TOKEN_VARIABLE, token),))
    started = None
    if cluster.scheduler == "slurm":
        from trtllm_hpc.scheduler.executor import RenderedScriptExecutor

        job_id = RenderedScriptExecutor(here.folder, *cluster.controller).submit(stage_script).job_id
    else:
        process = stage_script.start()
        job_id, started = str(process.pid), start_ticks(process.pid)
    job = StageJob(job_id, time.time(), started)
    try:
        for run, planned in plans.items():
            of_run = SubmissionRecord(cluster.scheduler, token, *cluster.controller, complete=True)
            of_run.within = str(paths.folder)
            of_run.stages = {stage.name: job for stage in planned.stages}
            of_run.write(run)
    except BaseException:  # including Ctrl-C: an unrecorded job must not occupy nodes
        if cluster.scheduler == "local":
            signal_group(int(job_id), signal.SIGTERM)
        else:
            Slurm(*cluster.controller).cancel([sweep_job(str(paths.folder), job_id)])
        raise


def _most_memory(asked: Iterable[int | str | None]) -> int | str | None:
    amounts = [amount for amount in asked if amount is not None]
    if "all" in amounts:
        return "all"
    return max((amount for amount in amounts if isinstance(amount, int)), default=None)


# Cancelling -----------------------------------------------------------------------------------------


def cancel_sweep(paths: SweepPaths, *, only: Collection[str] = ()) -> SweepStatus:
    """Cancel the jobs of all variants, or of those in ``only``, and return the status. Idempotent.

    If the sweep's record is damaged, the existing run folders are its variants. The last variant is cancelled
    first, because Slurm would start each variant that waits for the one before. Raises RunNotFound if a name
    in ``only`` is not a variant, and SubmissionError like ``cancel_run``, or if another process submits
    variants.
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
        # Also cancel the single job of all variants, which would otherwise stay queued. Slurm is searched for
        # it, because no variant has recorded it if the submitting process was killed.
        runs, script = [paths.run(name) for name in run_folders(paths)], RunPaths(paths.folder).sbatch(_STAGE)
        cluster = read_cluster(runs[0].cluster) if not only and runs and script.exists() else None
        if cluster is not None and cluster.scheduler == "slurm":
            slurm = Slurm(*cluster.controller)
            records = filter(None, (RunSnapshot(run).submission for run in runs))
            recorded = (job.job_id for submission in records for job in submission.stages.values())
            jobs = {*recorded, *slurm.find_scripts({script: None}).values()}
            slurm.cancel([sweep_job(str(paths.folder), job_id) for job_id in jobs])
    return sweep_status(paths, record)
