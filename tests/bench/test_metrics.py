from __future__ import annotations

import random

import numpy as np
import pytest

from trtllm_hpc.bench import metrics
from trtllm_hpc.bench.metrics import Distribution, NoValue, percentile

from .make import request

# Due at 0 and 100 ms; sent at 0 and 150; ended at 100 and 400; the third failed.
RECORDS = [request(0, 0, 100), request(100, 150, 400), request(200, 200, 500, status="UNAVAILABLE")]


def test_duration_runs_from_the_first_schedule_to_the_last_end() -> None:
    assert metrics.Duration().of(RECORDS) == pytest.approx(0.5)


def test_sent_rate_counts_gaps() -> None:
    assert metrics.SentRate().of(RECORDS) == pytest.approx(10.0)


def test_finished_rate_leaves_failures_out() -> None:
    assert metrics.FinishedRate().of(RECORDS) == pytest.approx(4.0)


def test_output_token_rate() -> None:
    assert metrics.OutputTokenRate().of(RECORDS) == pytest.approx(40.0)


def test_total_token_rate() -> None:
    assert metrics.TotalTokenRate().of(RECORDS) == pytest.approx(52.0)


def test_latency_from_schedule_holds_the_wait_to_be_sent() -> None:
    found = metrics.LatencyFromSchedule().of(RECORDS)
    assert [found.mean, found.max] == pytest.approx([200, 300])


def test_latency_from_send() -> None:
    found = metrics.LatencyFromSend().of(RECORDS)
    assert [found.mean, found.max] == pytest.approx([175, 250])


def test_client_lateness_counts_failures_too() -> None:
    found = metrics.ClientLateness().of(RECORDS)
    assert [found.mean, found.max] == pytest.approx([50 / 3, 50])


def test_all_metrics_leave_out_what_has_no_value() -> None:
    uncounted = [request(0, 0, 100, tokens_in=None), request(100, 100, 200, tokens_out=None)]
    assert set(metrics.all_metrics(RECORDS)) == {metric.key for metric in metrics.METRICS}
    assert "output_tokens_per_s" not in metrics.all_metrics(uncounted)
    assert "total_tokens_per_s" not in metrics.all_metrics(uncounted)
    assert metrics.all_metrics([]) == {}


def test_every_metric_names_its_unit_in_its_key() -> None:
    for metric in metrics.METRICS:
        short = {"requests/s": "per_s", "tokens/s": "per_s"}.get(metric.unit, metric.unit)
        assert metric.key.endswith(f"_{short}")


@pytest.mark.parametrize("count", [1, 2, 3, 10, 101, 1000])
def test_percentiles_are_numpys(count: int) -> None:
    source = random.Random(count)
    values = [source.expovariate(1.0) for _ in range(count)]
    for percent in (0, 1, 50, 90, 95, 99, 100):
        assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))


def test_a_distribution_by_hand() -> None:
    assert Distribution.of([float(number) for number in range(101)]) == Distribution(50, 50, 90, 99, 100)


def test_no_values_are_no_distribution() -> None:
    with pytest.raises(NoValue):
        Distribution.of([])
