"""What a metric is, and what it is computed from."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, Protocol

from trtllm_hpc.bench.levels import Level
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.summary import Distribution, Figure, Window


class NoValue(Exception):
    """The records do not hold what the figure needs."""


class Limits(Protocol):
    """What a request must keep to be good; see :class:`trtllm_hpc.bench.judgement.slo.Slo`."""

    def met_by(self, record: RequestRecord) -> bool:
        """Whether an answered request keeps every limit on single requests."""

    def judges(self, records: Sequence[RequestRecord]) -> bool:
        """Whether the records hold what the limits are about."""


@dataclass(frozen=True)
class Sample:
    """One pass over one level, from which every figure is computed."""

    records: Sequence[RequestRecord]
    """Of the whole pass: warm-up requests keep the server busy in the window too."""
    window: Window
    level: Level
    slo: Limits | None = None
    """For goodput; without it there is none."""

    @cached_property
    def measured(self) -> list[RequestRecord]:
        """The requests that were due in the window, failed ones too."""
        return [record for record in self.records if record.measured]

    @cached_property
    def answered(self) -> list[RequestRecord]:
        """The measured requests with a whole answer, however late it came."""
        return [record for record in self.measured if record.ok]

    def rate(self, events: float) -> float:
        """So many events in the window, per second of it."""
        if self.window.length_s <= 0:
            raise NoValue
        return events / self.window.length_s

    def within(self, moment_s: float) -> bool:
        """Whether what came then came in the window: after its start, and not after its end.

        An answer that opens the window made room for the first measured
        request and belongs to the time before.
        """
        return self.window.start_s < moment_s <= self.window.end_s


class Metric(abc.ABC):
    """One figure. Subclasses say what it is; :meth:`of` computes it."""

    key: ClassVar[str]
    """Its name in files; ends with the unit where that is one of time or rate."""
    label: ClassVar[str]
    """Its name in tables and plots."""
    unit: ClassVar[str]
    meaning: ClassVar[str]
    formula: ClassVar[str]
    better: ClassVar[Literal["lower", "higher"] | None] = None
    """``None``: it tells of the load, not of how well the server did."""
    streamed: ClassVar[bool] = False
    """Whether only an answer that comes in parts has it."""

    @abc.abstractmethod
    def of(self, sample: Sample) -> Figure:
        """The figure; raises NoValue."""


class PerRequest(Metric):
    """A distribution over values that each request has on its own."""

    of_failed: ClassVar[bool] = False
    """Whether requests without an answer have values too."""

    @abc.abstractmethod
    def values(self, record: RequestRecord) -> Sequence[float]:
        """The values of one request: none, one, or several."""

    def of(self, sample: Sample) -> Distribution:
        """Over all values of the measured requests; raises NoValue if there are none."""
        records = sample.measured if self.of_failed else sample.answered
        return distribution(value for record in records for value in self.values(record))


class OneEach(PerRequest):
    """A distribution over one value a request."""

    @abc.abstractmethod
    def value(self, record: RequestRecord) -> float | None:
        """The value of one request; ``None`` if it has none."""

    def values(self, record: RequestRecord) -> Sequence[float]:
        """One value, or none."""
        value = self.value(record)
        return () if value is None else (value,)


def distribution(values: Iterable[float]) -> Distribution:
    """Summarise values; percentiles are linear between neighbours, as ``numpy.percentile`` has them.

    Raises:
        NoValue: there are none.
    """
    import numpy as np

    array = np.fromiter(values, dtype=float)
    if not array.size:
        raise NoValue
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, (50, 90, 95, 99)))
    return Distribution(float(array.mean()), p50, p90, p95, p99, float(array.max()), int(array.size))
