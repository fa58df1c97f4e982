"""Rules for TensorRT-LLM's backends: for all of them, and for those with the LLM API.

They refuse keys that would have no effect, or that the release does not take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.diagnostics import Diagnostics, in_cluster, in_job
from trtllm_hpc.config.job import PHASE_KEYS, JobFile
from trtllm_hpc.config.rules import Excludes
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import SERVER, unknown_keys, wrong_values
from trtllm_hpc.tensorrt_llm.releases.release import UnknownRelease

LEAST_CAPABILITY: Mapping[str, tuple[int, int]] = {
    "fp8": (8, 9),
    "fp8_rowwise": (8, 9),
    "w4a8_awq": (8, 9),
    "nvfp4": (10, 0),
    "bfloat16": (8, 0),
}
"""Lowest compute capability that computes each type (TensorRT-LLM, docs/source/reference/precision.md)."""

_LAST_WITH_ENGINES = "1.2.1"
"""The last release with the TensorRT backend and Triton's C++ backend (TensorRT-LLM #15907 and #15918 removed
them in June and July 2026)."""
_GO_ON = "trtllm-hpc init job pytorch.yaml --backend pytorch writes a job without an engine, for any release"


def release_is_known(facts: JobFacts) -> Diagnostics:
    """The release of TensorRT-LLM must be known from the image's name or a key."""
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
    """The release's container must have the job's backend."""
    job, release = facts.job, facts.release
    if release is None or job.engine.backend in release.backends:
        return
    message = f"the container of TensorRT-LLM {release.version} has no backend {job.engine.backend}"
    hint = f"choose one of {', '.join(release.backends)}, or another release"
    yield in_job("release", "engine.backend", message, hint, job.engine.backend)


def model_is_named(facts: JobFacts) -> Diagnostics:
    """A model must be named: only the reference backend makes synthetic models."""
    job = facts.job
    if job.model.path is None and job.model.hub is None:
        message = f"the backend {job.engine.backend} needs a model's folder"
        hint = "set model.path or model.hub; synthetic models are for engine.backend: reference"
        yield in_job("missing", "model.path", message, hint, job.model.path)


def experts_divide(facts: JobFacts) -> Diagnostics:
    """moe_tensor_parallel times moe_expert_parallel must be tensor_parallel."""
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
    """The profile's GPUs must be able to compute the job's types."""
    job, cluster, release = facts.job, facts.cluster, facts.release
    if release is None or cluster.compute_capability is None:
        return
    capability = tuple(map(int, cluster.compute_capability.split(".")))
    kinds = {
        "engine.quantization.method": job.engine.quantization.method,
        "engine.quantization.kv_cache": job.engine.quantization.kv_cache,
        "engine.dtype": job.engine.dtype,
    }
    for key, kind in kinds.items():
        least = LEAST_CAPABILITY.get(kind or "", (0, 0))
        if capability < least:
            message = f"{kind} needs GPUs of compute capability {least[0]}.{least[1]}, these have"
            message += f" {cluster.compute_capability}"
            yield in_job("release", key, message, "choose another type, or another partition", kind)


_REFERENCE = "TorchLlmArgs of nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_OWN_KEYS = {
    "model": "model.path",
    "tokenizer": "model.tokenizer",
    "backend": "engine.backend",
    "tensor_parallel_size": "engine.tensor_parallel",
    "pipeline_parallel_size": "engine.pipeline_parallel",
    "context_parallel_size": "engine.context_parallel",
}
"""Arguments on which the plan depends (ranks, GPUs, mounts), and the job file's keys for them."""

KV_CACHE_KEYS = (
    *("free_gpu_memory_fraction", "max_tokens", "enable_block_reuse", "host_cache_size"),
    *("max_attention_window", "sink_token_length"),
)
SAME_KEYS = (
    *("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens", "max_beam_width"),
    "enable_chunked_prefill",
)
"""Arguments of ``LLM()`` that are keys of ``engine`` with the same name; KV_CACHE_KEYS are keys of
``kv_cache``."""
KEYS = {
    "engine": (
        *("backend", "tensorrt_llm_version", "dtype", "llm_api", "capacity_scheduler_policy"),
        *("tensor_parallel", "pipeline_parallel", "context_parallel", "moe_tensor_parallel"),
        *("moe_expert_parallel", *SAME_KEYS),
    ),
    "repository": (),
    "kv_cache": KV_CACHE_KEYS,
}
"""Arguments of ``LLM()`` with a key in the job file; others go into ``engine.llm_api``."""
UNUSED_HINT = "remove it; further arguments of LLM() go into engine.llm_api"


def llm_api_leaves_the_plan(facts: JobFacts) -> Diagnostics:
    """``llm_api`` must not set arguments on which the plan depends: they have keys of their own."""
    for section, configuration in _configurations(facts.job):
        for key, own in _OWN_KEYS.items():
            if key in configuration:
                name = own.removeprefix("engine.")
                planned = f"{section}.{name}" if name in PHASE_KEYS else own
                message = f"is set by {planned}, by which ranks, GPUs and mounts are planned"
                hint = f"set {planned} instead"
                yield in_job("conflict", f"{section}.llm_api.{key}", message, hint, configuration[key])


def llm_api_has_the_keys(facts: JobFacts) -> Diagnostics:
    """The release must take each key of ``llm_api``, if the release's keys are known."""
    release = facts.release
    if release is None or facts.assumed_release is not None:
        return
    for section, configuration in _configurations(facts.job):
        for key in unknown_keys(release, configuration):
            meant = f"write {key.suggestion}" if key.suggestion else None
            hint = meant or f"remove it, or look for it in {_REFERENCE}"
            message = f"TensorRT-LLM {release.version}: it {key.message}"
            yield in_job("unknown-key", f"{section}.llm_api.{key.path}", message, hint)


def values_are_taken(facts: JobFacts) -> Diagnostics:
    """``trtllm-serve`` must take each value of ``llm_api``, if the release's values are known."""
    release = facts.release
    if release is None or facts.assumed_release is not None:
        return
    for section, configuration in _configurations(facts.job):
        for path, wrong, hint in wrong_values(release, configuration):
            message = f"TensorRT-LLM {release.version}: {wrong}"
            yield in_job("release", f"{section}.llm_api.{path}", message, hint)


def server_is_there(facts: JobFacts) -> Diagnostics:
    """The release must have ``trtllm-serve`` for several ranks."""
    release = facts.release
    if release is not None and "pytorch" not in release.backends:
        message = f"TensorRT-LLM {release.version} has no {SERVER} for several ranks: it came with 0.19.0"
        yield in_job("release", "serve.frontend", message, "take 0.19.0 or later, or frontend: triton")


def _configurations(job: JobFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each section with a configuration of the LLM API, and the configuration."""
    yield "engine", job.engine.llm_api
    phases = job.serve.disaggregated
    for name, phase in () if phases is None else phases.roles:
        yield f"serve.disaggregated.{name}", phase.llm_api


def longest_prompt(job: JobFile) -> int | None:
    """Return the most tokens of a prompt that a context server takes; ``None``: the model's own limit."""
    phases = job.serve.disaggregated
    context = job if phases is None else job.with_phase(phases.context)
    keys = ("max_seq_len", "max_num_tokens", "enable_chunked_prefill")
    longest, step, is_chunked = (
        context.engine.llm_api.get(key, getattr(context.engine, key)) for key in keys
    )
    # A prompt longer than max_num_tokens (8,192 by upstream's default) is refused, or computed in chunks.
    limits = [longest] if is_chunked else [longest, step if isinstance(step, int) else 8192]
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def block_tokens(job: JobFile) -> int:
    """Return the size of a block of the KV cache in tokens; upstream's default is 32."""
    cache = job.engine.llm_api.get("kv_cache_config")
    block = cache.get("tokens_per_block") if isinstance(cache, dict) else None
    return block if isinstance(block, int) and block > 0 else 32


RULES = (
    *(release_is_known, backend_is_there, model_is_named, experts_divide, gpu_computes_type),
    Excludes("serve.instances!=1", "cluster.scheduler=local",
             "{cluster.name!r} has no Slurm, without which the LLM API has no instances",
             "set it to 1, or choose a profile for Slurm"),
    *(llm_api_leaves_the_plan, llm_api_has_the_keys),
)  # fmt: skip
