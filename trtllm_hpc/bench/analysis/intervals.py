"""Means over passes, their confidence intervals, and tests of the difference of two means.

Each pass is one observation, because runs of a server differ by more than the requests of one run do
(Kalibera and Jones 2013, "Rigorous benchmarking in reasonable time", section 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from trtllm_hpc.bench.results import Distribution, Figure, Interval

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
"""The statistics of a distribution, in the order of tables."""
CONFIDENCE = 0.95


def value_of(figure: Figure, statistic: str | None) -> float:
    """Return a statistic (default: the mean) of a distribution; a single number is returned as it is."""
    return float(getattr(figure, statistic or "mean")) if isinstance(figure, Distribution) else figure


class MeanDifference(NamedTuple):
    """The difference of two means: its 95 % confidence interval and two-sided p-value."""

    low: float
    high: float
    p_value: float


def t_interval(values: Sequence[float]) -> Interval:
    """Return the mean with its 95 % confidence interval; a single value has no interval.

    The interval is Student's, because the standard deviation of a few passes is uncertain: with three passes
    it is 2.2 times as wide as with the normal distribution.
    """
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean)
    margin = _margin(stdev(values) / math.sqrt(len(values)), len(values) - 1)
    return Interval(mean, mean - margin, mean + margin)


def welch_test(first: Sequence[float], second: Sequence[float]) -> MeanDifference | None:
    """Test the difference of two means with Welch's t-test (Welch 1947); ``None`` for a single value.

    This equals ``scipy.stats.ttest_ind(equal_var=False)``.
    """
    if len(first) < 2 or len(second) < 2:
        return None
    difference = fmean(second) - fmean(first)
    errors = [(stdev(values) / math.sqrt(len(values)), len(values) - 1) for values in (first, second)]
    error = math.hypot(*(each for each, _ in errors))
    if error == 0:
        return MeanDifference(difference, difference, 0.0 if difference else 1.0)
    from scipy import special

    freedom = error**4 / sum(each**4 / degrees for each, degrees in errors)
    margin = _margin(error, freedom)
    p_value = float(2 * special.stdtr(freedom, -abs(difference) / error))
    return MeanDifference(difference - margin, difference + margin, p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979): any false positive is at most 5 % likely.

    The k-th smallest of n p-values is multiplied by n - k + 1, and is at least as large as the one before.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted


def _margin(standard_error: float, degrees_of_freedom: float) -> float:
    """Return half the width of the confidence interval."""
    if standard_error == 0:
        return 0.0
    from scipy import special  # scipy.stats has the same functions, but takes half a second to load

    return float(special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE) / 2)) * standard_error
