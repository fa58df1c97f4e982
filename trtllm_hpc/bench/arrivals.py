"""The send times of an open loop, all fixed before the first request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_hpc.bench.results import OpenLoop, Window
from trtllm_hpc.bench.workload.prompt_source import random_source
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import ConfigError, Diagnostic

_DIGITS = 9
"""Times are rounded to nanoseconds: the last bits of a logarithm differ from machine to machine."""

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """When the requests of one pass are due, in seconds after its start, and which of them are measured."""

    due_s: list[float]
    """In ascending order; the first is due at 0."""
    window: Window
    """The measured part, in the same seconds. What is due before it is warm-up; nothing is due after it."""


def open_schedule(
    level: OpenLoop, settings: Benchmark, *, repeat: int = 0, requests: Sequence[WorkloadRequest] = ()
) -> Schedule:
    """Return when the requests of an open loop are due; ``requests`` have the times of a trace.

    Warm-up and window each have a whole number of requests and exactly the configured mean rate: drawn gaps
    are scaled, and a length in seconds is met within half a mean gap. Otherwise the rate would be right only
    on average over many seeds.

    Each repeat has its own arrivals. Those of another rate differ only by their scale, so that levels differ
    only by the rate. Raises ConfigError if a trace is wanted and the workload has no times.
    """
    if level.arrival == "trace":
        return _as_recorded(settings, [request.due_s for request in requests])
    rate = level.rate_per_s
    warmup, measured = request_counts(level, settings)
    warmup_s, length_s = warmup / rate, measured / rate
    before = arrival_times(warmup, level, settings.seed, f"warm-up arrivals {repeat}") / rate
    # Rounding may move the last request of a burst into the window, but the time decides what is warm-up.
    before = np.minimum(before, warmup_s - 10**-_DIGITS)
    within = arrival_times(measured, level, settings.seed, f"arrivals {repeat}") / rate
    due_s = np.concatenate([before, warmup_s + within]).round(_DIGITS)
    return Schedule(due_s.tolist(), Window(round(warmup_s, _DIGITS), round(warmup_s + length_s, _DIGITS)))


def request_counts(level: OpenLoop, settings: Benchmark) -> tuple[int, int]:
    """Return the number of requests of the warm-up and of the measured part, which has at least one."""
    warmup, measured = settings.warmup_requests or 0, settings.requests or 1
    if settings.warmup_seconds is not None:
        warmup = round(settings.warmup_seconds * level.rate_per_s)
    if settings.duration_seconds is not None:
        measured = max(1, round(settings.duration_seconds * level.rate_per_s))
    return warmup, measured


def arrival_times(count: int, level: OpenLoop, seed: int, name: str) -> Times:
    """Return when ``count`` requests are due at a mean rate of one a second.

    The first is due at 0; the gap after the last one ends at exactly ``count``. Gaps are equal (``constant``)
    or gamma distributed; shape 1 is the exponential distribution: the arrivals of a Poisson process.
    """
    if level.arrival == "constant" or count == 0:
        return np.arange(count, dtype=np.float64)
    shape = level.burstiness if level.arrival == "gamma" else 1.0
    gaps = random_source(seed, name).standard_gamma(shape, count)
    ends = np.cumsum(gaps)
    if not ends[-1]:  # every gap of a tiny shape may be too small for a float
        return np.arange(count, dtype=np.float64)
    starts: Times = np.concatenate([[0.0], ends[:-1]]) * (count / ends[-1])
    return starts


def _as_recorded(settings: Benchmark, recorded: Sequence[float | None]) -> Schedule:
    """The times of a trace, from its first request on; the window ends when the next request would be due."""
    times = [time for time in recorded if time is not None]
    if not times or len(times) < len(recorded):
        missing = len(recorded) - len(times)
        message = f"a trace needs a time for each request; {missing} of {len(recorded)} have none"
        hint = "use workload.kind trace, or arrival poisson"
        raise ConfigError(
            [Diagnostic("no-times", message, "the workload", "arrival", value="trace", hint=hint)]
        )
    due_s = [round(time - times[0], _DIGITS) for time in times]
    first = settings.warmup_requests or 0
    if settings.warmup_seconds is not None:
        first = sum(time < settings.warmup_seconds for time in due_s)
    first = min(first, len(due_s) - 1)  # at least the last request is measured
    start_s = due_s[first]
    if settings.duration_seconds is not None:
        end_s = min(start_s + settings.duration_seconds, _after(due_s, first, len(due_s)))
        return Schedule([time for time in due_s if time < end_s], Window(start_s, end_s))
    last = min(first + (settings.requests or len(due_s)), len(due_s))
    return Schedule(due_s[:last], Window(start_s, _after(due_s, first, last)))


def _after(due_s: Sequence[float], first: int, last: int) -> float:
    """When a measured part ends: when the next request is due, or a mean gap after the last one."""
    if last < len(due_s):
        return due_s[last]
    gaps = max(1, last - first - 1)
    return due_s[last - 1] + (due_s[last - 1] - due_s[first]) / gaps
