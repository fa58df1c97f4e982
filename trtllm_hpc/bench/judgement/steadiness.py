"""Whether a server kept up with its load, or only let a queue grow."""

from __future__ import annotations

from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.metrics import Sample

PARTS = 10
"""Equal parts of the window whose means are compared: means of parts hardly depend on one another, as
single latencies in a queue do (batch means; Law, Simulation Modeling and Analysis, section 9.5.3)."""
LEAST_PER_PART = 3
"""Requests, on average; with fewer the means are noise."""
CHANCE = 0.01
"""A steady load is called growing this often, at most."""
LEAST_GROWTH = 1.2
"""From the first half to the second: less is drift that does not matter."""


def growth(sample: Sample) -> str | None:
    """Tell how latency grew over the window, in a sentence; ``None`` if it did not.

    An open loop sends on when the server cannot follow, so each request
    waits longer than the one before, and its figures depend on nothing so
    much as on the length of the window. The test is Mann and Kendall's for a
    trend (Mann 1945; Kendall 1975), one-sided, on the mean latency of each
    part of the window. A rate that is made to rise is not tested.
    """
    means = None if _rising(sample) else _means(sample)
    if means is None:
        return None
    from scipy import stats

    trend = stats.kendalltau(range(PARTS), means, alternative="greater")
    half = PARTS // 2
    first_ms, second_ms = sum(means[:half]) / half, sum(means[half:]) / (PARTS - half)
    if not trend.pvalue < CHANCE or second_ms < LEAST_GROWTH * first_ms:
        return None
    return (
        f"The load was not steady: latency grew from {first_ms:.0f} ms in the first half of the window to "
        f"{second_ms:.0f} ms in the second. The server did not keep up, or the warm-up was too short; a "
        "longer window would show still higher latencies."
    )


def _rising(sample: Sample) -> bool:
    level = sample.level
    return isinstance(level, OpenLoop) and level.ramp_to_per_s not in (None, level.rate_per_s)


def _means(sample: Sample) -> list[float] | None:
    """Mean latency in milliseconds of each part of the window, by when requests were due."""
    window = sample.window
    if window.length_s <= 0 or len(sample.answered) < LEAST_PER_PART * PARTS:
        return None
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for record in sample.answered:
        place = int((record.scheduled_s - window.start_s) / window.length_s * PARTS)
        parts[min(max(place, 0), PARTS - 1)].append((record.ended_s - record.scheduled_s) * 1e3)
    if not all(parts):
        return None
    return [sum(part) / len(part) for part in parts]
