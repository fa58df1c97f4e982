"""``model.yaml``: the LLM API's arguments, in place of an engine.

Its keys are the arguments of ``tensorrt_llm.LLM`` and, in ``triton_config``,
what upstream's ``model.py`` tells Triton (TensorRT-LLM,
``triton_backend/all_models/llmapi/tensorrt_llm/1``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from trtllm_hpc.config.job import JobFile
from trtllm_hpc.errors import RenderError

_WORDS = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
"""What YAML 1.1, which upstream reads with, takes for something else than text."""


def model_yaml(job: JobFile) -> str:
    """The text of ``model.yaml``.

    Raises:
        RenderError: there is no model to load.
    """
    if job.model.path is None:
        raise RenderError("The LLM API loads the model itself, and none is named.", hint="set model.path")
    # Upstream's model takes one request at a time, and batches inside.
    triton = {"max_batch_size": 0, "decoupled": job.repository.decoupled}
    arguments = {**_arguments(job), "triton_config": triton}
    for model in job.repository.parameters.values():
        for key, value in model.items():
            _set(arguments, key.split("."), value)
    return "".join(_lines(arguments))


def _arguments(job: JobFile) -> dict[str, Any]:
    engine, keys = job.engine, job.repository
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
        "model": job.model.path,
        "tokenizer": keys.tokenizer,
        "backend": "pytorch",
        "dtype": None if engine.dtype == "auto" else engine.dtype,
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


def _set(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a key with dots between levels; ``None`` takes it out."""
    for part in path[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):
            raise RenderError(f"repository.parameters: {part!r} of {'.'.join(path)!r} holds a value already.")
        values = inner
    if value is None:
        values.pop(path[-1], None)
    else:
        values[path[-1]] = value


def _lines(values: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
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
