"""The figures in the server's Prometheus page, and how they change from one page to the next.

Names are Triton's (its docs/user_guide/metrics.md) and those of ``custom_metrics_reporter.cc`` in NVIDIA's
tensorrtllm_backend v0.16.0; ``waiting`` came with v0.18. A series whose names a page lacks is absent, never
zero: upstream's Python backend, for one, has no metrics of its engine.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from trtllm_hpc.bench.server_metrics.trtllm_serve import (
    BATCHER,
    BLOCKS,
    GENERAL,
    MEMORY,
    REQUESTS,
    TritonFigure,
    from_page,
    from_statistics,
)

_KEY = re.compile(r"(\w+)\[(.+)\]")


@dataclass(frozen=True)
class Source:
    """The samples of one name, optionally only those with one value of a label; their sum counts."""

    name: str
    label: str | None = None
    value: str | None = None


class Page:
    """A parsed metrics page in Prometheus' text format; raises ValueError if it is not.

    The first line of a page of ``trtllm-serve`` is the list of its statistics.
    """

    def __init__(self, text: str) -> None:
        from prometheus_client.parser import text_string_to_metric_families

        self._samples: dict[tuple[str | None, str], list[tuple[Mapping[str, str], float]]] = defaultdict(list)
        steps: list[TritonFigure] = []
        if text.startswith("["):
            statistics, _, text = text.partition("\n")
            steps = from_statistics(statistics)
            self._add(*steps)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if math.isfinite(sample.value):
                    # The library names counters as OpenMetrics does; Triton's have no such suffix.
                    name = sample.name.removesuffix("_total")
                    found = TritonFigure(name, sample.labels, float(sample.value))
                    self._add(from_page(*found, without_statistics=not steps) or found)

    def _add(self, *figures: TritonFigure) -> None:
        for name, labels, value in figures:
            self._samples[labels.get("model"), name].append((labels, value))

    def models(self, *prefixes: str) -> set[str]:
        """Return the models that have a metric with one of these prefixes."""
        return {model for model, name in self._samples if model is not None and name.startswith(prefixes)}

    def total(self, sources: Iterable[Source], model: str | None) -> float | None:
        """Return the sum over all sources; ``None`` if one of them is missing."""
        found = [self._sum(source, model) for source in sources]
        return sum(value for value in found if value is not None) if None not in found else None

    def _sum(self, source: Source, model: str | None) -> float | None:
        values = [
            value
            for labels, value in self._samples.get((model, source.name), ())
            if source.label is None or labels.get(source.label) == source.value
        ]
        return sum(values) if values else None


@dataclass(frozen=True)
class Series:
    """One figure of the server over time.

    ``gauge``: ``over`` (divided by ``under``) as on the page. ``rate``: growth of ``over``
    per second between two pages. ``mean``: growth of ``over`` divided by that of ``under``.
    """

    key: str
    label: str
    unit: str
    """``requests``, ``blocks``, ``tokens``, ``tokens/s``, ``1/s``, ``ms``, ``bytes``, ``share`` (0 to 1),
    ``GPUs`` or ``W``."""
    of: Literal["engine", "model", "host"]
    """Whether each engine has it, each of Triton's models, or the host."""
    over: tuple[Source, ...]
    under: tuple[Source, ...] = ()
    kind: Literal["gauge", "rate", "mean"] = "gauge"
    scale: float = 1.0
    model: str | None = None
    """The model of its key, see :func:`describe`."""

    def value(
        self, page: Page, model: str | None, before: Page | None = None, gap_s: float = 0.0
    ) -> float | None:
        """Return its value at ``page``, ``gap_s`` seconds after ``before``; ``None`` if it has none.

        Without a page before it is that since the server's start: a rate's count, a mean over everything.
        """
        over, under = (page.total(sources, model) for sources in (self.over, self.under))
        if before is not None and self.kind != "gauge":
            over = _growth(over, before.total(self.over, model))
            under = _growth(under, before.total(self.under, model))
        if over is None or under is None or (self.under and under <= 0):
            return None
        if self.kind != "rate":
            return over * self.scale / (under if self.under else 1.0)
        if before is None:
            return over
        return over * self.scale / gap_s if gap_s > 0 else None

    @property
    def counted(self) -> Series:
        """Its description since the server's start: the count of a rate, anything else as it is."""
        if self.kind != "rate":
            return self
        unit = "" if self.unit == "1/s" else self.unit.removesuffix("/s")
        return replace(self, key=self.key.removesuffix("_per_s"), unit=unit)


def _growth(now: float | None, before: float | None) -> float | None:
    """Return the growth of a counter; ``None`` if it fell, because server or model restarted."""
    return None if now is None or before is None or now < before else now - before


_STATIC = "nv_trt_llm_v1_metrics", "v1_specific_metric"
_TRANSFERS = "nv_trt_llm_disaggregated_serving_metrics", "disaggregated_serving_type"
_ENGINE = ("nv_trt_llm_", "nv_llm_")
_SUCCESS = Source("nv_inference_request_success")
_OUTPUT_TOKENS = Source("nv_llm_output_token_len_sum")
_INPUT_TOKENS = Source("nv_llm_input_token_len_sum")


def _engine(key: str, label: str, unit: str, group: tuple[str, str], value: str) -> Series:
    return Series(key, label, unit, "engine", (Source(*group, value),))


def _gauge(key: str, label: str, unit: str, name: str, of: Literal["model", "host"] = "host") -> Series:
    return Series(key, label, unit, of, (Source(name),))


def _rate(key: str, label: str, unit: str, of: Literal["engine", "model"], source: Source) -> Series:
    return Series(key, label, unit, of, (source,), kind="rate")


def _mean(key: str, label: str, *names: str) -> Series:
    over = tuple(Source(f"nv_inference_{name}_duration_us") for name in names)
    return Series(key, label, "ms", "model", over, (_SUCCESS,), "mean", 1e-3)


def _ratio(key: str, label: str, group: tuple[str, str], over: str, under: str) -> Series:
    return Series(key, label, "share", "engine", (Source(*group, over),), (Source(*group, under),))


_REUSED, _MISSED = (Source(*BLOCKS, value) for value in ("reused", "missed"))
_HITS = Series(
    "kv_hit_share", "prompts' KV blocks found", "share", "engine", (_REUSED,), (_REUSED, _MISSED), "mean"
)

SERIES: tuple[Series, ...] = (
    _engine("requests_active", "requests in the engine", "requests", REQUESTS, "active"),
    _engine("requests_scheduled", "requests in the last step", "requests", REQUESTS, "scheduled"),
    _engine("requests_context", "of these, in context phase", "requests", REQUESTS, "context"),
    _engine("requests_waiting", "requests waiting for the engine", "requests", REQUESTS, "waiting"),
    _engine("requests_max", "maximum requests in the engine", "requests", REQUESTS, "max"),
    _engine("requests_paused", "paused requests", "requests", BATCHER, "paused_requests"),
    _engine("generation_requests", "requests generating", "requests", BATCHER, "generation_requests"),
    _engine("context_tokens", "prompt tokens in the last step", "tokens", BATCHER, "total_context_tokens"),
    _engine("static_tokens", "static batch: generated tokens", "tokens", _STATIC, "total_generation_tokens"),
    _engine(
        "static_context_tokens", "static batch: prompt tokens", "tokens", _STATIC, "total_context_tokens"
    ),
    _engine("static_empty_slots", "static batch: empty slots", "requests", _STATIC, "empty_generation_slots"),
    _ratio("kv_used_share", "KV cache in use", BLOCKS, "used", "max"),
    _engine("kv_blocks_used", "KV blocks in use", "blocks", BLOCKS, "used"),
    _engine("kv_blocks_free", "KV blocks free", "blocks", BLOCKS, "free"),
    _engine("kv_blocks_max", "KV blocks in total", "blocks", BLOCKS, "max"),
    _engine("kv_blocks_reused", "reused KV blocks", "blocks", BLOCKS, "reused"),
    _HITS,
    _engine("kv_tokens_per_block", "tokens per KV block", "tokens", BLOCKS, "tokens_per"),
    _engine("memory_gpu_bytes", "GPU memory of the engine", "bytes", MEMORY, "gpu"),
    _engine("memory_cpu_bytes", "host memory of the engine", "bytes", MEMORY, "cpu"),
    _engine("memory_pinned_bytes", "pinned memory of the engine", "bytes", MEMORY, "pinned"),
    _rate("iterations_per_s", "steps of the engine", "1/s", "engine", Source(*GENERAL, "iteration_counter")),
    _rate("output_tokens_per_s", "tokens of finished answers", "tokens/s", "engine", _OUTPUT_TOKENS),
    _rate("input_tokens_per_s", "tokens of finished prompts", "tokens/s", "engine", _INPUT_TOKENS),
    replace(
        _engine(
            "kv_transfer_ms", "KV cache transfer between servers", "ms", _TRANSFERS, "kv_cache_transfer_ms"
        ),
        under=(Source(*_TRANSFERS, "request_count"),),
        kind="mean",
    ),
    _rate("finished_per_s", "requests finished", "1/s", "model", _SUCCESS),
    _rate("failed_per_s", "requests failed", "1/s", "model", Source("nv_inference_request_failure")),
    _gauge(
        "pending", "requests queued for the model", "requests", "nv_inference_pending_request_count", "model"
    ),
    _mean("queue_ms", "time in the queue", "queue"),
    _mean("compute_ms", "computation", "compute_input", "compute_infer", "compute_output"),
    _mean("duration_ms", "from arrival to answer", "request"),
    _gauge("cpu_share", "CPU of the host", "share", "nv_cpu_utilization"),
    _gauge("host_memory_used_bytes", "used memory of the host", "bytes", "nv_cpu_memory_used_bytes"),
    _gauge("gpus_busy", "busy GPUs, summed", "GPUs", "nv_gpu_utilization"),
    _gauge("gpu_memory_used_bytes", "used memory of all GPUs", "bytes", "nv_gpu_memory_used_bytes"),
    _gauge("gpu_power_w", "power of all GPUs", "W", "nv_gpu_power_usage"),
)
"""Every series, in the order of tables."""


def _with_models(page: Page) -> Iterator[tuple[Series, str | None, str]]:
    """Yield each series that the page may have, with its model and the suffix of its key.

    The key of an engine's series has the model's name (``kv_used_share[context]``) only if
    there are several engines, as in disaggregated serving; that of a model always has it.
    """
    engines = sorted(page.models(*_ENGINE))
    owners: dict[str, list[str] | list[None]]
    owners = {"engine": engines, "model": sorted(page.models("nv_inference_")), "host": [None]}
    for series in SERIES:
        named = series.of == "model" or (series.of == "engine" and len(engines) > 1)
        for model in owners[series.of]:
            yield series, model, f"[{model}]" if named else ""


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


def output_tokens(before: Page, after: Page) -> float | None:
    """Return the tokens of the answers that ended between two pages, of all engines; ``None`` if unknown."""
    engines = sorted(after.models(*_ENGINE))
    growths = [
        _growth(after.total((_OUTPUT_TOKENS,), model), before.total((_OUTPUT_TOKENS,), model))
        for model in engines
    ]
    known = [growth for growth in growths if growth is not None]
    return sum(known) if known and len(known) == len(growths) else None


def hit_share(before: Page, after: Page) -> float | None:
    """Return the share of the prompts' KV blocks that the engine found between two pages, if known."""
    engines = after.models(*_ENGINE)
    return _HITS.value(after, engines.pop(), before) if len(engines) == 1 else None


def describe(key: str) -> Series:
    """Return the series, or the count, of a key; an unknown key is its own label."""
    match = _KEY.fullmatch(key)
    base, model = (match[1], match[2]) if match else (key, None)
    for series in SERIES:
        for found in (series, series.counted):
            if found.key == base:
                return replace(found, model=model)
    return Series(key, key, "", "host", ())
