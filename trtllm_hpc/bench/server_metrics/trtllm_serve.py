"""The metrics of ``trtllm-serve``, under the names that Triton's page has for the same figures.

``/metrics`` is a JSON list: the statistics of each step of the engine since somebody last asked
(``IterationStats``, which Triton's backend reports as well). With ``return_perf_metrics: true`` a page for
Prometheus is at ``/prometheus/metrics`` (``tensorrt_llm/metrics/collector.py``); which figures it has depends
on the release.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

ENGINE = "trtllm-serve"
"""Stands for the model's name, which the statistics do not have."""


class TritonFigure(NamedTuple):
    """A figure as Triton's page would have it."""

    name: str
    labels: Mapping[str, str]
    value: float


REQUESTS = ("nv_trt_llm_request_metrics", "request_type")
BATCHER = ("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric")
BLOCKS = ("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type")
MEMORY = ("nv_trt_llm_runtime_memory_metrics", "memory_type")
GENERAL = ("nv_trt_llm_general_metrics", "general_type")
"""Names of Triton's metrics, each with the label that tells its figures apart."""

_FIGURES: tuple[tuple[tuple[str, str], str, str, str | None], ...] = (
    (REQUESTS, "active", "numActiveRequests", "num_requests_running"),
    (REQUESTS, "waiting", "numQueuedRequests", "num_requests_waiting"),
    (REQUESTS, "max", "maxNumActiveRequests", "max_num_active_requests"),
    (REQUESTS, "scheduled", "inflightBatchingStats.numScheduledRequests", "num_scheduled_requests"),
    (REQUESTS, "context", "inflightBatchingStats.numContextRequests", "num_context_requests"),
    (BATCHER, "generation_requests", "inflightBatchingStats.numGenRequests", "num_generation_requests"),
    (BATCHER, "paused_requests", "inflightBatchingStats.numPausedRequests", None),
    (BATCHER, "total_context_tokens", "inflightBatchingStats.numCtxTokens", None),
    (BLOCKS, "max", "kvCacheStats.maxNumBlocks", "kv_cache_max_blocks"),
    (BLOCKS, "free", "kvCacheStats.freeNumBlocks", "kv_cache_free_blocks"),
    (BLOCKS, "used", "kvCacheStats.usedNumBlocks", "kv_cache_used_blocks"),
    (BLOCKS, "tokens_per", "kvCacheStats.tokensPerBlock", None),
    (BLOCKS, "reused", "kvCacheStats.reusedBlocks", "kv_cache_reused_blocks"),
    (BLOCKS, "missed", "kvCacheStats.missedBlocks", "kv_cache_missed_blocks"),
    (MEMORY, "gpu", "gpuMemUsage", "gpu_memory_usage_bytes"),
    (MEMORY, "cpu", "cpuMemUsage", None),
    (MEMORY, "pinned", "pinnedMemUsage", None),
    (GENERAL, "iteration_counter", "iter", None),
)
"""Triton's metric and label, the keys in the statistics, and the gauge on the page of newer releases, after
``trtllm_``. A gauge counts where there are no statistics, which another reader may have taken away."""
_GAUGES = {f"trtllm_{gauge}": (group, value) for group, value, _, gauge in _FIGURES if gauge is not None}
_REQUEST_TOTALS = {
    "trtllm_generation_tokens": ("nv_llm_output_token_len_sum", 1.0),
    "trtllm_prompt_tokens": ("nv_llm_input_token_len_sum", 1.0),
    "trtllm_request_success": ("nv_inference_request_success", 1.0),
    "trtllm_request_queue_time_seconds_sum": ("nv_inference_queue_duration_us", 1e6),
    "trtllm_e2e_request_latency_seconds_sum": ("nv_inference_request_duration_us", 1e6),
}
"""What is counted for each finished request: its name with Triton, and the factor between the units."""


def from_statistics(text: str) -> list[TritonFigure]:
    """Return the figures of the last step in the statistics; none if there was no step.

    Raises ValueError if it is not such a list.
    """
    steps = json.loads(text)
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ValueError("no list of statistics")
    return list(_of_step(steps[-1])) if steps else []


def _of_step(step: dict[str, Any]) -> Iterator[TritonFigure]:
    for group, value, keys, _ in _FIGURES:
        found: Any = step
        for key in keys.split("."):
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, (int, float)):
            yield _engine(group, value, float(found))


def from_page(
    name: str, labels: Mapping[str, str], value: float, *, without_statistics: bool
) -> TritonFigure | None:
    """Return one figure of the page for Prometheus; ``None`` if Triton has no such figure.

    ``name`` is without the ending ``_total``. Only ``without_statistics`` do the page's gauges count.
    """
    if name in _GAUGES and without_statistics:
        return _engine(*_GAUGES[name], value)
    if name not in _REQUEST_TOTALS:
        return None
    known, factor = _REQUEST_TOTALS[name]
    is_models = known.startswith("nv_inference_")
    model = labels.get("model_name", ENGINE) if is_models else ENGINE
    return TritonFigure(known, {"model": model}, value * factor)


def _engine(group: tuple[str, str], value: str, figure: float) -> TritonFigure:
    name, label = group
    return TritonFigure(name, {"model": ENGINE, label: value}, figure)
