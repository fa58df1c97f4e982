"""The figures that a server tells of itself over time.

Names and labels are Triton's (docs/user_guide/metrics.md of the server) and those of
``custom_metrics_reporter.cc`` in NVIDIA's tensorrtllm_backend v0.16.0; ``waiting`` came
with v0.18. Which of them a page has differs by release, backend and machine: a series
whose names are not there is absent, never zero. Upstream's Python backend, for one, tells
nothing of its engine (tensorrtllm_backend issue 479).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from trtllm_hpc.bench.server_metrics.page import Page, Series, Source

_REQUESTS = "nv_trt_llm_request_metrics", "request_type"
_MEMORY = "nv_trt_llm_runtime_memory_metrics", "memory_type"
_BLOCKS = "nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type"
_BATCHER = "nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric"
_STATIC = "nv_trt_llm_v1_metrics", "v1_specific_metric"
_GENERAL = "nv_trt_llm_general_metrics", "general_type"
_TRANSFERS = "nv_trt_llm_disaggregated_serving_metrics", "disaggregated_serving_type"
_ENGINE = ("nv_trt_llm_", "nv_llm_")
_SUCCESS = Source("nv_inference_request_success")

_KEY = re.compile(r"(\w+)\[(.+)\]")


def _engine(key: str, label: str, unit: str, group: tuple[str, str], value: str) -> Series:
    return Series(key, label, unit, "engine", (Source(*group, value),))


def _host(key: str, label: str, unit: str, name: str) -> Series:
    return Series(key, label, unit, "host", (Source(name),))


def _rate(key: str, label: str, unit: str, of: Literal["engine", "model"], source: Source) -> Series:
    return Series(key, label, unit, of, (source,), kind="rate")


def _mean(key: str, label: str, *names: str) -> Series:
    over = tuple(Source(f"nv_inference_{name}_duration_us") for name in names)
    return Series(key, label, "ms", "model", over, (_SUCCESS,), "mean", 1e-3)


def _ratio(key: str, label: str, group: tuple[str, str], over: str, under: str) -> Series:
    return Series(key, label, "share", "engine", (Source(*group, over),), (Source(*group, under),))


SERIES: tuple[Series, ...] = (
    _engine("requests_active", "requests in the engine", "requests", _REQUESTS, "active"),
    _engine("requests_scheduled", "requests in the last step", "requests", _REQUESTS, "scheduled"),
    _engine("requests_context", "of these, still reading their prompt", "requests", _REQUESTS, "context"),
    _engine("requests_waiting", "requests waiting for the engine", "requests", _REQUESTS, "waiting"),
    _engine("requests_max", "requests that the engine takes at once", "requests", _REQUESTS, "max"),
    _engine("requests_paused", "requests put aside for others", "requests", _BATCHER, "paused_requests"),
    _engine("generation_requests", "requests making tokens", "requests", _BATCHER, "generation_requests"),
    _engine("context_tokens", "prompt tokens in the last step", "tokens", _BATCHER, "total_context_tokens"),
    _engine("static_tokens", "tokens made in the static batch", "tokens", _STATIC, "total_generation_tokens"),
    _engine("static_context_tokens", "prompt tokens in it", "tokens", _STATIC, "total_context_tokens"),
    _engine("static_empty_slots", "empty slots in it", "requests", _STATIC, "empty_generation_slots"),
    _ratio("kv_used_share", "KV cache in use", _BLOCKS, "used", "max"),
    _engine("kv_blocks_used", "KV blocks in use", "blocks", _BLOCKS, "used"),
    _engine("kv_blocks_free", "KV blocks free", "blocks", _BLOCKS, "free"),
    _engine("kv_blocks_max", "KV blocks in all", "blocks", _BLOCKS, "max"),
    _engine("kv_blocks_reused", "KV blocks that served a request again", "blocks", _BLOCKS, "reused"),
    _engine("kv_tokens_per_block", "tokens in a KV block", "tokens", _BLOCKS, "tokens_per"),
    _engine("memory_gpu_bytes", "GPU memory of the engine", "bytes", _MEMORY, "gpu"),
    _engine("memory_cpu_bytes", "host memory of the engine", "bytes", _MEMORY, "cpu"),
    _engine("memory_pinned_bytes", "pinned memory of the engine", "bytes", _MEMORY, "pinned"),
    _rate("iterations_per_s", "steps of the engine", "1/s", "engine", Source(*_GENERAL, "iteration_counter")),
    _rate(
        "output_tokens_per_s",
        "tokens of finished answers",
        "tokens/s",
        "engine",
        Source("nv_llm_output_token_len_sum"),
    ),
    _rate(
        "input_tokens_per_s",
        "tokens of their prompts",
        "tokens/s",
        "engine",
        Source("nv_llm_input_token_len_sum"),
    ),
    Series(
        "kv_transfer_ms",
        "KV cache from server to server",
        "ms",
        "engine",
        (Source(*_TRANSFERS, "kv_cache_transfer_ms"),),
        (Source(*_TRANSFERS, "request_count"),),
        "mean",
    ),
    _rate("finished_per_s", "requests finished", "1/s", "model", _SUCCESS),
    _rate("failed_per_s", "requests failed", "1/s", "model", Source("nv_inference_request_failure")),
    Series(
        "pending",
        "requests before the model",
        "requests",
        "model",
        (Source("nv_inference_pending_request_count"),),
    ),
    _mean("queue_ms", "wait for the model", "queue"),
    _mean("compute_ms", "computation", "compute_input", "compute_infer", "compute_output"),
    _mean("duration_ms", "from arrival to answer", "request"),
    _host("cpu_share", "CPU of the host", "share", "nv_cpu_utilization"),
    _host("host_memory_used_bytes", "memory of the host in use", "bytes", "nv_cpu_memory_used_bytes"),
    _host("gpus_busy", "GPUs at work, in sum", "GPUs", "nv_gpu_utilization"),
    _host("gpu_memory_used_bytes", "memory of all GPUs in use", "bytes", "nv_gpu_memory_used_bytes"),
    _host("gpu_power_w", "power of all GPUs", "W", "nv_gpu_power_usage"),
)
"""Every series, in the order of tables."""


def _owned(page: Page) -> Iterator[tuple[Series, str | None, str]]:
    """Each series that the page may have, with the model whose it is, and what its key ends in.

    An engine's series carries the model's name (``kv_used_share[context]``) only where
    several models tell of one, as in disaggregated serving; a model's always does.
    """
    engines = sorted(page.models(*_ENGINE))
    owners: dict[str, list[str] | list[None]]
    owners = {"engine": engines, "model": sorted(page.models("nv_inference_")), "host": [None]}
    for series in SERIES:
        named = series.of == "model" or (series.of == "engine" and len(engines) > 1)
        for model in owners[series.of]:
            yield series, model, f"[{model}]" if named else ""


def values(page: Page, before: Page | None, gap_s: float) -> dict[str, float]:
    """Every figure that ``page`` has, by key; rates and means since ``before``, ``gap_s`` seconds earlier."""
    found = {
        series.key + end: series.value(page, before, gap_s, model) for series, model, end in _owned(page)
    }
    return {key: value for key, value in found.items() if value is not None}


def since_start(page: Page) -> dict[str, float]:
    """Every figure of one page alone, by key: counts for rates, and means since the server's start."""
    found = {series.counted.key + end: series.since_start(page, model) for series, model, end in _owned(page)}
    return {key: value for key, value in found.items() if value is not None}


def describe(key: str) -> Series:
    """What the series, or the count, of that key is; of an unknown one, only its name."""
    match = _KEY.fullmatch(key)
    base, model = (match[1], match[2]) if match else (key, None)
    for series in SERIES:
        for found in (series, series.counted):
            if found.key == base:
                return replace(found, model=model)
    return Series(key, key, "", "host", ())
