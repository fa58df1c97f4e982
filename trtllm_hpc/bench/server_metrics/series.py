"""Figures of a server's metrics page, and how they change from one page to the next.

:data:`SERIES` has one row for each figure, with the names by which Triton with TensorRT-LLM's backend,
``trtllm-serve``, vLLM and SGLang report it. A figure whose names a page lacks is absent, never zero.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

_KEY = re.compile(r"(\w+)\[(.+)\]")
_STEP = "step:"
"""Before the key of a figure in the JSON statistics of ``trtllm-serve``."""
Labels = Mapping[str, str]


class Page:
    """The metrics of a server: pages in Prometheus' text format, one for each instance, added up.

    A page of ``trtllm-serve`` may begin with a line of JSON: the statistics of each step of its engine, the
    last of which counts. Raises ValueError if a page has neither form.
    """

    def __init__(self, *texts: str) -> None:
        self._samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
        for text in texts:
            for name, labels, value in _figures(text):
                self._samples[name].append((labels, value))

    def models(self, series: Series) -> list[str | None]:
        """Return the models that have a series; ``None`` stands for the only engine."""
        names = {name for source in series.sources for name, _ in (*source.over, *source.under)}
        found = {_model(labels, series.of) for name in names for labels, _ in self._samples.get(name, ())}
        return sorted(found, key=str)

    def total(self, terms: tuple[Term, ...], of: str, model: str | None) -> float | None:
        """Return the sum over all terms; ``None`` if one of them is missing."""
        parts = [
            [
                value
                for labels, value in self._samples.get(name, ())
                if _model(labels, of) == model and (not label or label in _kinds(labels))
            ]
            for name, label in terms
        ]
        return sum(map(sum, parts)) if all(parts) else None

    def mean(self, terms: tuple[Term, ...], of: str, model: str | None) -> float | None:
        """Return the mean over the engines that report a share."""
        values = [
            value for labels, value in self._samples.get(terms[0][0], ()) if _model(labels, of) == model
        ]
        return sum(values) / len(values) if values else None


def _figures(text: str) -> Iterator[tuple[str, Labels, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    if text.startswith("["):
        line, _, text = text.partition("\n")
        steps = json.loads(line)
        if not all(isinstance(step, dict) for step in steps):
            raise ValueError("not a list of statistics")
        for name, value in _leaves(steps[-1], _STEP) if steps else ():
            yield name, {}, value
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                # The library names counters as OpenMetrics does; Triton's have no such suffix.
                yield sample.name.removesuffix("_total"), sample.labels, float(sample.value)


def _leaves(plain: dict[str, Any], name: str) -> Iterator[tuple[str, float]]:
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}{key}.")
        elif isinstance(value, (int, float)):
            yield f"{name}{key}", float(value)


def _model(labels: Labels, of: str) -> str | None:
    # Only Triton has several engines, each with the name of its model.
    return labels.get("model") or (labels.get("model_name") if of == "model" else None)


def _kinds(labels: Labels) -> list[str]:
    """Return the values of all labels but the model's, which may be called like a kind of request."""
    return [value for name, value in labels.items() if not name.startswith("model")]


Term = tuple[str, str]
"""The name of a metric, and the value of one of its labels; empty: any."""


@dataclass(frozen=True)
class Source:
    """How one kind of server reports a figure: a metric, or a sum of metrics over another."""

    over: tuple[Term, ...]
    under: tuple[Term, ...] = ()
    scale: float = 1.0
    is_share: bool = False
    """Whether it is a share already, of which several engines have the mean."""


@dataclass(frozen=True)
class Series:
    """A figure of the server.

    ``gauge``: as it is now. ``rate``: growth per second between two pages. ``mean``: growth of the numerator
    divided by that of the denominator.
    """

    key: str
    label: str
    unit: str
    """``requests``, ``tokens/s``, ``1/s``, ``ms``, ``bytes``, or ``share`` (0 to 1)."""
    of: Literal["engine", "model"]
    """Whether each engine has it, or each served model."""
    kind: Literal["gauge", "rate", "mean"]
    sources: tuple[Source, ...]
    """The first that the page has counts."""
    model: str | None = None
    """The model of its key, see :func:`describe`."""

    def value(
        self, page: Page, model: str | None, before: Page | None = None, gap_s: float = 0.0
    ) -> float | None:
        """Return its value at ``page``, ``gap_s`` seconds after ``before``; ``None`` if it has none.

        Without a page before, the value is since the server's start: a rate's count, a mean over everything.
        """
        for source in self.sources:
            if source.is_share:
                over: float | None = page.mean(source.over, self.of, model)
                under: float | None = 1.0
            else:
                over = page.total(source.over, self.of, model)
                under = page.total(source.under, self.of, model) if source.under else 1.0
            if over is None or under is None:
                continue
            if before is not None and self.kind != "gauge" and not source.is_share:
                over = _growth(over, before.total(source.over, self.of, model))
                under = _growth(under, before.total(source.under, self.of, model)) if source.under else 1.0
            if over is None or under is None or under <= 0:
                return None
            if self.kind == "rate" and before is not None:
                return over / gap_s if gap_s > 0 else None
            return over * source.scale / under
        return None

    @property
    def counted(self) -> Series:
        """Its description since the server's start: the count of a rate, anything else as it is."""
        if self.kind != "rate":
            return self
        unit = "" if self.unit == "1/s" else self.unit.removesuffix("/s")
        return replace(self, key=self.key.removesuffix("_per_s"), unit=unit)


def _growth(now: float, before: float | None) -> float | None:
    """Return the growth of a counter; ``None`` if it fell, because server or model restarted."""
    return None if before is None or now < before else now - before


def _terms(text: str) -> tuple[Term, ...]:
    return tuple((name, label) for word in text.split() for name, _, label in [word.partition("=")])


def _source(text: str, scale: float = 1.0) -> Source:
    """Parse ``NAME[=LABEL] ... [/ NAME ...]``; ``%NAME`` is a share already."""
    over, _, under = text.partition("/ ")
    return Source(_terms(over.removeprefix("%")), _terms(under), scale, over.startswith("%"))


def _series(
    key: str, label: str, unit: str, of: Literal["engine", "model"], kind: Any, *names: str
) -> Series:
    return Series(key, label, unit, of, kind, tuple(map(_source, names)))


def _mean_ms(key: str, label: str, microseconds: str, *histograms: str) -> Series:
    sources = [_source(f"{microseconds} / nv_inference_request_success", 1e-3)]
    sources += [_source(f"{name}_sum / {name}_count", 1e3) for name in histograms]
    return Series(key, label, "ms", "model", "mean", tuple(sources))


_REQUESTS = "nv_trt_llm_request_metrics"
_BLOCKS, _MEMORY = "nv_trt_llm_kv_cache_block_metrics", "nv_trt_llm_runtime_memory_metrics"
_KV = f"{_STEP}kvCacheStats."
# Names are those of Triton (its docs/user_guide/metrics.md) and of custom_metrics_reporter.cc in
# tensorrtllm_backend v0.16.0; of trtllm-serve's /metrics (IterationStats, "step:") and, with
# return_perf_metrics, of its /prometheus/metrics; of vLLM 0.11 and SGLang 0.5, in this order.
SERIES: tuple[Series, ...] = (
    _series("requests_active", "requests in the engine", "requests", "engine", "gauge",
            f"{_REQUESTS}=active", f"{_STEP}numActiveRequests", "trtllm_num_requests_running",
            "vllm:num_requests_running", "sglang:num_running_reqs"),
    _series("requests_waiting", "requests waiting for the engine", "requests", "engine", "gauge",
            f"{_REQUESTS}=waiting", f"{_STEP}numQueuedRequests", "trtllm_num_requests_waiting",
            "vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    _series("requests_max", "maximum requests in the engine", "requests", "engine", "gauge",
            f"{_REQUESTS}=max", f"{_STEP}maxNumActiveRequests", "trtllm_max_num_active_requests"),
    _series("kv_used_share", "KV cache in use", "share", "engine", "gauge",
            f"{_BLOCKS}=used / {_BLOCKS}=max", f"{_KV}usedNumBlocks / {_KV}maxNumBlocks",
            "trtllm_kv_cache_used_blocks / trtllm_kv_cache_max_blocks", "%vllm:kv_cache_usage_perc",
            "%sglang:token_usage"),
    _series("kv_hit_share", "prompts found in the KV cache", "share", "engine", "mean",
            f"{_BLOCKS}=reused / {_BLOCKS}=reused {_BLOCKS}=missed",
            f"{_KV}reusedBlocks / {_KV}reusedBlocks {_KV}missedBlocks",
            "trtllm_kv_cache_reused_blocks / trtllm_kv_cache_reused_blocks trtllm_kv_cache_missed_blocks",
            "vllm:prefix_cache_hits / vllm:prefix_cache_queries", "%sglang:cache_hit_rate"),
    _series("memory_gpu_bytes", "GPU memory of the engine", "bytes", "engine", "gauge",
            f"{_MEMORY}=gpu", f"{_STEP}gpuMemUsage", "trtllm_gpu_memory_usage_bytes"),
    _series("iterations_per_s", "steps of the engine", "1/s", "engine", "rate",
            "nv_trt_llm_general_metrics=iteration_counter", f"{_STEP}iter"),
    _series("output_tokens_per_s", "output tokens", "tokens/s", "engine", "rate",
            "nv_llm_output_token_len_sum", "trtllm_generation_tokens", "vllm:generation_tokens",
            "sglang:generation_tokens"),
    _series("input_tokens_per_s", "prompt tokens", "tokens/s", "engine", "rate",
            "nv_llm_input_token_len_sum", "trtllm_prompt_tokens", "vllm:prompt_tokens",
            "sglang:prompt_tokens"),
    _series("finished_per_s", "requests finished", "1/s", "model", "rate",
            "nv_inference_request_success", "trtllm_request_success", "vllm:request_success",
            "sglang:num_requests"),
    _series("failed_per_s", "requests failed", "1/s", "model", "rate", "nv_inference_request_failure"),
    _series("pending", "requests queued for the model", "requests", "model", "gauge",
            "nv_inference_pending_request_count"),
    _mean_ms("queue_ms", "time in the queue", "nv_inference_queue_duration_us",
             "trtllm_request_queue_time_seconds", "vllm:request_queue_time_seconds",
             "sglang:queue_time_seconds"),
    _mean_ms("compute_ms", "computation", "nv_inference_compute_input_duration_us"
             " nv_inference_compute_infer_duration_us nv_inference_compute_output_duration_us"),
    _mean_ms("duration_ms", "from arrival to answer", "nv_inference_request_duration_us",
             "trtllm_e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds",
             "sglang:e2e_request_latency_seconds"),
)  # fmt: skip
"""Every series, in the order of tables."""


def _with_models(page: Page) -> Iterator[tuple[Series, str | None, str]]:
    """Yield each series that the page may have, with its model and the suffix of its key.

    The key of an engine's series has the model's name (``kv_used_share[context]``) only if
    there are several engines, as in disaggregated serving; that of a model always has it.
    """
    engines = {model for series in SERIES if series.of == "engine" for model in page.models(series)}
    for series in SERIES:
        for model in page.models(series):
            named = series.of == "model" or (series.of == "engine" and len(engines) > 1)
            yield series, model, f"[{model}]" if named and model else ""


def values(page: Page, before: Page | None, gap_s: float) -> dict[str, float]:
    """Return every figure of ``page`` by key; rates and means since ``before``, ``gap_s`` seconds earlier."""
    found = {
        series.key + end: series.value(page, model, before, gap_s)
        for series, model, end in _with_models(page)
        if before is not None or series.kind == "gauge"
    }
    return {key: value for key, value in found.items() if value is not None}


def since_start(page: Page) -> dict[str, float]:
    """Return every figure of one page by key: counts instead of rates, means since the server's start."""
    found = {series.counted.key + end: series.value(page, model) for series, model, end in _with_models(page)}
    return {key: value for key, value in found.items() if value is not None}


def describe(key: str) -> Series:
    """Return the series, or the count, of a key; an unknown key is its own label."""
    match = _KEY.fullmatch(key)
    base, model = (match[1], match[2]) if match else (key, None)
    for series in SERIES:
        for found in (series, series.counted):
            if found.key == base:
                return replace(found, model=model)
    return Series(key, key, "", "engine", "gauge", ())
