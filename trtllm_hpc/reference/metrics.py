"""Metrics of the engine on Triton's metrics port.

Names and labels are those of ``custom_metrics_reporter.cc`` in NVIDIA's
tensorrtllm_backend v0.16.0; ``waiting`` and ``fraction`` came with v0.18.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtllm_hpc.reference.generation import Load, RankEngine

PERIOD_S = 0.1
"""Time between two updates of the gauges."""

LABELS = {
    "nv_trt_llm_request_metrics": "request_type",
    "nv_trt_llm_runtime_memory_metrics": "memory_type",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type",
    "nv_trt_llm_inflight_batcher_metrics": "inflight_batcher_specific_metric",
    "nv_trt_llm_general_metrics": "general_type",
    "nv_llm_input_token_len": "response_metric_type",
    "nv_llm_output_token_len": "response_metric_type",
}
"""The families of metrics, each with the label in which its metrics differ."""

_log = logging.getLogger(__name__)


def gauges(load: Load, memory: Mapping[str, int], now: float) -> dict[str, Mapping[str, float]]:
    """Values by family and label, at ``now``, in seconds since 1970; ``memory`` is in bytes, by kind."""
    used, most = load.blocks_used, load.blocks_max
    requests = ("active", "scheduled", "context", "waiting")
    values: list[Mapping[str, float]] = [
        {"max": load.max_requests, **{name: getattr(load, name) for name in requests}},
        memory,
        {
            **{"max": most, "free": most - used, "used": used, "reused": 0},
            **{"tokens_per": load.tokens_per_block, "fraction": used / most if most else 0},
        },
        {
            **{"total_context_tokens": load.context_tokens, "generation_requests": load.generation_requests},
            **{"micro_batch_id": 0, "paused_requests": 0},
        },
        {"timestamp": int(now * 1e6), "iteration_counter": load.iteration},
    ]
    return dict(zip(LABELS, values, strict=False))


def memory_used() -> dict[str, int]:
    """Bytes that this process uses: resident memory of the host, and GPU memory reserved by torch."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    torch = sys.modules.get("torch")
    on_gpu = torch.cuda.memory_reserved() if torch is not None and torch.cuda.is_initialized() else 0
    return {"cpu": pages * os.sysconf("SC_PAGE_SIZE"), "gpu": on_gpu, "pinned": 0}


class LoadReporter:
    """Keeps Triton's copy of the metrics up to date, from a thread of its own.

    Each update is a message to another process, so only changes are sent. Name and version of the model are
    labels of every metric.
    """

    def __init__(self, engine: RankEngine, triton: Any, *, model: str, version: str) -> None:
        self._engine = engine
        self._triton = triton
        self._labels = {"model": model, "version": version}
        self._closing = threading.Event()
        self._using = threading.Lock()
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, str], Any] = {}
        self._sent: dict[tuple[str, str], float] = {}
        buckets = [10.0, 50.0, 100.0, 500.0, 1000.0]
        for kind in ("input", "output"):
            self._metric(f"nv_llm_{kind}_token_len", f"total_{kind}_tokens", buckets=buckets)
        self._update()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the updates; not while Triton initialises the model, when its stub crashes of them."""
        if not self._thread.is_alive():
            self._thread.start()

    def observe(self, prompt: int, answer: int) -> None:
        """Count a finished sequence by its tokens, at once."""
        # The stub of Triton 2.51 crashes when two threads use its metrics at the same time.
        with self._using:
            for kind, length in (("input", prompt), ("output", answer)):
                self._metric(f"nv_llm_{kind}_token_len", f"total_{kind}_tokens").observe(length)

    def close(self) -> None:
        """End the thread and delete Triton's objects: later they find no channel, and the stub crashes."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        self._metrics.clear()
        self._families.clear()

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            try:
                self._update()
            except Exception:  # noqa: BLE001 - after any error serving must go on
                _log.exception("the metrics could not be updated")

    def _update(self) -> None:
        for family, values in gauges(self._engine.load(), memory_used(), time.time()).items():
            for label, value in values.items():
                if self._sent.get((family, label)) == value:
                    continue
                with self._using:
                    self._metric(family, label).set(value)
                self._sent[family, label] = value

    def _metric(self, family: str, label: str, **histogram: Any) -> Any:
        """Return a metric of a family, which is made first: a histogram if buckets are given."""
        if (family, label) not in self._metrics:
            kinds = self._triton.MetricFamily
            if family not in self._families:
                kind = kinds.HISTOGRAM if histogram else kinds.GAUGE
                self._families[family] = kinds(name=family, description="As TensorRT-LLM's.", kind=kind)
            labels = {**self._labels, LABELS[family]: label}
            self._metrics[family, label] = self._families[family].Metric(labels=labels, **histogram)
        return self._metrics[family, label]
