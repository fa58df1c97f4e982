"""When each request is to be sent: decided before the first one is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.results import Window
from trtllm_hpc.bench.workload.random_numbers import Stream, random_source
from trtllm_hpc.bench.workload.request import Request
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import ConfigError, Diagnostic

_DIGITS = 9
"""Times are rounded to nanoseconds: the last bits of a logarithm differ from machine to machine."""

Times = NDArray[np.float64]


@dataclass(frozen=True)
class Schedule:
    """When the requests of one pass are due, in seconds after its start, and which of them count."""

    due_s: list[float]
    """In ascending order; the first is due at 0."""
    window: Window
    """The measured part, in the same seconds. What is due before it is warm-up; nothing is due after it."""

    @property
    def warmup(self) -> int:
        """Requests before the window."""
        return sum(due_s < self.window.start_s for due_s in self.due_s)


def open_schedule(
    level: OpenLoop, settings: Benchmark, *, repeat: int = 0, requests: Sequence[Request] = ()
) -> Schedule:
    """When the requests of an open loop are due.

    Warm-up and window each hold a whole number of requests and have exactly
    the mean rate asked for: drawn gaps are stretched, and a length asked for
    in seconds is met to half a mean gap. Otherwise the rate would be right
    only on average over many seeds. A ramp begins with the window.

    Each repeat has arrivals of its own. Those of another rate are the same
    but for their scale, so that levels differ by the rate alone.

    Args:
        requests: the workload, for arrivals as in a trace.

    Raises:
        ConfigError: a trace is wanted, and the workload has no times.
    """
    if level.arrival == "trace":
        return _as_recorded(settings, [request.due_s for request in requests])
    rate, end = level.rate_per_s, level.ramp_to_per_s or level.rate_per_s
    before, measured = requests_of(level, settings)
    warmup_s, length_s = before / rate, measured * 2 / (rate + end)
    warming = send_times(before, level, settings.seed, repeat, Stream.WARMUP_ARRIVALS) / rate
    # The tiny gaps of a burst may vanish in rounding, but who warms up is told by the time.
    warming = np.minimum(warming, warmup_s - 10**-_DIGITS)
    steady = ramped(send_times(measured, level, settings.seed, repeat, Stream.ARRIVALS), rate, end, length_s)
    due_s = np.concatenate([warming, warmup_s + steady]).round(_DIGITS)
    return Schedule(due_s.tolist(), Window(round(warmup_s, _DIGITS), round(warmup_s + length_s, _DIGITS)))


def requests_of(level: OpenLoop, settings: Benchmark) -> tuple[int, int]:
    """How many requests warm up, and how many are measured, at least one."""
    rate, end = level.rate_per_s, level.ramp_to_per_s or level.rate_per_s
    warmup, measured = settings.warmup_requests or 0, settings.requests or 1
    if settings.warmup_seconds is not None:
        warmup = round(settings.warmup_seconds * rate)
    if settings.duration_seconds is not None:
        measured = max(1, round(settings.duration_seconds * (rate + end) / 2))
    return warmup, measured


def send_times(count: int, level: OpenLoop, seed: int, repeat: int, stream: Stream) -> Times:
    """When ``count`` requests are due at a mean rate of one a second.

    The first is due at 0; the gap after the last one ends at exactly
    ``count``. Gaps are all alike (``constant``) or gamma distributed of that
    shape, of which 1 is exponential: the arrivals of a Poisson process.
    """
    if level.arrival == "constant" or count == 0:
        return np.arange(count, dtype=np.float64)
    shape = level.burstiness if level.arrival == "gamma" else 1.0
    gaps = random_source(seed, stream, repeat).standard_gamma(shape, count)
    ends = np.cumsum(gaps)
    if not ends[-1]:  # every gap of a tiny shape may be too small for a float
        return np.arange(count, dtype=np.float64)
    starts: Times = np.concatenate([[0.0], ends[:-1]]) * (count / ends[-1])
    return starts


def ramped(times: Times, start_per_s: float, end_per_s: float, length_s: float) -> Times:
    """The times at which a rate that moves evenly over ``length_s`` has brought so many requests.

    Solves ``start*t + (end - start)*t**2 / (2*length) = time`` for ``t``, in
    the form that holds for a rate that does not move, too.
    """
    slope = (end_per_s - start_per_s) / length_s
    # At the very end of a ramp down to nearly nothing rounding may leave less than 0.
    root = np.sqrt(np.maximum(start_per_s**2 + 2 * slope * times, 0.0))
    found: Times = 2 * times / (start_per_s + root)
    return found


def _as_recorded(settings: Benchmark, recorded: Sequence[float | None]) -> Schedule:
    """The times of a trace, from its first request on; the window ends where the next request would come."""
    times = [time for time in recorded if time is not None]
    if not times or len(times) < len(recorded):
        message = "arrivals as in a trace need a workload with times, and this one has none"
        hint = "take workload.kind trace, or arrival poisson"
        raise ConfigError(
            [Diagnostic("no-times", message, "the workload", "arrival", value="trace", hint=hint)]
        )
    due_s = [round(time - times[0], _DIGITS) for time in times]
    first = _warmup_of(due_s, settings)
    start_s = due_s[first]
    if settings.duration_seconds is not None:
        end_s = min(start_s + settings.duration_seconds, _after(due_s, first, len(due_s)))
        return Schedule([time for time in due_s if time < end_s], Window(start_s, end_s))
    last = min(first + (settings.requests or len(due_s)), len(due_s))
    return Schedule(due_s[:last], Window(start_s, _after(due_s, first, last)))


def _warmup_of(due_s: Sequence[float], settings: Benchmark) -> int:
    """How many requests of a trace warm up; at least the last one is measured."""
    count = settings.warmup_requests or 0
    if settings.warmup_seconds is not None:
        count = sum(time < settings.warmup_seconds for time in due_s)
    return min(count, len(due_s) - 1)


def _after(due_s: Sequence[float], first: int, last: int) -> float:
    """When a measured part ends: as the next request comes, or a mean gap after the last one."""
    if last < len(due_s):
        return due_s[last]
    gaps = max(1, last - first - 1)
    return due_s[last - 1] + (due_s[last - 1] - due_s[first]) / gaps
