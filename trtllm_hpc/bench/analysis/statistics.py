"""Means over passes, how certain they are, and whether two of them differ.

Each pass is one observation, because one run of a server differs from the next by more than its own requests
show (Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.bench.results import Distribution, Figure, Interval

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
"""The statistics of a distribution, in the order of tables."""
CONFIDENCE = 0.95


def value_of(figure: Figure, statistic: str | None) -> float:
    """Return one number: the given statistic of a distribution (default: the mean), or the number itself."""
    if isinstance(figure, Distribution):
        return float(getattr(figure, statistic or "mean"))
    return figure


@dataclass(frozen=True)
class Estimate:
    """A value with its standard error, if that is known."""

    value: float
    standard_error: float | None = None
    degrees_of_freedom: int = 0


@dataclass(frozen=True)
class Difference:
    """The difference of two estimates: its 95 % confidence interval and two-sided p-value."""

    low: float
    high: float
    p_value: float


def mean_of_passes(values: Sequence[float]) -> Estimate:
    """Return the mean with its standard error; a single value has none."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Estimate(mean, math.sqrt(variance / len(values)), len(values) - 1)


def t_interval(values: Sequence[float]) -> Interval:
    """Return the mean with Student's 95 % confidence interval; a single value has no interval.

    Student's t and not the normal distribution, because the standard deviation of a few
    passes is itself uncertain (with three passes the interval is 2.2 times as wide).
    """
    estimate = mean_of_passes(values)
    if estimate.standard_error is None:
        return Interval(estimate.value)
    margin = _margin(estimate.standard_error, estimate.degrees_of_freedom)
    return Interval(estimate.value, estimate.value - margin, estimate.value + margin)


def welch_test(first: Estimate, second: Estimate) -> Difference | None:
    """Test ``second - first`` with Welch's t-test (Welch 1947); ``None`` if a standard error is unknown.

    For means over passes this equals ``scipy.stats.ttest_ind(equal_var=False)``.
    """
    if first.standard_error is None or second.standard_error is None:
        return None
    difference = second.value - first.value
    error = math.hypot(first.standard_error, second.standard_error)
    if error == 0:
        return Difference(difference, difference, 0.0 if difference else 1.0)
    from scipy import special

    freedom = error**4 / sum(
        one.standard_error**4 / one.degrees_of_freedom for one in (first, second) if one.standard_error
    )
    margin = _margin(error, freedom)
    p_value = float(2 * special.stdtr(freedom, -abs(difference) / error))
    return Difference(difference - margin, difference + margin, p_value)


def _margin(standard_error: float, degrees_of_freedom: float) -> float:
    """Half the width of the confidence interval."""
    if standard_error == 0:
        return 0.0
    from scipy import special  # scipy.stats has the same by these names, and takes half a second to load

    return float(special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2)) * standard_error
