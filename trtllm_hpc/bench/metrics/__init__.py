"""The metrics of a pass: what each means, its formula, and its figure for a sample of requests.

To add one: define it in :mod:`trtllm_hpc.bench.metrics.definitions`, and add a row to
``docs/metrics.md`` and a test to ``tests/bench/test_metrics.py``.
"""

from __future__ import annotations

from trtllm_hpc.bench.metrics.base import Limits, Metric, NoValue, PerRequest, Sample, distribution
from trtllm_hpc.bench.metrics.definitions import (
    BY_KEY,
    CLIENT_LATENESS,
    ITL,
    LATENCY,
    METRICS,
    TPOT,
    TTFT,
    figures,
)

__all__ = [
    "BY_KEY",
    "CLIENT_LATENESS",
    "ITL",
    "LATENCY",
    "METRICS",
    "TPOT",
    "TTFT",
    "Limits",
    "Metric",
    "NoValue",
    "PerRequest",
    "Sample",
    "distribution",
    "figures",
]
