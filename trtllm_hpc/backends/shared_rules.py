"""Rules of all backends of TensorRT-LLM, with an engine or without."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease

LEAST_CAPABILITY: Mapping[str, tuple[int, int]] = {
    "fp8": (8, 9),
    "fp8_rowwise": (8, 9),
    "w4a8_awq": (8, 9),
    "nvfp4": (10, 0),
    "bfloat16": (8, 0),
}
"""Lowest compute capability for each type (TensorRT-LLM, docs/source/reference/precision.md)."""

_LAST_WITH_ENGINES = "1.2.1"
"""The last release with the TensorRT backend and Triton's C++ backend, which TensorRT-LLM #15907 and #15918
removed in June and July 2026."""
_GO_ON = "trtllm-hpc init job pytorch.yaml --backend pytorch writes a job without an engine, for any release"


def release_is_known(facts: JobFacts) -> Diagnostics:
    """The release of TensorRT-LLM is known from the image's name or a key."""
    error, cluster = facts.unknown_release, facts.cluster
    if error is None:
        return
    if error.is_newer and facts.release_use == "exact":
        message = f"{error.message}, and engines ended with TensorRT-LLM {_LAST_WITH_ENGINES}"
        error = UnknownRelease(message, hint=_GO_ON, choices=error.choices)
    stated, in_profile = facts.job.engine.tensorrt_llm_version, cluster.container.tensorrt_llm_version
    if stated is None and in_profile is not None:
        field = "container.tensorrt_llm_version"
        yield in_cluster("release", field, error.message, error.hint, in_profile)
    else:
        yield in_job("release", "engine.tensorrt_llm_version", error.message, error.hint, stated)


def backend_is_there(facts: JobFacts) -> Diagnostics:
    """The release's container has the backend that the job names."""
    job, release = facts.job, facts.release
    if release is None or job.engine.backend in release.backends:
        return
    message = f"the container of TensorRT-LLM {release.version} has no backend {job.engine.backend}"
    hint = f"choose one of {', '.join(release.backends)}, or another release"
    yield in_job("release", "engine.backend", message, hint, job.engine.backend)


def model_is_named(facts: JobFacts) -> Diagnostics:
    """Synthetic models are made by the reference backend only."""
    job = facts.job
    if job.model.path is None and job.model.hub is None:
        message = f"the backend {job.engine.backend} needs a model's folder"
        hint = "set model.path or model.hub; synthetic models are for engine.backend: reference"
        yield in_job("missing", "model.path", message, hint, job.model.path)


def experts_divide(facts: JobFacts) -> Diagnostics:
    """moe_tensor_parallel times moe_expert_parallel is tensor_parallel."""
    engine = facts.job.engine
    split, spread = engine.moe_tensor_parallel, engine.moe_expert_parallel
    if split is None and spread is None:
        return
    product = (split or 1) * (spread or 1)
    is_whole = split is None or spread is None
    if engine.tensor_parallel % product or not (is_whole or product == engine.tensor_parallel):
        key = "moe_tensor_parallel" if split is not None else "moe_expert_parallel"
        message = f"moe_tensor_parallel * moe_expert_parallel is not tensor_parallel {engine.tensor_parallel}"
        hint = "set both so that their product is engine.tensor_parallel, or one of them to a divisor"
        yield in_job("conflict", f"engine.{key}", message, hint, product)


def gpu_computes_type(facts: JobFacts) -> Diagnostics:
    """The profile's GPUs support the types that the job names."""
    job, cluster, release = facts.job, facts.cluster, facts.release
    if release is None or cluster.compute_capability is None:
        return
    there = tuple(map(int, cluster.compute_capability.split(".")))
    kinds = {
        "engine.quantization.method": job.engine.quantization.method,
        "engine.quantization.kv_cache": job.engine.quantization.kv_cache,
        "engine.dtype": job.engine.dtype,
    }
    for key, kind in kinds.items():
        least = LEAST_CAPABILITY.get(kind or "", (0, 0))
        if there < least:
            message = f"{kind} needs GPUs of compute capability {least[0]}.{least[1]}, these have"
            message += f" {cluster.compute_capability}"
            yield in_job("release", key, message, "choose another type, or another partition", kind)
