"""When each request is to be sent: decided before the first one is."""

from __future__ import annotations

import random
from itertools import accumulate

ARRIVALS = ("constant", "poisson")


def send_times(count: int, rate_per_s: float, arrival: str, seed: int) -> list[float]:
    """Seconds after the start at which each of ``count`` requests is due; the first at 0.

    ``poisson`` draws exponential gaps and stretches them so that the last
    request is due exactly when it would be at a constant rate: otherwise the
    rate asked for would be hit only on average over many seeds.
    """
    if arrival == "constant":
        return [index / rate_per_s for index in range(count)]
    if arrival != "poisson":
        raise ValueError(f"unknown arrival {arrival!r}, choices: {', '.join(ARRIVALS)}")
    source = random.Random(seed)
    gaps = [source.expovariate(rate_per_s) for _ in range(count - 1)]
    drawn_s = sum(gaps)
    stretch = (count - 1) / rate_per_s / drawn_s if drawn_s else 1.0
    return [0.0, *accumulate(gap * stretch for gap in gaps)][:count]
