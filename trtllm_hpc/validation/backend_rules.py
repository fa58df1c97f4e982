"""Rules of the engine's keys by backend: a key that would have no effect is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.diagnostics import Diagnostics, in_job
from trtllm_hpc.config.engine import DEFAULTS, Engine
from trtllm_hpc.config.job import PHASE_KEYS, JobFile
from trtllm_hpc.config.types import Section
from trtllm_hpc.plan import checkpoint
from trtllm_hpc.plan.disaggregated import block_tokens, is_chunked, num_tokens, phases_of
from trtllm_hpc.runtime.quantize import CACHE_FORMATS, FORMATS
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import unknown_keys, wrong_values

EVERYWHERE = ("backend", "directory", "tensor_parallel", "dtype", "max_batch_size", "max_num_tokens")
REFERENCE = (
    *(*EVERYWHERE, "pipeline_parallel", "context_parallel", "max_input_len", "max_seq_len", "max_beam_width"),
    *("tokens_per_block", "gather_context_logits", "gather_generation_logits", "max_lora_rank"),
)
"""Keys of the reference backend; a rule of its own accepts two of them at 1 only."""
LLM_API = (
    *(*EVERYWHERE, "tensorrt_llm_version", "pipeline_parallel", "context_parallel", "moe_tensor_parallel"),
    *("moe_expert_parallel", "max_input_len", "max_seq_len", "max_beam_width", "llm_api", "quantization"),
)
"""Arguments of ``LLM()`` with a key in the job file; others go into ``engine.llm_api``."""
_REFERENCE = "TorchLlmArgs of nvidia.github.io/TensorRT-LLM/llm-api/reference.html"
_OWN_KEYS = {
    "model": "model.path",
    "tokenizer": "repository.tokenizer",
    "backend": "engine.backend",
    "tensor_parallel_size": "engine.tensor_parallel",
    "pipeline_parallel_size": "engine.pipeline_parallel",
    "context_parallel_size": "engine.context_parallel",
}
"""Arguments that the plan decides by: the job's ranks and mounts follow from their keys."""


def reference_keys(facts: JobFacts) -> Diagnostics:
    """Keys for TensorRT-LLM's build have no effect on the reference backend."""
    job = facts.job
    if job.engine.backend == "reference":
        yield from _unknown(job.engine, REFERENCE, "the reference backend has no such thing")


def llm_api_keys(facts: JobFacts) -> Diagnostics:
    """Keys for the build of an engine have no effect on the LLM API."""
    job = facts.job
    if job.engine.has_engine:
        if job.engine.llm_api and job.frontend == "triton" and job.engine.is_tensorrt_llm:
            message = f"is set, but the backend {job.engine.backend} has no LLM API"
            hint = "remove it, or take engine.backend: pytorch"
            yield in_job("conflict", "engine.llm_api", message, hint)
        return
    yield from _unknown(job.engine, LLM_API, "the LLM API builds no engine that this could change")
    if job.engine.directory is not None:
        message = "the LLM API loads the model itself, not an engine"
        hint = "remove it and set model.path, or take engine.backend: tensorrtllm"
        yield in_job("conflict", "engine.directory", message, hint, job.engine.directory)


def checkpoint_can_be_quantized(facts: JobFacts) -> Diagnostics:
    """The build stage of the LLM API quantizes a checkpoint to what the PyTorch backend computes with."""
    job, field = facts.job, "engine.quantization"
    wanted = job.engine.quantization
    if job.engine.has_engine:
        return
    for key, value in _leaves(field, wanted):
        name = key.removeprefix(f"{field}.")
        if name != field and name not in checkpoint.KEYS:
            message = "is set, but Model Optimizer, which quantizes for the LLM API, has no such choice here"
            yield in_job("conflict", key, message, "remove it, or take engine.backend: tensorrtllm", value)
        elif wanted.method is None and name in checkpoint.KEYS:
            hint = f"set {field}.method, e.g. to fp8"
            if name == "kv_cache":
                hint += ", or only engine.llm_api.kv_cache_config.dtype: fp8"
            yield in_job("missing", f"{field}.method", f"{name} is set, and no method", hint)
    if wanted.method is not None and wanted.method not in FORMATS:
        message = f"the PyTorch backend does not compute with {wanted.method}"
        hint = f"take one of {', '.join(FORMATS)}, or engine.backend: tensorrtllm"
        yield in_job("conflict", f"{field}.method", message, hint, wanted.method)
    if wanted.kv_cache is not None and wanted.kv_cache not in CACHE_FORMATS:
        message = f"the PyTorch backend has no KV cache in {wanted.kv_cache}"
        yield in_job("conflict", f"{field}.kv_cache", message, "take fp8", wanted.kv_cache)


def llm_api_leaves_the_plan(facts: JobFacts) -> Diagnostics:
    """What the plan decides is said by the job file's own keys, not by ``llm_api``."""
    for section, configuration in _configurations(facts.job):
        for key, own in _OWN_KEYS.items():
            if key in configuration:
                name = own.removeprefix("engine.")
                there = f"{section}.{name}" if name in PHASE_KEYS else own
                message = f"is what {there} says, by which ranks, GPUs and mounts are planned"
                hint = f"set {there} instead"
                yield in_job("conflict", f"{section}.llm_api.{key}", message, hint, configuration[key])


def llm_api_has_the_keys(facts: JobFacts) -> Diagnostics:
    """The release takes each key of ``llm_api``, and its server each value, where these are known."""
    job, release = facts.job, facts.release
    if job.engine.has_engine or release is None or facts.assumed_release is not None:
        return
    for section, configuration in _configurations(job):
        for key in unknown_keys(release, configuration):
            hint = (
                f"write {key.suggestion}" if key.suggestion else f"remove it, or look for it in {_REFERENCE}"
            )
            message = f"TensorRT-LLM {release.version}: it {key.message}"
            yield in_job("unknown-key", f"{section}.llm_api.{key.path}", message, hint)
        for path, wrong, hint in wrong_values(release, configuration) if job.frontend == "openai" else ():
            message = f"TensorRT-LLM {release.version}: {wrong}"
            yield in_job("release", f"{section}.llm_api.{path}", message, hint)


def chunks_fill_blocks(facts: JobFacts) -> Diagnostics:
    """With chunked prefill, ``max_num_tokens`` of the LLM API is a multiple of the KV cache's blocks."""
    job = facts.job
    phases = job.serve.disaggregated if job.frontend == "openai" else None
    both = () if phases is None else phases_of(phases)
    served = {f"serve.disaggregated.{name}": job.with_phase(phase) for name, phase in both}
    for section, of_phase in (served or {"engine": job}).items():
        tokens, block = num_tokens(of_phase.engine), block_tokens(of_phase)
        if is_chunked(of_phase) and not job.engine.has_engine and tokens % block:
            message = f"{tokens} is not a multiple of {block}, the tokens of a block of the KV cache, which"
            message += " chunked prefill computes whole"
            hint = f"set it to {tokens // block * block or block}, or to another multiple of {block}"
            yield in_job("conflict", f"{section}.max_num_tokens", message, hint, tokens)


def _configurations(job: JobFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each section that has a configuration of the LLM API, with that."""
    yield "engine", job.engine.llm_api
    phases = job.serve.disaggregated
    for name, phase in () if phases is None else phases_of(phases):
        yield f"serve.disaggregated.{name}", phase.llm_api


def _unknown(engine: Engine, known: tuple[str, ...], why: str) -> Diagnostics:
    defaults = DEFAULTS[engine.backend]
    for name, field in Engine.model_fields.items():
        value = getattr(engine, name)
        if name in known or value == defaults.get(name, field.get_default(call_default_factory=True)):
            continue
        for key, found in _leaves(f"engine.{name}", value):
            hint = "remove it, or take engine.backend: tensorrtllm"
            yield in_job("conflict", key, f"is set, but {why}", hint, found)


def _leaves(key: str, value: Any) -> list[tuple[str, Any]]:
    """Return the keys that are set in a section; the key itself if it is not a section."""
    if not isinstance(value, Section):
        return [(key, value)]
    return [
        (f"{key}.{name}", getattr(value, name))
        for name in value.model_fields_set
        if getattr(value, name) != type(value).model_fields[name].get_default(call_default_factory=True)
    ] or [(key, value)]
