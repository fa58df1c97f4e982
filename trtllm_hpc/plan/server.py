"""What each rank's server is told, by the mode of serving."""

from __future__ import annotations

from packaging.version import Version

from trtllm_hpc.config.job import Disaggregated, JobFile
from trtllm_hpc.plan.layout import Layout
from trtllm_hpc.plan.model import ServerPlan
from trtllm_hpc.tensorrt_llm.releases import Release

LAUNCHER = "trtllm-llmapi-launch"
"""Joins the ranks of the LLM API; in the container from 0.19 on (``tensorrt_llm/llmapi``)."""
NO_POOLS_SINCE = "24.06"
"""From the tag after this one on, an orchestrator's server must not take GPU memory for itself
(upstream's ``launch_triton_server.py``, ``check_triton_version``)."""


def server_plan(job: JobFile, release: Release | None, layout: Layout, *, with_slurm: bool) -> ServerPlan:
    """Models of the workers, environment and further options of every rank's server."""
    if job.engine.backend == "llmapi":
        # Without it each server would spawn its workers by MPI, which Slurm's PMIx does not offer.
        return ServerPlan(worker_models=(), launcher=LAUNCHER if with_slurm else None)
    if job.serve.mode == "orchestrator":
        spawning = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
        return ServerPlan(worker_models=(), environment=spawning, options=_pools(release, layout))
    if job.serve.mode == "disaggregated":
        fixed = {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
        return ServerPlan(worker_models=("context", "generation"), environment=fixed)
    return ServerPlan(worker_models=("tensorrt_llm",))


def _pools(release: Release | None, layout: Layout) -> tuple[str, ...]:
    tags = release.tags if release is not None else ()
    if tags and max(map(Version, tags)) <= Version(NO_POOLS_SINCE):
        return ()
    pools = (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(layout.gpus_per_node))
    return ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools)


def disaggregated_ranks(phases: Disaggregated) -> int:
    """World size of disaggregated serving: the orchestrator, and a rank for each GPU of each copy."""
    return 1 + sum(len(gpus) for phase in (phases.context, phases.generation) for gpus in phase.instances)
