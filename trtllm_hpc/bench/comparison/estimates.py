"""How sure one figure of one measurement is, and whether two of them differ.

With several passes each is one observation, since one run of a server
differs from the next by more than its own requests tell (Kalibera and Jones
2013, "Rigorous benchmarking in reasonable time", section 4). Of a single pass only
its own requests can be asked: see :mod:`trtllm_hpc.bench.comparison.resampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtllm_hpc.bench.statistics import CONFIDENCE


@dataclass(frozen=True)
class Estimate:
    """A figure, and its standard error with the degrees of freedom of that; ``None`` if unknown."""

    value: float
    error: float | None = None
    freedom: int = 0


@dataclass(frozen=True)
class Difference:
    """Of a second figure from a first: where the true one lies with 95 % confidence, and its p-value."""

    low: float
    high: float
    p_value: float
    """How often so large a difference, up or down, comes of chance alone."""


def of_passes(values: Sequence[float]) -> Estimate:
    """The mean over passes, each one observation."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Estimate(mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return Estimate(mean, math.sqrt(variance / len(values)), len(values) - 1)


def difference(first: Estimate, second: Estimate) -> Difference | None:
    """Welch's t-test (Welch 1947); ``None`` if the spread of either is unknown.

    Of estimates over passes it is ``scipy.stats.ttest_ind(equal_var=False)``.
    """
    if first.error is None or second.error is None:
        return None
    apart = second.value - first.value
    error = math.hypot(first.error, second.error)
    if error == 0:
        return Difference(apart, apart, 0.0 if apart else 1.0)
    from scipy import stats

    freedom = error**4 / sum(one.error**4 / one.freedom for one in (first, second) if one.error)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    return Difference(apart - reach, apart + reach, float(2 * stats.t.sf(abs(apart) / error, freedom)))
