"""Standard errors of the figures of a single pass, by a block bootstrap over time.

Requests that are near in time wait in the same queue and share batches, so drawing
single requests would make the figures look far more certain than they are. Whole
blocks of the window are drawn instead (Carlstein 1986; Künsch 1989). The difference
between one run of the server and the next is not included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from trtllm_hpc.bench.analysis.statistics import Estimate, value_of
from trtllm_hpc.bench.metrics import Metric, NoValue, PerRequest, Sample, distribution
from trtllm_hpc.bench.records import WARMUP, RequestRecord
from trtllm_hpc.bench.results import Window

BLOCKS = 20
"""Blocks of a window: enough to show a spread, and in a valid window each long compared with an answer."""
MIN_REQUESTS = 3 * BLOCKS
"""With fewer, blocks are little more than single requests and show no spread."""
DRAWS = 500
_SEED = 0


def has_enough_requests(sample: Sample) -> bool:
    """Return whether the figures of a single pass have standard errors at all."""
    return len(sample.measured) >= MIN_REQUESTS and sample.window.length_s > 0


def estimates(sample: Sample, metric: Metric, statistics: Sequence[str | None]) -> dict[str | None, Estimate]:
    """Return the figure of a pass by each statistic; without standard errors if there are too few requests.

    Raises:
        NoValue: the pass has no such figure.
    """
    figure = metric.of(sample)
    values = {statistic: value_of(figure, statistic) for statistic in statistics}
    if not has_enough_requests(sample):
        return {statistic: Estimate(value) for statistic, value in values.items()}
    errors = _standard_errors(sample, metric, statistics)
    return {statistic: Estimate(value, errors[statistic], BLOCKS - 1) for statistic, value in values.items()}


def _standard_errors(
    sample: Sample, metric: Metric, statistics: Sequence[str | None]
) -> dict[str | None, float]:
    import numpy as np

    parts = blocks(sample)
    draws = np.random.default_rng(_SEED).integers(BLOCKS, size=(DRAWS, BLOCKS))
    if isinstance(metric, PerRequest):
        values = [np.array(metric.all_values(part)) for part in parts]
        drawn = []
        for draw in draws:
            with suppress(NoValue):
                drawn.append(distribution(np.concatenate([values[place] for place in draw])))
        return {name: float(np.std([value_of(one, name) for one in drawn], ddof=1)) for name in statistics}
    figures, weights = np.zeros(BLOCKS), np.ones(BLOCKS)
    for place, part in enumerate(parts):
        if metric.unit == "share":
            weights[place] = len(part.measured)
        with suppress(NoValue):  # a rate without any answer is zero
            figures[place] = value_of(metric.of(part), None)
    totals = weights[draws].sum(axis=1)
    means = (weights * figures)[draws].sum(axis=1)[totals > 0] / totals[totals > 0]
    return {None: float(means.std(ddof=1))}


def blocks(sample: Sample) -> list[Sample]:
    """Cut the window into blocks of equal length, each a sample of the requests that were due in it."""
    length_s = sample.window.length_s / BLOCKS
    starts_s = [sample.window.start_s + place * length_s for place in range(BLOCKS)]
    windows = [Window(start_s, start_s + length_s) for start_s in starts_s]
    return [
        replace(sample, records=list(_records_of(sample, window, place)), window=window)
        for place, window in enumerate(windows)
    ]


def _records_of(sample: Sample, window: Window, place: int) -> Iterator[RequestRecord]:
    """Yield the records that overlap a block; those that were due in another one count as its warm-up."""
    whole = sample.window
    for record in sample.records:
        if record.ended_s >= window.start_s and record.scheduled_s <= window.end_s:
            own = int((record.scheduled_s - whole.start_s) / whole.length_s * BLOCKS)
            yield record if min(max(own, 0), BLOCKS - 1) == place else replace(record, phase=WARMUP)
