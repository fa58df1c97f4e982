"""Every figure of the benchmark: a small class each, with unit, formula and what is better."""

from __future__ import annotations

from trtllm_hpc.bench.metrics.base import Metric, NoValue, PerRequest, Sample, distribution
from trtllm_hpc.bench.metrics.goodput import Goodput, GoodputShare
from trtllm_hpc.bench.metrics.latency import (
    ClientLateness,
    InterTokenLatency,
    LatencyFromSchedule,
    LatencyFromSend,
    TimePerOutputToken,
    TimeToFirstToken,
    TimeToFirstTokenFromSend,
)
from trtllm_hpc.bench.metrics.load import AskedRate, ErrorShare, InFlight, SentRate
from trtllm_hpc.bench.metrics.throughput import FinishedRate, OutputTokenRate, TotalTokenRate
from trtllm_hpc.bench.metrics.tokens import InputTokens, OutputTokens
from trtllm_hpc.bench.summary import Figure

__all__ = [
    "BY_KEY",
    "METRICS",
    "Metric",
    "NoValue",
    "PerRequest",
    "Sample",
    "distribution",
    "figures",
]

METRICS: tuple[Metric, ...] = (
    AskedRate(),
    SentRate(),
    FinishedRate(),
    OutputTokenRate(),
    TotalTokenRate(),
    TimeToFirstToken(),
    TimeToFirstTokenFromSend(),
    TimePerOutputToken(),
    InterTokenLatency(),
    LatencyFromSchedule(),
    LatencyFromSend(),
    ClientLateness(),
    ErrorShare(),
    Goodput(),
    GoodputShare(),
    InFlight(),
    InputTokens(),
    OutputTokens(),
)
"""In the order of tables."""

BY_KEY: dict[str, Metric] = {metric.key: metric for metric in METRICS}


def figures(sample: Sample) -> dict[str, Figure]:
    """Every metric that has a value for the sample, by its key; a missing figure is never shown as zero."""
    found: dict[str, Figure] = {}
    for metric in METRICS:
        try:
            found[metric.key] = metric.of(sample)
        except NoValue:
            continue
    return found
