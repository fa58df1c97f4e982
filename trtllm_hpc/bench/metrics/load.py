"""What the client put on the server, and what of it failed."""

from __future__ import annotations

from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.metrics.base import Metric, NoValue, Sample


class AskedRate(Metric):
    """Of an open loop; a closed loop asks for no rate."""

    key = "asked_rate_per_s"
    label = "asked rate"
    unit = "requests/s"
    meaning = "The rate that the schedule asked for, by its requests in the window. Open loop only."
    formula = "requests due in the window / its length"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue for a closed loop."""
        if not isinstance(sample.level, OpenLoop):
            raise NoValue
        return sample.rate(len(sample.measured))


class SentRate(Metric):
    """By when requests were really sent, whenever they were due."""

    key = "sent_rate_per_s"
    label = "sent rate"
    unit = "requests/s"
    meaning = "The rate at which the client really sent."
    formula = "requests sent in the window / its length"

    def of(self, sample: Sample) -> float:
        """The figure."""
        window = sample.window
        return sample.rate(sum(window.start_s <= record.sent_s < window.end_s for record in sample.records))


class InFlight(Metric):
    """Little's law holds for it: rate times latency from send."""

    key = "in_flight"
    label = "in flight"
    unit = "requests"
    meaning = "How many requests were sent and not yet ended, on average over the window."
    formula = "sum over requests of (time between sent and end that lies in the window) / its length"

    def of(self, sample: Sample) -> float:
        """The figure."""
        window = sample.window
        spans = (
            min(record.ended_s, window.end_s) - max(record.sent_s, window.start_s)
            for record in sample.records
        )
        return sample.rate(sum(span for span in spans if span > 0))


class ErrorShare(Metric):
    """Timeouts and refusals alike."""

    key = "error_share"
    label = "errors"
    unit = "share"
    meaning = "How much of what was asked got no whole answer: 0.01 is 1 %."
    formula = "measured requests that failed / measured requests"
    better = "lower"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue without requests."""
        if not sample.measured:
            raise NoValue
        return (len(sample.measured) - len(sample.answered)) / len(sample.measured)
