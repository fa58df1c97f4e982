"""How sure the figures of a single pass are, from its own requests: a block bootstrap in time.

Requests that are near in time wait in the same queue and share a batch, so
drawing single ones anew would take their figures for far surer than they are.
Whole stretches of the window are drawn instead (Carlstein 1986; Künsch 1989).
The spread between one run and the next is not in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from trtllm_hpc.bench.comparison.estimates import Estimate
from trtllm_hpc.bench.metrics import Metric, NoValue, PerRequest, Sample
from trtllm_hpc.bench.records import WARMUP, RequestRecord
from trtllm_hpc.bench.statistics import value_of
from trtllm_hpc.bench.summary import Window

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

BLOCKS = 20
"""Stretches of a window: enough to tell a spread, and each long beside an answer in a window that is."""
LEAST_REQUESTS = 3 * BLOCKS
"""With fewer, blocks are all but single requests and tell no spread."""
DRAWS = 500
_SEED = 0


class OnePass:
    """One pass, cut into stretches that are drawn anew again and again."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self.tells_spread = len(sample.measured) >= LEAST_REQUESTS and sample.window.length_s > 0
        """Whether it has requests enough; without them figures have no standard error."""

    def estimates(self, metric: Metric, statistics: Sequence[str | None]) -> dict[str | None, Estimate]:
        """A figure by each of the statistics; without a standard error if the pass has too few requests.

        Raises:
            NoValue: the pass has no such figure.
        """
        figure = metric.of(self._sample)
        values = {statistic: value_of(figure, statistic) for statistic in statistics}
        if not self.tells_spread:
            return {statistic: Estimate(value) for statistic, value in values.items()}
        if isinstance(metric, PerRequest):
            drawn = self._drawn_values(metric, statistics)
        else:
            drawn = {None: self._drawn_means(metric)}
        return {
            statistic: Estimate(value, float(drawn[statistic].std(ddof=1)), BLOCKS - 1)
            for statistic, value in values.items()
        }

    @cached_property
    def blocks(self) -> list[Sample]:
        """The stretches as samples of their own: measured is what was due in each."""
        sample = self._sample
        length_s = sample.window.length_s / BLOCKS
        starts_s = [sample.window.start_s + place * length_s for place in range(BLOCKS)]
        windows = [Window(start_s, start_s + length_s) for start_s in starts_s]
        return [
            replace(sample, records=list(self._seen_from(window, place)), window=window)
            for place, window in enumerate(windows)
        ]

    def _seen_from(self, window: Window, place: int) -> Iterator[RequestRecord]:
        for record in self._sample.records:
            if record.ended_s >= window.start_s and record.scheduled_s <= window.end_s:
                yield record if self._place(record) == place else replace(record, phase=WARMUP)

    def _place(self, record: RequestRecord) -> int:
        window = self._sample.window
        place = int((record.scheduled_s - window.start_s) / window.length_s * BLOCKS)
        return min(max(place, 0), BLOCKS - 1)

    @cached_property
    def _draws(self) -> Array:
        """How often each block is drawn, a row for each draw."""
        import numpy as np

        source = np.random.default_rng(_SEED)
        return source.multinomial(BLOCKS, [1 / BLOCKS] * BLOCKS, size=DRAWS).astype(float)

    def _drawn_means(self, metric: Metric) -> Array:
        """A single number in each draw: the mean over the blocks that were drawn, by their weights."""
        import numpy as np

        figures, weights = np.zeros(BLOCKS), np.zeros(BLOCKS)
        for place, block in enumerate(self.blocks):
            weights[place] = len(block.measured) if metric.unit == "share" else 1.0
            with suppress(NoValue):  # in a stretch without an answer nothing was done: 0
                figures[place] = value_of(metric.of(block), None)
        totals = self._draws @ weights
        kept = totals > 0
        means: Array = (self._draws @ (weights * figures))[kept] / totals[kept]
        return means

    def _drawn_values(self, metric: PerRequest, statistics: Sequence[str | None]) -> dict[str | None, Array]:
        """Each statistic in each draw, over the values of the blocks that were drawn."""
        import numpy as np

        records = self._sample.measured if metric.of_failed else self._sample.answered
        pairs = sorted((value, self._place(record)) for record in records for value in metric.values(record))
        values = np.array([value for value, _ in pairs])
        places = np.array([place for _, place in pairs])
        draws = [counts for times in self._draws if (counts := times[places]).any()]
        return {
            statistic: np.array([of_counted(values, counts, statistic or "mean") for counts in draws])
            for statistic in statistics
        }


def of_counted(values: Array, counts: Array, statistic: str) -> float:
    """Of sorted values, each there so many times: what NumPy would find if they were written out."""
    import numpy as np

    if statistic == "mean":
        return float(values @ counts / counts.sum())
    if statistic == "max":
        return float(values[counts > 0].max())
    upto = np.cumsum(counts)
    place = (upto[-1] - 1) * float(statistic.removeprefix("p")) / 100
    below = values[np.searchsorted(upto, np.floor(place), side="right")]
    above = values[np.searchsorted(upto, np.ceil(place), side="right")]
    return float(below + (above - below) * (place - np.floor(place)))
