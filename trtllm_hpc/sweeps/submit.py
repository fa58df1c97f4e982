"""Submit the variants of a sweep that have not completed, as jobs of their own or as one job; cancel them."""

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
"""Name of the only stage of a job that runs all variants."""

OnProgress = Callable[[str, int, int], object]
"""Called with a submitted variant's name, its number, and the number of variants to submit."""


@contextmanager
def alone(paths: SweepPaths) -> Iterator[None]:
    """Lock the sweep against other processes. Raises SubmissionError while another one submits or cancels."""
    message = f"Another process submits or cancels variants of {paths.sweep_id} right now."
    with locked(paths.lock, SubmissionError(message, hint=f"trtllm-hpc sweep status {paths.sweep_id}")):
        yield


def require_variants(record: SweepRecord, names: Collection[str]) -> None:
    """Raise RunNotFound if a name is not the name of a variant."""
    known = [variant.name for variant in record.variants]
    for name in names:
        if name not in known:
            raise RunNotFound(f"No variant is called {name!r}. The variants: {', '.join(known)}.")


def submit_variants(
    paths: SweepPaths,
    record: SweepRecord,
    *,
    only: Collection[str] = (),
    on_progress: OnProgress = lambda name, number, count: None,
) -> int:
    """Submit every variant that has not completed and is not in the queue, and return their number.

    Args:
        paths: the sweep's folder.
        record: the sweep's record.
        only: names of variants; by default all variants that are not refused.
        on_progress: called after each submission.

    Raises:
        RunNotFound: ``only`` contains a name that no variant has.
        SubmissionError: Slurm refused a script, or does not answer. Variants submitted before stay
            submitted; a second call submits the rest.
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
                # An earlier `sweep cancel` may have left this file, which would stop the new submission.
                run.stop_request.unlink(missing_ok=True)
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
                error.hint = f"correct this, then trtllm-hpc sweep resume {paths.sweep_id} submits the rest"
                error.message += f"\n{number - 1} of {len(left)} variants are submitted and stay submitted."
                raise error from None
            on_progress(name, number, len(left))
    return len(left)


def _refuse_silence(sentence: str) -> None:
    raise SubmissionError(sentence, hint="repeat the command when Slurm answers again", transient=True)


def _submitted(runs: Sequence[RunPaths], lanes: int | None, live: Collection[RunPaths]) -> Iterator[None]:
    """Submit one run at each step: a rendered run, or the stages of a run that have not completed.

    With ``lanes``, at most this many runs are active at once. Each run belongs to a lane, and its first job
    waits (``afterany``) for all jobs of the previous run in this lane, so Slurm keeps the order and no
    process has to stay alive. Builds of the same engine also wait for each other: the first build creates the
    engine, and later builds find the engine in the cache. Raises SubmissionError.
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

    def submitted_at(record: SubmissionRecord) -> float:
        return max((job.submitted_at for job in record.stages.values()), default=0.0)

    # Runs of an earlier command already occupy lanes, in the order of their submission.
    records = [(run, record) for run in live if (record := read_submission(run)) is not None]
    for run, record in sorted(records, key=lambda pair: submitted_at(pair[1])):
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
    """Return everything that determines a run's engine, as text; ``None`` if the run builds no engine."""
    recipe = read_json(run.build_recipe)
    keys = ("model_path", "steps", "tensorrt_llm", "compute_capability")
    return None if recipe is None else json.dumps([recipe.get(key) for key in keys])


# One job for all variants ---------------------------------------------------------------------------


def submit_in_one(paths: SweepPaths, record: SweepRecord, names: Sequence[str]) -> None:
    """Submit one job that runs the named variants one after another. Their stages must be ready to run.

    Raises SubmissionError if Slurm refuses the job.
    """
    plans = {run: readable_plan(run) for run in map(paths.run, names)}
    first, plan = next(iter(plans.items()))
    cluster = read_cluster(first.cluster)
    minutes = record.time_limit_minutes
    if not minutes:  # the sum of the variants' time limits, if cluster and partition allow so much
        needed = 0
        for run, planned in plans.items():
            spec = read_spec(run.spec)
            needed += spec.serve.time_limit_minutes
            needed += spec.build.time_limit_minutes if planned.stage("build") is not None else 0
        bounds = [needed, cluster.limits.time_minutes]
        for partition in query_limits(*cluster.controller) if cluster.scheduler == "slurm" else ():
            if partition.is_default if cluster.partition is None else partition.name == cluster.partition:
                bounds.append(partition.minutes)
        minutes = min(bound for bound in bounds if bound is not None)
    # Of each resource, the job requests the largest amount that any stage of any variant needs.
    requests = [stage.first for planned in plans.values() for stage in planned.stages]
    resources = replace(
        next(stage.first for stage in plan.stages if stage.name == "serve"),
        nodes=max(request.nodes for request in requests),
        tasks=None,
        tasks_per_node=1,
        cpus_per_task=max(request.cpus_per_task * (request.tasks_per_node or 1) for request in requests),
        memory_gib=_most_memory(request.memory_gib for request in requests),
        gpus_per_node=max(request.gpus_per_node for request in requests),
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
            submission = SubmissionRecord(cluster.scheduler, token, *cluster.controller, complete=True)
            submission.within = str(paths.folder)
            submission.stages = {stage.name: job for stage in planned.stages}
            submission.write(run)
    except BaseException:  # also Ctrl-C: without its records, nobody would cancel the job
        if cluster.scheduler == "local":
            signal_group(int(job_id), signal.SIGTERM)
        else:
            Slurm(*cluster.controller).cancel([sweep_job(str(paths.folder), job_id)])
        raise


def _most_memory(requests: Iterable[int | str | None]) -> int | str | None:
    sizes = [size for size in requests if size is not None]
    return "all" if "all" in sizes else max((size for size in sizes if isinstance(size, int)), default=None)


# Cancelling -----------------------------------------------------------------------------------------


def cancel_sweep(paths: SweepPaths, *, only: Collection[str] = ()) -> SweepStatus:
    """Cancel the jobs of all variants, or of the variants named in ``only``; return the status. Idempotent.

    If the sweep's record is damaged, every run folder counts as a variant.

    Raises:
        RunNotFound: ``only`` contains a name that no variant has.
        SubmissionError: as for ``cancel_run``, or another process submits variants right now.
    """
    try:
        record = read_record(paths)
    except RunNotFound:
        record = SweepRecord(paths.sweep_id, "", (), [Variant(name, {}) for name in run_folders(paths)])
    require_variants(record, only)
    with alone(paths):
        # The last variant first: otherwise Slurm would start a waiting variant when its predecessor ends.
        for variant in reversed(sweep_status(paths, record).variants):
            if (variant.live or variant.state is None) and (not only or variant.name in only):
                cancel_run(paths.run(variant.name))
        # Cancel the single job of `allocation: one`, too. If the submitting process was killed, no variant
        # has recorded the job, so Slurm is asked for jobs with this script.
        runs, script = [paths.run(name) for name in run_folders(paths)], RunPaths(paths.folder).sbatch(_STAGE)
        cluster = read_cluster(runs[0].cluster) if not only and runs and script.exists() else None
        if cluster is not None and cluster.scheduler == "slurm":
            slurm = Slurm(*cluster.controller)
            records = filter(None, (RunSnapshot(run).submission for run in runs))
            recorded = (job.job_id for submission in records for job in submission.stages.values())
            jobs = {*recorded, *slurm.find_scripts({script: None}).values()}
            slurm.cancel([sweep_job(str(paths.folder), job_id) for job_id in jobs])
    return sweep_status(paths, record)
