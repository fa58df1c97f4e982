"""Resuming a run: submit again, in the same folder, the stages that have not ended well."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Collection, Mapping

from trtllm_hpc.config.files import read_cluster, read_spec
from trtllm_hpc.errors import SubmissionError
from trtllm_hpc.logs.files import stage_of
from trtllm_hpc.logs.snapshot import RunSnapshot, readable_plan
from trtllm_hpc.paths import RunPaths, call_name
from trtllm_hpc.runs.stages import queued_jobs
from trtllm_hpc.runs.status import RunStatus, run_status
from trtllm_hpc.runs.submit import Turn, require_scheduler, sole_command, submit_stages
from trtllm_hpc.runtime.bad_nodes import Pool, bad_hosts, exclude
from trtllm_hpc.runtime.plan_record import Stage
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.submission_record import StageJob, SubmissionRecord


def resume_run(paths: RunPaths, turn: Turn | None = None) -> SubmissionRecord:
    """Submit the scripts of the stages that have not ended well, as they are in the run folder.

    A stage that has completed is not repeated. Only a companion needs its server again, and a server that its
    companion stops needs that. A node because of which the server has ended is left out. What the earlier
    attempt wrote about the repeated stages is moved to ``attempts/``, so that nobody takes it for news.
    Raises SubmissionError if a job of the run has not ended, another command is at the run, nothing is left
    to do, or Slurm refused a script; ConfigError if another version of this package wrote the run.
    """
    with sole_command(paths):
        stages, completed = prepare_rest(paths)
        return submit_stages(paths, stages=stages, completed=completed, turn=turn)


def prepare_rest(paths: RunPaths) -> tuple[list[Stage], dict[str, StageJob]]:
    """Prepare the folder for the stages that have not ended well; return them, and the jobs of the others.

    The caller is the run's sole command. Raises as :func:`resume_run`.
    """
    run = RunSnapshot(paths)
    status = run_status(run)
    for name, why in run.unread.items():
        if name.startswith((paths.jobs.name, paths.events.name)):
            message = f"{name} of run {paths.run_id} cannot be read, so its jobs may live: {why}."
            raise SubmissionError(message, hint=f"mend that, then trtllm-hpc resume {call_name(paths)}")
    _refuse_live(run, status)
    plan, names = readable_plan(paths), {stage.stage for stage in status.stages if not stage.ok}
    if "companion" in names or ("serve" in names and read_spec(paths.spec).stops_server):
        names |= {"serve", "companion"}
    stages = [stage for stage in plan.stages if stage.name in names]
    if not stages:
        words = [str(paths.spec), "--cluster", str(paths.cluster)]
        raise SubmissionError(
            f"Every stage of run {paths.run_id} has completed: there is nothing to resume.",
            hint=f"trtllm-hpc submit {shlex.join(words)} makes a new run of the same job",
        )
    require_scheduler(read_cluster(paths.cluster))
    submitted = run.submission.stages if run.submission else {}
    completed = {stage: job for stage, job in submitted.items() if stage not in names}
    if plan.stage("companion") is None:
        names.add("companion")  # it runs in the allocation of the server, without a job of its own
    server = next((stage for stage in status.stages if stage.stage in names and stage.stage == "serve"), None)
    bad = {} if server is None else bad_hosts(paths)
    _set_aside(paths, names)
    serve = next((stage for stage in stages if stage.name == "serve"), None)
    if server is not None and serve is not None and bad and plan.scheduler == "slurm":
        _exclude(paths, bad, server.job_id or "", serve, Slurm(plan.slurm_conf))
    return stages, completed


def _exclude(paths: RunPaths, hosts: Mapping[str, str], job_id: str, serve: Stage, slurm: Slurm) -> None:
    """Keep the hosts at fault from the next server, if its partitions have enough others."""
    wanted: Counter[str | None] = Counter()
    for component in serve.components:
        wanted[component.partition] += component.nodes
    try:
        pools = [Pool.of(slurm.nodes(partition), nodes) for partition, nodes in wanted.items()]
    except SubmissionError:
        return  # sbatch will say what is wrong
    exclude(paths, hosts, job_id=job_id, pools=pools)


def _refuse_live(run: RunSnapshot, status: RunStatus) -> None:
    live = [f"stage {it.stage} {it.sentence}" for it in status.stages if it.job_id and not it.final]
    live += [f"job {job.job_id} of stage {stage} is in the queue" for stage, job in queued_jobs(run).items()]
    if live:
        name = call_name(run.paths)
        raise SubmissionError(
            f"Run {run.paths.run_id} is not over: {live[0]}.",
            hint=f"trtllm-hpc cancel {name}, then trtllm-hpc resume {name}",
        )


def _set_aside(paths: RunPaths, stages: Collection[str]) -> None:
    """Move what an earlier attempt wrote about these stages to a folder of its own."""
    aside = paths.new_attempt().folder
    files = [file for folder in (paths.events, paths.logs, paths.ranks) for file in folder.iterdir()]
    # The stage that wrote a file begins its name, e.g. serve.1_0.out.
    files = [file for file in files if stage_of(re.split(r"[._]", file.name)[0]) in stages]
    files += [paths.endpoint, paths.heartbeat, paths.instances, paths.stop_request, paths.benchmark_progress]
    files.append(paths.renewal)
    for file in files:
        if file.exists():
            place = aside / file.relative_to(paths.folder)
            place.parent.mkdir(exist_ok=True)
            file.rename(place)
    if paths.jobs.exists():  # it is replaced, and never missing
        shutil.copy2(paths.jobs, aside)
