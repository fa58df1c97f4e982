"""``doctor --on-nodes``: submit the checks' job, wait for what it finds, and leave nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import Diagnostic, SubmissionError, fail
from trtllm_hpc.logs.reading import last_lines
from trtllm_hpc.paths import RunPaths, write_aside, write_json, write_text
from trtllm_hpc.plan.model import Plan
from trtllm_hpc.plan.node_checks import node_check_plan, wanted_of
from trtllm_hpc.render.run_folder import runtime_zipapp
from trtllm_hpc.render.scripts import render_configurations, render_node_checks
from trtllm_hpc.runs.create import JobSource, plan_run
from trtllm_hpc.runs.submit import require_scheduler
from trtllm_hpc.runtime.engine_cache.shared_files import remove
from trtllm_hpc.runtime.front import with_addresses
from trtllm_hpc.runtime.node_checks import PARTS
from trtllm_hpc.runtime.node_checks.exchange import Wanted, read_found
from trtllm_hpc.runtime.servers.openai import AUTH_KEY
from trtllm_hpc.scheduler.job_info import JobInfo, RunJob
from trtllm_hpc.scheduler.local import StageScript
from trtllm_hpc.scheduler.slurm import Slurm
from trtllm_hpc.scheduler.states import LOST, parse_state
from trtllm_hpc.scheduler.watcher import JobWatcher

Show = Callable[[str], object]
"""Receives a sentence on how far the job has come, when that changes."""

_BEAT_S = 5.0
_LOOK_S = 1.0
_QUEUE_S = 3600.0
"""Bound on the wait in the queue."""
_END_S = 60.0
"""Bound on the end of a job that is cancelled."""
_STATES = ("ok", "unknown", "warn", "fail")
_LOG_LINES = 3


@dataclass(frozen=True)
class NodeReport:
    """What the job has found."""

    checks: tuple[Diagnostic, ...]
    wanted: Wanted
    facts: dict[str, Any]
    """What the first task of each part has seen, by part."""
    cluster: ClusterProfile


def check_on_nodes(
    job: Path | str,
    cluster: Path | str | None = None,
    settings: Sequence[str] = (),
    runs: Path | str | None = None,
    *,
    nodes: int = 1,
    keep: bool = False,
    show: Show = lambda sentence: None,
) -> NodeReport:
    """Look at a job's image and at the cluster's nodes in a job of ten minutes at most.

    Args:
        nodes: 1, or 2 to look at the network between nodes as well.
        keep: leave the folder with the job's scripts and logs, and show its path.
        show: receives a sentence whenever the job has come further.

    Others, and the errors, are those of :func:`trtllm_hpc.plan`.

    Raises:
        SubmissionError: Slurm refused the job, or it did not start within an hour.
    """
    source = JobSource.of(job, cluster, (*settings, "model.stage=null"), runs)
    with plan_run(source, command="doctor") as plan:
        paths = RunPaths(plan.run_folder)
        if plan.cluster.scheduler != "slurm":
            raise SubmissionError(
                f"The profile {plan.cluster.name!r} runs jobs on this machine: doctor checks it already.",
                hint="leave --on-nodes out, or name a cluster with --cluster",
            )
        require_scheduler(plan.cluster)
        checked = node_check_plan(plan, nodes)
        wanted = wanted_of(plan, checked)
        try:
            _write(paths, plan, checked, wanted)
            info = _run(JobWatcher(Slurm(plan.cluster.slurm_conf)), paths, show)
            found = read_found(paths)
            facts = {one.part: one.facts for one in reversed(found)}
            findings = [it for one in found for it in one.diagnostics] + _missing(paths, checked, facts, info)
            return NodeReport(tuple(_worst(findings)), wanted, facts, plan.cluster)
        finally:
            if keep:
                show(f"scripts and logs are in {paths.folder}")
            else:
                remove(paths.folder, attempts=9)  # somebody may still write, or NFS keep an open file


def _write(paths: RunPaths, plan: Plan, checked: Plan, wanted: Wanted) -> None:
    paths.make_folders()
    if plan.build_steps:
        # A container can only mount what is there.
        Path(plan.engines_folder).mkdir(parents=True, exist_ok=True)
    for name, text in render_node_checks(checked).items():
        write_text(paths.scripts / name, text, mode=0o700)
    for name, text in render_configurations(plan).items():
        write_text(paths.folder / name, text)
    if plan.front is not None:
        groups = plan.instances.groups
        servers = {it.role: [f"127.0.0.1:{9000 + one.number}" for one in it.servers] for it in groups}
        # As the run's own: any free port, and a key.
        front = with_addresses(plan.front.configuration, servers, 0) | {AUTH_KEY: "0" * 43}
        write_json(paths.front_started, front)
    with write_aside(paths.runtime) as aside:
        aside.write_bytes(runtime_zipapp())
        aside.chmod(0o700)
    paths.heartbeat.touch()
    wanted.write(paths.node_checks)


# The job ----------------------------------------------------------------------------------


def _run(watcher: JobWatcher, paths: RunPaths, show: Show) -> JobInfo | None:
    """Submit the job and wait until it has ended; whatever happens, it does not go on."""
    from trtllm_hpc.scheduler.executor import RenderedScriptExecutor  # submitit takes its time

    with _beating(paths.heartbeat):
        executor = RenderedScriptExecutor(paths.folder, watcher.slurm.conf)
        job = executor.submit(StageScript(str(paths.folder), "doctor", ())).run_job
        try:
            return _wait(watcher, job, paths, show)
        finally:
            _end(watcher, job)


@contextmanager
def _beating(file: Path) -> Iterator[None]:
    """Touch the file by which the job sees that somebody waits for it."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_BEAT_S):
            with suppress(OSError):
                file.touch()

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wait(watcher: JobWatcher, job: RunJob, paths: RunPaths, show: Show) -> JobInfo | None:
    """Return once the job has looked at everything (``None``), or has ended before, with its last state."""
    began, said, info = time.monotonic(), "", JobInfo(job.job_id, parse_state("PENDING"))
    while not paths.node_checks_over.exists():
        try:
            info = watcher.job_infos([job]).get(job, JobInfo(job.job_id, LOST))
        except SubmissionError as error:
            if not error.transient:
                raise
        if info.state.final:
            return info
        if info.state.name != "PENDING":
            found = len(list(paths.node_findings.glob("*.json")))
            sentence = f"job {job.job_id} runs on {info.nodes}: {found} results so far"
        elif time.monotonic() - began < _QUEUE_S:
            sentence = f"job {job.job_id} waits in the queue ({info.reason})"
        else:
            raise SubmissionError(
                f"Job {job.job_id} had not started after {_QUEUE_S / 60:.0f} minutes ({info.reason}).",
                hint="squeue --me, then the same command",
            )
        if sentence != said:
            said = sentence
            show(said)
        time.sleep(_LOOK_S)
    return None


def _end(watcher: JobWatcher, job: RunJob) -> None:
    """Cancel the job and wait until it has ended: it writes into the folder until then."""
    with suppress(SubmissionError):
        watcher.slurm.cancel([job])
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            info = watcher.job_infos([job], mode="force").get(job)
            if info is None or info.state.final:
                return
            time.sleep(_LOOK_S)


# What was found ---------------------------------------------------------------------------


def _worst(findings: Collection[Diagnostic]) -> Iterator[Diagnostic]:
    """Yield one diagnostic for each check: of several tasks, the worst."""
    checks: dict[str, Diagnostic] = {}
    for one in findings:
        before = checks.get(one.code)
        if before is None or _STATES.index(one.state) > _STATES.index(before.state):
            checks[one.code] = one
    yield from checks.values()


def _missing(
    paths: RunPaths, checked: Plan, found: Collection[str], info: JobInfo | None
) -> list[Diagnostic]:
    """Return a failure for each part that has left no result: its step did not get as far as Python."""
    missing = []
    unused = {"image"} if checked.backend.release_use == "none" else set()
    for part in (part for part in PARTS if part not in unused and part not in found):
        log = paths.batch_log("doctor") if part == "host" else paths.rank_log(part, 0)
        lines = last_lines(log, _LOG_LINES) or last_lines(paths.batch_log("doctor"), _LOG_LINES)
        text = " / ".join(line.strip() for line in lines if line.strip())
        state = "" if info is None else f" (the job is {info.state.name})"
        hint = "doctor without --on-nodes, then the same command with --keep, which keeps scripts and logs"
        failed = fail(f"nothing came from the step {part}{state}: {text or 'its log is empty'}", hint)
        missing.append(replace(failed, code=f"step-{part}"))
    return missing
