"""What no single field can say: findings about fields together, and about both files together.

One small generator for each rule. What a rule looks at is valid when it is judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.diagnostics import JOB_FILE, PROFILE, Diagnostics, in_job
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.config.validate import UnknownValueError
from trtllm_hpc.errors import Diagnostic
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.validation import (
    backend_rules,
    cluster_rules,
    engine_rules,
    job_rules,
    method_rules,
    release_rules,
    repository_rules,
    serve_rules,
)


@dataclass(frozen=True)
class Resolved:
    """What loading both files gives: a job file and a profile, each valid and fitting each other."""

    facts: JobFacts
    job_file: str
    cluster_file: str

    @property
    def job(self) -> JobFile:
        """The job file."""
        return self.facts.job

    @property
    def cluster(self) -> ClusterProfile:
        """The cluster profile."""
        return self.facts.cluster


def check(resolved: Resolved) -> list[Diagnostic]:
    """Every rule on values that need not come from files; without lines."""
    files = {JOB_FILE: resolved.job_file, PROFILE: resolved.cluster_file}
    return [replace(it, file=files[it.file]) for it in problems(resolved.facts)]


def problems(facts: JobFacts) -> list[Diagnostic]:
    """Everything that keeps this job file and this profile from working together."""
    found = [problem for rule in job_rules.RULES for problem in _judged(rule, facts.job)]
    found += cluster_problems(facts.cluster)
    found += [problem for rule in _together() for problem in _judged(rule, facts)]
    return found


def rules() -> tuple[Callable[..., Diagnostics], ...]:
    """Every rule, in the order in which they are judged; each has a sentence as its docstring."""
    return (*job_rules.RULES, *cluster_rules.RULES, *_together())


def _together() -> tuple[Callable[[JobFacts], Diagnostics], ...]:
    return (
        *(ranks_spread, gpus_suffice, build_gpus),
        *serve_rules.RULES,
        *backend_rules.RULES,
        *release_rules.RULES,
        *engine_rules.RULES,
        *method_rules.RULES,
        *repository_rules.RULES,
    )


def cluster_problems(cluster: ClusterProfile) -> list[Diagnostic]:
    """Everything that is wrong with this profile, whatever the job."""
    return [problem for rule in cluster_rules.RULES for problem in _judged(rule, cluster)]


def _judged(
    rule: Callable[..., Diagnostics], subject: JobFile | ClusterProfile | JobFacts
) -> list[Diagnostic]:
    """Return what a rule finds; nothing if it reads a field that is wrong itself."""
    try:
        return list(rule(subject))
    except UnknownValueError:
        return []


def ranks_spread(facts: JobFacts) -> Diagnostics:
    """Every node runs the same number of ranks, and the local scheduler has one node."""
    job, cluster = facts.job, facts.cluster
    world, nodes = job.engine.world_size, job.serve.nodes
    if nodes is None or job.serve.mode != "leader":
        return
    if cluster.scheduler == "local" and nodes != 1:
        message = f"the profile {cluster.name!r} is this one machine, but the job asks for {nodes} nodes"
        hint = "leave serve.nodes out, type --set serve.nodes=1, or choose a Slurm profile with --cluster"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)
    elif world % nodes:
        ranks = "1 rank" if world == 1 else f"{world} ranks"
        message = f"{ranks} cannot be spread evenly over {nodes} nodes"
        hint = f"set serve.nodes in the job file to a divisor of {world}, or type --set serve.nodes=1"
        yield in_job("conflict", "serve.nodes", message, hint, nodes)


def gpus_suffice(facts: JobFacts) -> Diagnostics:
    """One GPU a rank, where the cluster has GPUs."""
    job, cluster = facts.job, facts.cluster
    world, gpus = job.engine.world_size, cluster.gpus_per_node
    nodes = 1 if cluster.scheduler == "local" else job.serve.nodes
    if job.serve.mode != "leader":
        return
    if not gpus or nodes is None or world % nodes or world // nodes <= gpus:
        return
    message = f"{world // nodes} ranks on a node need as many GPUs, but a node of {cluster.name!r} has {gpus}"
    if cluster.scheduler == "local":
        yield in_job("conflict", "engine", message, f"lower engine.tensor_parallel to {gpus} or less", world)
        return
    fewest = world // next(ranks for ranks in range(gpus, 0, -1) if world % ranks == 0)
    yield in_job("conflict", "serve.nodes", message, f"set serve.nodes to {fewest}", nodes)


def build_gpus(facts: JobFacts) -> Diagnostics:
    """The build runs on one node."""
    job, cluster = facts.job, facts.cluster
    wanted, there = job.build.gpus, cluster.gpus_per_node
    if wanted is not None and wanted > there:
        message = f"{wanted} GPUs for the build, but a node of {cluster.name!r} has {there}"
        hint = f"set build.gpus to at most {there}, or mend gpus_per_node in the profile"
        yield in_job("conflict", "build.gpus", message, hint, wanted)
