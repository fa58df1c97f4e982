"""Each figure of the benchmark: one small class with its unit and its formula.

A class that has no value for the records at hand raises :class:`NoValue`; a
missing figure is left out of the summary, never shown as zero.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from trtllm_hpc.bench.records import RequestRecord

Records = Sequence[RequestRecord]


class NoValue(Exception):
    """The records do not hold what the figure needs."""


def percentile(values: Sequence[float], percent: float) -> float:
    """The value below which ``percent`` % of ``values`` lie, linear between neighbours.

    The same rule as ``numpy.percentile``'s default.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(frozen=True)
class Distribution:
    """One figure over all requests, in the unit of its metric."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Summarise ``values``; raises NoValue if there are none."""
        if not values:
            raise NoValue
        p50, p90, p99 = (percentile(values, percent) for percent in (50, 90, 99))
        return cls(math.fsum(values) / len(values), p50, p90, p99, max(values))


class Metric(abc.ABC):
    """One number for the whole run. Subclasses give its name, unit and formula."""

    key: ClassVar[str]
    """Name in ``benchmark.json``; ends with the unit."""
    unit: ClassVar[str]

    @abc.abstractmethod
    def of(self, records: Records) -> float | Distribution:
        """The figure; raises NoValue."""


class SentRate(Metric):
    """Requests per second really sent: (requests - 1) / (last sent - first sent)."""

    key = "sent_rate_per_s"
    unit = "requests/s"

    def of(self, records: Records) -> float:
        """The figure; raises NoValue for fewer than two requests."""
        sent = [record.sent_s for record in records]
        if len(sent) < 2 or max(sent) <= min(sent):
            raise NoValue
        return (len(sent) - 1) / (max(sent) - min(sent))


class Duration(Metric):
    """Length of the measurement: last end - first schedule, failed requests included."""

    key = "duration_s"
    unit = "s"

    def of(self, records: Records) -> float:
        """The figure; raises NoValue without records."""
        if not records:
            raise NoValue
        return max(record.ended_s for record in records) - min(record.scheduled_s for record in records)


class FinishedRate(Metric):
    """Requests answered per second: finished requests / duration."""

    key = "finished_rate_per_s"
    unit = "requests/s"

    def of(self, records: Records) -> float:
        """The figure; raises NoValue without a finished request."""
        return _per_second([record for record in records if record.ok], records, lambda record: 1)


class OutputTokenRate(Metric):
    """Output tokens of finished requests / duration."""

    key = "output_tokens_per_s"
    unit = "tokens/s"

    def of(self, records: Records) -> float:
        """The figure; raises NoValue if a finished request has no count."""
        finished = [record for record in records if record.ok]
        return _per_second(finished, records, lambda record: record.output_tokens)


class TotalTokenRate(Metric):
    """Input and output tokens of finished requests / duration."""

    key = "total_tokens_per_s"
    unit = "tokens/s"

    def of(self, records: Records) -> float:
        """The figure; raises NoValue if a finished request lacks either count."""
        finished = [record for record in records if record.ok]
        return _per_second(finished, records, _total_tokens)


class LatencyFromSchedule(Metric):
    """End - schedule of each finished request.

    A request that the client or a stalled server held up counts with all of
    its wait: there is no coordinated omission.
    """

    key = "latency_from_schedule_ms"
    unit = "ms"

    def of(self, records: Records) -> Distribution:
        """The figure; raises NoValue without a finished request."""
        return Distribution.of([(r.ended_s - r.scheduled_s) * 1e3 for r in records if r.ok])


class LatencyFromSend(Metric):
    """End - send of each finished request."""

    key = "latency_from_send_ms"
    unit = "ms"

    def of(self, records: Records) -> Distribution:
        """The figure; raises NoValue without a finished request."""
        return Distribution.of([(r.ended_s - r.sent_s) * 1e3 for r in records if r.ok])


class ClientLateness(Metric):
    """Send - schedule of each request, finished or not: the client's own delay."""

    key = "client_lateness_ms"
    unit = "ms"

    def of(self, records: Records) -> Distribution:
        """The figure; raises NoValue without records."""
        return Distribution.of([(r.sent_s - r.scheduled_s) * 1e3 for r in records])


METRICS: tuple[type[Metric], ...] = (
    Duration,
    SentRate,
    FinishedRate,
    OutputTokenRate,
    TotalTokenRate,
    LatencyFromSchedule,
    LatencyFromSend,
    ClientLateness,
)


def all_metrics(records: Records) -> dict[str, float | Distribution]:
    """Every metric that has a value for ``records``, by its key."""
    figures = {}
    for metric in METRICS:
        try:
            figures[metric.key] = metric().of(records)
        except NoValue:
            continue
    return figures


def _total_tokens(record: RequestRecord) -> int | None:
    if record.input_tokens is None or record.output_tokens is None:
        return None
    return record.input_tokens + record.output_tokens


def _per_second(finished: Records, records: Records, count: Callable[[RequestRecord], int | None]) -> float:
    counts = [count(record) for record in finished]
    known = [number for number in counts if number is not None]
    duration_s = Duration().of(records)
    if not known or len(known) < len(counts) or duration_s <= 0:
        raise NoValue
    return sum(known) / duration_s
