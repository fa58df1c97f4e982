"""The ways of serving a model: one object for each, which everything else asks."""

from __future__ import annotations

from trtllm_hpc.backends.base import Backend
from trtllm_hpc.backends.command import CommandServer
from trtllm_hpc.backends.engine import Orchestrator, TritonDisaggregated, TritonEngine, TrtllmServeEngine
from trtllm_hpc.backends.llm_api import TritonLlmApi
from trtllm_hpc.backends.reference import Reference
from trtllm_hpc.backends.trtllm_serve import DisaggregatedTrtllmServe, TrtllmServe
from trtllm_hpc.config.cluster import ClusterProfile
from trtllm_hpc.config.job import JobFile
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts

BACKENDS: dict[tuple[str, str, str], Backend] = {
    ("pytorch", "openai", "leader"): TrtllmServe(),
    ("pytorch", "openai", "disaggregated"): DisaggregatedTrtllmServe(),
    ("pytorch", "triton", "leader"): TritonLlmApi(),
    ("tensorrtllm", "openai", "leader"): TrtllmServeEngine(),
    ("tensorrtllm", "triton", "leader"): TritonEngine(),
    ("tensorrtllm", "triton", "orchestrator"): Orchestrator(),
    ("tensorrtllm", "triton", "disaggregated"): TritonDisaggregated(),
    ("python", "triton", "leader"): TritonEngine(),
    ("reference", "triton", "leader"): Reference(),
    ("command", "openai", "leader"): CommandServer(),
}
"""By ``engine.backend``, ``serve.frontend`` and ``serve.mode``."""


def backend_of(job: JobFile) -> Backend:
    """Return how the job's model is served.

    Where nothing serves it in this way (rules refuse that), in the nearest way: in leader mode, and by the
    usual frontend.
    """
    engine, frontend = job.engine.backend, job.frontend
    ways = [(engine, frontend, job.serve.mode), (engine, frontend, "leader")]
    known = next((way for way in ways if way in BACKENDS), None)
    return BACKENDS[known or next(way for way in BACKENDS if way[0] == engine)]


def facts_of(job: JobFile, cluster: ClusterProfile) -> JobFacts:
    """Return what the job file and the profile mean together."""
    return backend_of(job).facts(job, cluster)
