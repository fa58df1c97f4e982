"""What of the throughput was good enough (DistServe, Zhong et al. 2024, section 2)."""

from __future__ import annotations

from trtllm_hpc.bench.metrics.base import Metric, NoValue, Sample


class Goodput(Metric):
    """Counted as the finished rate is, of good requests alone."""

    key = "goodput_per_s"
    label = "goodput"
    unit = "requests/s"
    meaning = "The rate at which answers came that kept every limit of the SLO."
    formula = "requests of the pass that were answered in the window and kept every limit / its length"
    better = "higher"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue without an SLO, or if the records do not show what it limits."""
        answered = [record for record in sample.records if record.ok]
        if sample.slo is None or not sample.slo.judges(answered):
            raise NoValue
        return sample.rate(
            sum(sample.within(record.ended_s) and sample.slo.met_by(record) for record in answered)
        )


class GoodputShare(Metric):
    """A request that failed is not good."""

    key = "goodput_share"
    label = "good requests"
    unit = "share"
    meaning = "How much of what was asked was answered and kept every limit of the SLO: 0.99 is 99 %."
    formula = "measured requests that were answered and kept every limit / measured requests"
    better = "higher"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue without an SLO or requests, or if these do not show what it limits."""
        if sample.slo is None or not sample.measured or not sample.slo.judges(sample.answered):
            raise NoValue
        return sum(map(sample.slo.met_by, sample.answered)) / len(sample.measured)
