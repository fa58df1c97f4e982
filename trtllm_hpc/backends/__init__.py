"""The ways of serving a model, one backend object for each; the rest of the package asks these objects."""

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
"""Backend for each combination of ``engine.backend``, ``serve.frontend`` and ``serve.mode``."""


def backend_of(job: JobFile) -> Backend:
    """Return the backend that serves the job's model.

    For a combination without a backend, which rules refuse, return the nearest one: in leader mode, or with
    the usual frontend.
    """
    engine, frontend = job.engine.backend, job.frontend
    combinations = [(engine, frontend, job.serve.mode), (engine, frontend, "leader")]
    known = next((key for key in combinations if key in BACKENDS), None)
    return BACKENDS[known or next(key for key in BACKENDS if key[0] == engine)]


def facts_of(job: JobFile, cluster: ClusterProfile) -> JobFacts:
    """Return the facts that follow from the job file and the profile together."""
    return backend_of(job).facts(job, cluster)
