"""The LLM API's configuration: Triton's ``model.yaml``, or command line and file of ``trtllm-serve``.

Its keys are the arguments of ``tensorrt_llm.LLM``. In ``model.yaml`` there is also ``triton_config``, what
upstream's ``model.py`` tells Triton (TensorRT-LLM, ``triton_backend/all_models/llmapi/tensorrt_llm/1``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RenderError
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.plan.checkpoint import loaded_model
from trtllm_hpc.plan.disaggregated import SERVER, transfer_keys
from trtllm_hpc.plan.layout import Layout
from trtllm_hpc.tensorrt_llm.job_facts import JobFacts
from trtllm_hpc.tensorrt_llm.llm_api import engine_backend

LAUNCHER = "trtllm-llmapi-launch"
"""Joins the ranks of the LLM API; in the container from 0.19 on (``tensorrt_llm/llmapi``)."""

_OPTIONS = {
    "tokenizer": "--tokenizer",
    "backend": "--backend",
    "tensor_parallel_size": "--tp_size",
    "pipeline_parallel_size": "--pp_size",
    "moe_expert_parallel_size": "--ep_size",
    "gpus_per_node": "--gpus_per_node",
    "max_batch_size": "--max_batch_size",
    "max_num_tokens": "--max_num_tokens",
    "max_seq_len": "--max_seq_len",
    "max_beam_width": "--max_beam_width",
}
"""Options of ``trtllm-serve`` in every release that has the launcher. What else the job file says goes into
the file: as an option ``--kv_cache_free_gpu_memory_fraction`` would be lost beside a ``kv_cache_config``."""

_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""What YAML 1.1, which upstream reads with, takes for something else than text."""


def model_yaml(job: JobFile, paths: RunPaths) -> str:
    """Return the text of ``model.yaml``.

    Raises:
        RenderError: there is no model to load.
    """
    # Upstream's model takes one request at a time, and batches inside.
    triton = {"max_batch_size": 0, "decoupled": job.repository.decoupled}
    arguments = _merged({**_arguments(job, paths), "triton_config": triton}, job.engine.llm_api)
    return "".join(_lines(arguments))


def serve_command(
    facts: JobFacts, layout: Layout, paths: RunPaths, role: str | None = None
) -> tuple[str, ...]:
    """Return ``trtllm-serve`` with its model and options, except where it listens.

    Args:
        role: the phase that it computes in a disaggregated run, with a file of its own.
    """
    job = facts.job
    arguments = _arguments(job, paths)
    model = arguments["model"]
    if job.engine.has_engine:
        model, backend = job.engine.directory or str(paths.engine), engine_backend(facts.release)
        arguments |= {} if backend is None else {"backend": backend}
    if layout.gpus_per_node:
        arguments["gpus_per_node"] = layout.ranks_per_node
    # Until 1.2 the file goes before the options, and after it the other way round.
    said = arguments.keys() - job.engine.llm_api.keys()
    options = [f"{option}={arguments[key]}" for key, option in _OPTIONS.items() if key in said]
    return (SERVER, model, *options, f"--extra_llm_api_options={paths.llm_api(role)}")


def serve_yaml(facts: JobFacts, paths: RunPaths, role: str | None = None) -> str:
    """Return the text of the file with what ``trtllm-serve`` has no options for."""
    job = facts.job
    arguments = _arguments(job, paths)
    rest = {key: value for key, value in arguments.items() if key not in ("model", *_OPTIONS)}
    if role is not None:
        rest = _given(_merged(rest, transfer_keys(facts, role)))
    return "".join(_lines(_merged(rest, job.engine.llm_api))) or "{}\n"


def _arguments(job: JobFile, paths: RunPaths) -> dict[str, Any]:
    """Return the arguments of the LLM API that the job file's own keys mean."""
    engine, keys = job.engine, job.repository
    if job.model.path is None and not engine.has_engine:
        raise RenderError("The LLM API loads the model itself, and none is named.", hint="set model.path")
    policy = keys.batch_scheduler_policy
    cache = {
        "free_gpu_memory_fraction": job.kv_cache_fraction,
        "max_tokens": keys.max_tokens_in_paged_kv_cache,
        "enable_block_reuse": keys.kv_cache_reuse,
        "host_cache_size": keys.kv_cache_host_memory_bytes,
        "max_attention_window": keys.max_attention_window_size,
        "sink_token_length": keys.sink_token_length,
    }
    arguments = {
        "model": loaded_model(job, paths),
        # An engine has none of its own.
        "tokenizer": keys.tokenizer or (job.model.path if engine.has_engine else None),
        "backend": None if engine.has_engine else "pytorch",
        "dtype": None if engine.dtype == "auto" or engine.has_engine else engine.dtype,
        "tensor_parallel_size": engine.tensor_parallel,
        "pipeline_parallel_size": engine.pipeline_parallel,
        "context_parallel_size": engine.context_parallel if engine.context_parallel > 1 else None,
        "moe_tensor_parallel_size": engine.moe_tensor_parallel,
        "moe_expert_parallel_size": engine.moe_expert_parallel,
        "max_batch_size": engine.max_batch_size,
        "max_input_len": engine.max_input_len,
        "max_seq_len": engine.max_seq_len,
        "max_num_tokens": engine.max_num_tokens,
        "max_beam_width": engine.max_beam_width,
        "enable_chunked_prefill": keys.chunked_context,
        "scheduler_config": {"capacity_scheduler_policy": policy.upper()} if policy is not None else None,
        "kv_cache_config": _given(cache),
    }
    return _given(arguments)


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != {}}


def _merged(values: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """Return both, section by section; where both have a value it is the second one's."""
    merged = dict(values)
    for key, value in further.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            value = _merged(before, value)
        merged[key] = value
    return merged


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield f"{indent}{_key(key)}:\n"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{_key(key)}: {_scalar(value)}\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[a-z]+(_[a-z]+)*", key) and key not in _WORDS else _scalar(key)


def _scalar(value: Any) -> str:
    """A value as JSON, which YAML reads alike, in ASCII.

    Upstream's model opens the file in the locale's encoding, which in a Triton
    stub is ASCII.
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"[^\x20-\x7e]", lambda match: _escaped(ord(match[0])), text)


def _escaped(code: int) -> str:
    # Not by JSON's pairs of surrogates, which YAML reads as two characters.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
