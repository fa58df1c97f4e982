"""What figures over several passes tell of the truth behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from trtllm_hpc.bench.summary import Distribution, Figure, Interval

STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
"""Of a distribution, in the order of tables."""
CONFIDENCE = 0.95


def value_of(figure: Figure, statistic: str | None) -> float:
    """One number of a figure: the statistic of a distribution, or the single number that it is."""
    if isinstance(figure, Distribution):
        return float(getattr(figure, statistic or "mean"))
    return figure


def over_repeats(passes: Sequence[Mapping[str, Figure]]) -> dict[str, Interval | dict[str, Interval]]:
    """Each figure over the passes of one level, by its key; of a distribution each statistic by its name.

    A pass is one observation: its figure is what is averaged, however many
    requests it is made of. A figure that some pass lacks is left out, since
    what the others show is not the same thing.
    """
    if not passes:
        return {}
    found: dict[str, Interval | dict[str, Interval]] = {}
    for key, first in passes[0].items():
        if not all(key in figures for figures in passes):
            continue
        if isinstance(first, Distribution):
            found[key] = {name: _interval(passes, key, name) for name in STATISTICS}
        else:
            found[key] = _interval(passes, key, None)
    return found


def _interval(passes: Sequence[Mapping[str, Figure]], key: str, statistic: str | None) -> Interval:
    return t_interval([value_of(figures[key], statistic) for figures in passes])


def t_interval(values: Sequence[float]) -> Interval:
    """The mean, and Student's 95 % interval around it; no interval for a single value.

    Student's and not the normal one: of a handful of passes the spread itself
    is uncertain (with three passes the interval is 2.2 times as wide).
    """
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return Interval(mean)
    from scipy import stats

    error = stats.sem(values)
    if not error > 0:
        return Interval(mean, mean, mean)
    low, high = stats.t.interval(CONFIDENCE, len(values) - 1, loc=mean, scale=error)
    return Interval(mean, float(low), float(high))
