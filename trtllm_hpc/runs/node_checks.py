"""``doctor --on-nodes``: a small job that checks a plan's image and nodes, and leaves nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.errors import Diagnostic, SubmissionError, fail
from trtllm_hpc.layout import Instances, Layout
from trtllm_hpc.logs.reading import last_lines
from trtllm_hpc.paths import RunPaths, write_json, write_text
from trtllm_hpc.plan.model import Plan, node_check_stage
from trtllm_hpc.render.run_folder import write_runtime
from trtllm_hpc.render.scripts import render_configurations, render_node_checks
from trtllm_hpc.runs.create import JobSource, plan_run
from trtllm_hpc.runs.submit import require_scheduler
from trtllm_hpc.runtime.engine_cache.shared_files import remove
from trtllm_hpc.runtime.front import with_addresses
from trtllm_hpc.runtime.model_repository.recipe import RepositoryRecipe
from trtllm_hpc.runtime.node_checks import PARTS
from trtllm_hpc.runtime.node_checks.exchange import Wanted, read_found
from trtllm_hpc.runtime.server_spec import ServerSpec, expand
from trtllm_hpc.runtime.servers.openai import AUTH_KEY
from trtllm_hpc.scheduler.job_info import JobInfo, RunJob
from trtllm_hpc.scheduler.local import StageScript
from trtllm_hpc.scheduler.slurm import JobWatcher, Slurm
from trtllm_hpc.scheduler.states import LOST, parse_state

Show = Callable[[str], object]
"""Receives a sentence about the job's progress whenever it changes."""

_BEAT_S = 5.0
_LOOK_S = 1.0
_QUEUE_S = 3600.0
"""Limit on the wait in the queue, in seconds."""
_END_S = 60.0
"""Seconds that a cancelled job may take to end."""
_STATES = ("ok", "unknown", "warn", "fail")
_LOG_LINES = 3
_YAML = "1/model.yaml"
_ADDRESS = {"address": "127.0.0.1", "port": 8000}
"""Example of the address that a server gets in its job."""


@dataclass(frozen=True)
class NodeReport:
    """The result of the job's checks."""

    checks: tuple[Diagnostic, ...]
    """The worst finding of each check."""
    wanted: Wanted
    """The checks that the job made."""
    facts: dict[str, Any]
    """Facts seen by the first task of each part, by part."""
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
    """Check a job's image and the cluster's nodes in a Slurm job of at most ten minutes.

    Args:
        nodes: 1, or 2 to test the network between nodes as well.
        keep: leave the folder with the job's scripts and logs, and show its path.
        show: receives a sentence about the job's progress whenever it changes.

    Other arguments and errors are those of :func:`trtllm_hpc.plan`.

    Raises:
        SubmissionError: Slurm refused the job, or the job did not start within an hour.
    """
    source = JobSource.of(job, cluster, (*settings, "model.stage=null"), runs)
    with plan_run(source, command="doctor") as plan:
        paths = RunPaths(plan.run_folder)
        if plan.cluster.scheduler != "slurm":
            raise SubmissionError(
                f"The profile {plan.cluster.name!r} runs jobs on this machine, which needs no --on-nodes.",
                hint="leave --on-nodes out, or name a Slurm cluster with --cluster",
            )
        require_scheduler(plan.cluster)
        checked = node_check_plan(plan, nodes)
        wanted = wanted_of(plan, checked)
        try:
            _write(paths, plan, checked, wanted)
            info = _run(JobWatcher(Slurm(*plan.cluster.controller)), paths, show)
            parts = read_found(paths)
            facts = {part.part: part.facts for part in reversed(parts)}
            findings = [finding for part in parts for finding in part.diagnostics]
            findings += _missing(paths, checked, facts, info)
            worst: dict[str, Diagnostic] = {}  # by check, since several tasks ran it
            for finding in findings:
                code, state = finding.code, _STATES.index(finding.state)
                if code not in worst or state > _STATES.index(worst[code].state):
                    worst[code] = finding
            return NodeReport(tuple(worst.values()), wanted, facts, plan.cluster)
        finally:
            if keep:
                show(f"scripts and logs are in {paths.folder}")
            else:
                remove(paths.folder, attempts=9)  # a process may still be writing, or NFS keep an open file


def _write(paths: RunPaths, plan: Plan, checked: Plan, wanted: Wanted) -> None:
    paths.make_folders()
    if plan.build_steps:
        # A container can mount only folders that exist.
        Path(plan.engines_folder).mkdir(parents=True, exist_ok=True)
    for name, text in render_node_checks(checked).items():
        write_text(paths.scripts / name, text, mode=0o700)
    for name, text in render_configurations(plan).items():
        write_text(paths.folder / name, text)
    if plan.front is not None:
        groups = plan.instances.groups
        servers = {
            group.role: [f"127.0.0.1:{9000 + server.number}" for server in group.servers] for group in groups
        }
        # Like a run's front: any free port (0), and a key.
        front = with_addresses(plan.front.configuration, servers, 0) | {AUTH_KEY: "0" * 43}
        write_json(paths.front_started, front)
    write_runtime(paths)
    paths.heartbeat.touch()
    wanted.write(paths.node_checks)


# What the job checks ----------------------------------------------------------------------


def node_check_plan(plan: Plan, nodes: int) -> Plan:
    """Return the plan of the checks' job: two ranks on one node, or one rank on each of two nodes.

    If the phases have nodes of their own, the job runs on those of the context phase.
    """
    facts = replace(plan.facts, cluster=plan.facts.cluster.for_phase("context"))
    per_node = 2 // nodes
    gpus = min(per_node, facts.cluster.gpus_per_node) if plan.layout.gpus_per_node else 0
    layout = Layout(world_size=2, nodes=nodes, ranks_per_node=per_node, gpus_per_node=gpus)
    stage = node_check_stage(facts.job, facts.cluster, layout, RunPaths(plan.run_folder))
    return replace(plan, facts=facts, instances=Instances(1, 1, layout), stages=(stage,))


def wanted_of(plan: Plan, checked: Plan) -> Wanted:
    """Return what the job is to check.

    Args:
        plan: the plan of the job file.
        checked: the plan of the checks' job, from :func:`node_check_plan`.
    """
    cluster, layout = checked.cluster, checked.layout
    models = plan.repository.models if isinstance(plan.repository, RepositoryRecipe) else ()
    front_file = f"--config_file={RunPaths(plan.run_folder).front_started}"
    return Wanted(
        release=plan.release,
        has_tensorrt_llm=plan.backend.release_use != "none",
        programs=[list(words) for words in _programs(plan)],
        launcher=plan.server.spec.launcher,
        serve={role: expand(spec.leader[1:], _ADDRESS) for role, spec in _serve_specs(plan)},
        model_yaml=next((model.files[_YAML] for model in models if _YAML in model.files), None),
        front=[] if plan.front is None else [*plan.front.command[1:], front_file],
        gpus_per_node=layout.gpus_per_node if cluster.gpu_request != "none" else 0,
        ranks=layout.world_size,
        nodes=layout.nodes,
        tries_network=checked.tries_network,
        network_interface=cluster.network_interface,
        haproxy=cluster.haproxy if plan.has_proxy else None,
        mpi=None if cluster.mpi == "mpirun" else cluster.mpi,
    )


def _serve_specs(plan: Plan) -> Iterator[tuple[str, ServerSpec]]:
    """Yield each ``trtllm-serve`` server with its phase."""
    roles = [group.role for group in plan.instances.groups] or ["serve"]
    for role, server in zip(roles, plan.servers, strict=True):
        if server.spec.driver == "openai" and plan.backend.release_use != "none":
            yield role, server.spec


def _programs(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield the program and the options, without values, of every command line in the image."""
    commands = (command for step in plan.build_steps for command in step.commands)
    for arguments in commands:
        words = [word for word in arguments if isinstance(word, str)]
        count = 2 if PurePath(words[0]).name.startswith("python") else 1
        if words[count - 1] != str(RunPaths(plan.run_folder).runtime):  # skip this package's own commands
            yield (*words[:count], *(word for word in words[count:] if word.startswith("--")))
    for _, spec in _serve_specs(plan):
        yield (spec.leader[0], "serve", *_options(spec))
    if plan.front is not None:
        name, command, *options = plan.front.command
        yield (name, command, *options, "--config_file")
    elif plan.server.spec.driver == "triton" and plan.backend.release_use != "none":
        yield (plan.cluster.triton.server, *_options(plan.server.spec))


def _options(spec: ServerSpec) -> list[str]:
    return [word for word in spec.leader[1:] if word.startswith("--")]


# The job ----------------------------------------------------------------------------------


def _run(watcher: JobWatcher, paths: RunPaths, show: Show) -> JobInfo | None:
    """Submit the job and wait until it has ended; whatever happens, it does not go on."""
    from trtllm_hpc.scheduler.executor import RenderedScriptExecutor  # importing submitit is slow

    with _beating(paths.heartbeat):
        executor = RenderedScriptExecutor(paths.folder, watcher.slurm.conf)
        job = executor.submit(StageScript(str(paths.folder), "doctor", ())).run_job
        try:
            return _wait(watcher, job, paths, show)
        finally:
            with suppress(SubmissionError):
                watcher.slurm.cancel([job])
                until = time.monotonic() + _END_S
                while time.monotonic() < until:  # until it has ended, the job writes into the folder
                    info = watcher.job_infos([job], mode="force").get(job)
                    if info is None or info.state.final:
                        break
                    time.sleep(_LOOK_S)


@contextmanager
def _beating(file: Path) -> Iterator[None]:
    """Touch the file that shows the job that this command still waits for it."""
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
    """Wait for the job; return ``None`` once all checks are done, or its last state if it ended early."""
    began, shown, info = time.monotonic(), "", JobInfo(job.job_id, parse_state("PENDING"))
    while not paths.node_checks_over.exists():
        try:
            info = watcher.job_infos([job]).get(job, JobInfo(job.job_id, LOST))
        except SubmissionError as error:
            if not error.transient:
                raise
        if info.state.final:
            return info
        if info.state.name != "PENDING":
            results = len(list(paths.node_findings.glob("*.json")))
            sentence = f"job {job.job_id} runs on {info.nodes}: {results} results so far"
        elif time.monotonic() - began < _QUEUE_S:
            sentence = f"job {job.job_id} waits in the queue ({info.reason})"
        else:
            raise SubmissionError(
                f"Job {job.job_id} had not started after {_QUEUE_S / 60:.0f} minutes ({info.reason}).",
                hint="squeue --me, then the same command",
            )
        if sentence != shown:
            shown = sentence
            show(shown)
        time.sleep(_LOOK_S)
    return None


# Parts without findings -------------------------------------------------------------------


def _missing(
    paths: RunPaths, checked: Plan, found: Collection[str], info: JobInfo | None
) -> list[Diagnostic]:
    """Return a fault for each part without a result: its step did not get as far as Python."""
    missing = []
    unused = {"image"} if checked.backend.release_use == "none" else set()
    for part in (part for part in PARTS if part not in unused and part not in found):
        log = paths.batch_log("doctor") if part == "host" else paths.rank_log(part, 0)
        lines = last_lines(log, _LOG_LINES) or last_lines(paths.batch_log("doctor"), _LOG_LINES)
        text = " / ".join(line.strip() for line in lines if line.strip())
        state = "" if info is None else f" (the job is {info.state.name})"
        hint = "doctor without --on-nodes, then the same command with --keep, which keeps scripts and logs"
        failed = fail(f"the step {part} left no result{state}: {text or 'its log is empty'}", hint)
        missing.append(replace(failed, code=f"step-{part}"))
    return missing
