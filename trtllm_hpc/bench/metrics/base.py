"""What a metric is, and the sample of requests that it is computed from."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from trtllm_hpc.bench.levels import Level
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Distribution, Figure, Window


class NoValue(Exception):
    """The records lack what the metric needs."""


class Limits(Protocol):
    """The limits that a good request keeps; see :class:`trtllm_hpc.bench.analysis.slo.Slo`."""

    def met_by(self, record: RequestRecord) -> bool:
        """Whether an answered request keeps every limit on single requests."""

    def can_judge(self, records: Sequence[RequestRecord]) -> bool:
        """Whether the records hold the values that the limits apply to."""


@dataclass(frozen=True)
class Sample:
    """The requests of one pass over one level of load."""

    records: Sequence[RequestRecord]
    """All requests of the pass: those of the warm-up keep the server busy in the window, too."""
    window: Window
    level: Level
    slo: Limits | None = None
    """Needed for goodput."""

    @cached_property
    def measured(self) -> list[RequestRecord]:
        """The requests that were due in the window, including failed ones."""
        return [record for record in self.records if record.measured]

    @cached_property
    def answered(self) -> list[RequestRecord]:
        """The measured requests with a complete answer, however late."""
        return [record for record in self.measured if record.ok]

    def rate(self, events: float) -> float:
        """Return events per second of the window; raises NoValue if the window is empty."""
        if self.window.length_s <= 0:
            raise NoValue
        return events / self.window.length_s

    def within(self, moment_s: float) -> bool:
        """Return whether the moment lies in the window, its start excluded and its end included.

        The answer that opens the window belongs to the time before it: it made room for
        the first measured request.
        """
        return self.window.start_s < moment_s <= self.window.end_s


@dataclass(frozen=True, kw_only=True)
class Metric(abc.ABC):
    """A metric: its description, and its figure for a sample."""

    key: str
    """Its name in files. A time ends with ``_ms``, a rate with ``_per_s``."""
    label: str
    """Its name in tables and plots."""
    unit: str
    meaning: str
    formula: str
    better: Literal["lower", "higher"] | None = None
    """``None``: it describes the load and not the server."""
    needs_streaming: bool = False
    """Whether only streamed answers have it."""
    slo_name: str | None = None
    """Its name in an SLO; ``None`` if it cannot be limited."""

    @abc.abstractmethod
    def of(self, sample: Sample) -> Figure:
        """Return the figure for a sample; raises NoValue."""


@dataclass(frozen=True, kw_only=True)
class Single(Metric):
    """A metric that is one number for a whole pass."""

    compute: Callable[[Sample], float]
    """Returns the number, or raises NoValue."""

    def of(self, sample: Sample) -> float:
        """Return the number; raises NoValue."""
        return self.compute(sample)


@dataclass(frozen=True, kw_only=True)
class PerRequest(Metric):
    """A metric that each request has by itself; its figure is the distribution of all values."""

    values: Callable[[RequestRecord], Sequence[float]]
    """Returns the values of one request: none, one, or several."""
    includes_failed: bool = False
    """Whether failed requests have values, too."""

    def of(self, sample: Sample) -> Distribution:
        """Return the distribution over the measured requests; raises NoValue if there are no values."""
        records = sample.measured if self.includes_failed else sample.answered
        return distribution(value for record in records for value in self.values(record))


def distribution(values: Iterable[float]) -> Distribution:
    """Summarise values. Percentiles are interpolated linearly, as ``numpy.percentile`` does.

    Raises:
        NoValue: there are no values.
    """
    import numpy as np

    array = np.fromiter(values, dtype=float)
    if not array.size:
        raise NoValue
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, (50, 90, 95, 99)))
    return Distribution(float(array.mean()), p50, p90, p95, p99, float(array.max()), int(array.size))
