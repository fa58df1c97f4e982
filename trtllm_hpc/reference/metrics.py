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

from trtllm_hpc.reference.generation import Engine, Load

LENGTH_BUCKETS = (10.0, 50.0, 100.0, 500.0, 1000.0)
"""Upper bounds of the histograms' buckets, in tokens."""
PERIOD_S = 0.1
"""Time between two updates of the gauges."""

REQUESTS = "nv_trt_llm_request_metrics"
MEMORY = "nv_trt_llm_runtime_memory_metrics"
KV_CACHE = "nv_trt_llm_kv_cache_block_metrics"
BATCHER = "nv_trt_llm_inflight_batcher_metrics"
GENERAL = "nv_trt_llm_general_metrics"
INPUT_LENGTH, OUTPUT_LENGTH = "nv_llm_input_token_len", "nv_llm_output_token_len"

FAMILIES = {
    REQUESTS: ("request_type", "Requests in the engine."),
    MEMORY: ("memory_type", "Bytes of the model's process."),
    KV_CACHE: ("kv_cache_block_type", "Blocks of the KV cache."),
    BATCHER: ("inflight_batcher_specific_metric", "What the last step computed."),
    GENERAL: ("general_type", "Steps, and microseconds since 1970."),
    INPUT_LENGTH: ("response_metric_type", "Tokens of each finished prompt."),
    OUTPUT_LENGTH: ("response_metric_type", "Tokens of each finished answer."),
}
"""The label in which the metrics of a family differ, and what they count."""

_log = logging.getLogger(__name__)


def gauges(load: Load, memory: Mapping[str, int], now: float) -> dict[str, Mapping[str, float]]:
    """Values by family and label, at ``now``, in seconds since 1970; ``memory`` is in bytes, by kind."""
    return {
        REQUESTS: {
            "active": load.active,
            "max": load.max_requests,
            "scheduled": load.scheduled,
            "context": load.context,
            "waiting": load.waiting,
        },
        MEMORY: memory,
        KV_CACHE: {
            "max": load.blocks_max,
            "free": load.blocks_max - load.blocks_used,
            "used": load.blocks_used,
            "tokens_per": load.tokens_per_block,
            # No block is ever shared between requests.
            "reused": 0,
            "fraction": load.blocks_used / load.blocks_max if load.blocks_max else 0,
        },
        BATCHER: {
            "total_context_tokens": load.context_tokens,
            "generation_requests": load.generation_requests,
            # There is one batch at a time.
            "micro_batch_id": 0,
            "paused_requests": 0,
        },
        GENERAL: {"timestamp": int(now * 1e6), "iteration_counter": load.iteration},
    }


def memory_used() -> dict[str, int]:
    """Bytes that this process uses: resident memory of the host, and GPU memory reserved by torch."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    torch = sys.modules.get("torch")
    on_gpu = torch.cuda.memory_reserved() if torch is not None and torch.cuda.is_initialized() else 0
    return {"cpu": pages * os.sysconf("SC_PAGE_SIZE"), "gpu": on_gpu, "pinned": 0}


class Metrics:
    """Keeps Triton's copy of the metrics up to date, from a thread of its own.

    Each update is a message to another process, so only changes are sent. Name and version of the model are
    labels of every metric.
    """

    def __init__(self, engine: Engine, triton: Any, *, model: str, version: str) -> None:
        self._engine = engine
        self._triton = triton
        self._labels = {"model": model, "version": version}
        self._closing = threading.Event()
        self._using = threading.Lock()
        self._families: dict[str, Any] = {}
        buckets = list(LENGTH_BUCKETS)
        self._input = self._metric(INPUT_LENGTH, "total_input_tokens", buckets=buckets)
        self._output = self._metric(OUTPUT_LENGTH, "total_output_tokens", buckets=buckets)
        self._metrics: dict[tuple[str, str], Any] = {}
        self._sent: dict[tuple[str, str], float] = {}
        self._update()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Start the updates.

        Not while Triton still initialises the model: its stub has crashed when another thread sent messages
        to Triton then. Nothing changes before the first request.
        """
        if not self._thread.is_alive():
            self._thread.start()

    def observe(self, prompt: int, answer: int) -> None:
        """Count a finished sequence by its tokens, at once."""
        # The stub of Triton 2.51 crashes when two threads use its metrics at the same time.
        with self._using:
            self._input.observe(prompt)
            self._output.observe(answer)

    def close(self) -> None:
        """End the thread and delete Triton's objects.

        Each sends a message to Triton when it is deleted; one that is left to
        the end of the process finds no channel any more, and the stub crashes.
        """
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()
        del self._input, self._output
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
                key = family, label
                if self._sent.get(key) == value:
                    continue
                with self._using:
                    if key not in self._metrics:
                        self._metrics[key] = self._metric(family, label)
                    self._metrics[key].set(value)
                self._sent[key] = value

    def _metric(self, family: str, label: str, **histogram: Any) -> Any:
        """A metric of a family: a histogram if buckets are given."""
        kinds, (name, description) = self._triton.MetricFamily, FAMILIES[family]
        if family not in self._families:
            kind = kinds.HISTOGRAM if histogram else kinds.GAUGE
            self._families[family] = kinds(name=family, description=description, kind=kind)
        return self._families[family].Metric(labels={**self._labels, name: label}, **histogram)
