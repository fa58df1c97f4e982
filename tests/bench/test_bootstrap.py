from __future__ import annotations

import random

import numpy as np
import pytest

from trtllm_hpc.bench.analysis.bootstrap import BLOCKS, blocks, estimates
from trtllm_hpc.bench.analysis.statistics import Difference, Estimate, mean_of_passes, value_of, welch_test
from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.metrics import BY_KEY, Sample

from .make import request, sample
from .queueing import last_due_ms, served


def one_pass(rate: float, requests: int, seed: int) -> Sample:
    records = served(rate, requests=requests, warmup=50, seed=seed)
    return sample(records, end_ms=last_due_ms(records), level=OpenLoop(rate))


def test_passes_are_compared_by_welchs_test() -> None:
    source = random.Random(3)
    a, b = [source.gauss(10, 1) for _ in range(4)], [source.gauss(12, 3) for _ in range(6)]
    from scipy import stats

    found = welch_test(mean_of_passes(a), mean_of_passes(b))
    theirs = stats.ttest_ind(b, a, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high, found.p_value) == pytest.approx(
        (interval.low, interval.high, theirs.pvalue)
    )


def test_a_single_pass_without_records_tells_nothing_of_chance() -> None:
    assert mean_of_passes([5.0]) == Estimate(5.0, None)
    assert welch_test(mean_of_passes([5.0]), mean_of_passes([6.0, 7.0])) is None


def test_figures_without_any_spread_differ_or_do_not() -> None:
    assert welch_test(mean_of_passes([1.0, 1.0]), mean_of_passes([2.0, 2.0])) == Difference(1, 1, 0)
    assert welch_test(mean_of_passes([1.0, 1.0]), mean_of_passes([1.0, 1.0])) == Difference(0, 0, 1)


@pytest.mark.parametrize("key", ["latency_ms", "finished_rate_per_s", "in_flight", "error_share"])
def test_the_figure_of_one_pass_is_the_pass_own(key: str) -> None:
    records = served(50, requests=200)
    whole = sample(records, end_ms=last_due_ms(records), level=OpenLoop(50))
    statistics = ("p50", "p99") if key == "latency_ms" else (None,)
    found = estimates(whole, BY_KEY[key], statistics)
    for statistic in statistics:
        assert found[statistic].value == value_of(BY_KEY[key].of(whole), statistic)


def test_the_blocks_add_up_to_the_pass() -> None:
    records = served(50, requests=200, warmup=20)
    whole = sample(records, end_ms=last_due_ms(records), level=OpenLoop(50))
    parts = blocks(whole)
    assert sum(len(part.measured) for part in parts) == len(whole.measured)
    for key in ("finished_rate_per_s", "output_tokens_per_s", "in_flight", "sent_rate_per_s"):
        rates = [value_of(BY_KEY[key].of(part), None) for part in parts]
        assert sum(rates) / BLOCKS == pytest.approx(value_of(BY_KEY[key].of(whole), None), rel=0.01)


def test_independent_latencies_have_the_error_that_theory_says() -> None:
    # The mean of n values is off by their deviation / sqrt n; the median of normal ones by 1.2533 times that.
    source = random.Random(5)
    records = [request(due, due, due + source.gauss(100, 10)) for due in range(0, 10_000, 5)]
    found = estimates(sample(records, end_ms=10_000), BY_KEY["latency_ms"], ("mean", "p50"))
    of_mean = 10 / len(records) ** 0.5
    assert found["mean"].standard_error == pytest.approx(of_mean, rel=0.35)
    assert found["p50"].standard_error == pytest.approx(1.2533 * of_mean, rel=0.35)


def test_latencies_that_hang_together_are_less_sure_than_their_number_says() -> None:
    # Stretches of 50 requests share their latency: there are 20 values and not 1000.
    source = random.Random(6)
    levels = [source.gauss(100, 10) for _ in range(20)]
    records = [request(due, due, due + levels[due // 500]) for due in range(0, 10_000, 10)]
    error = estimates(sample(records, end_ms=10_000), BY_KEY["latency_ms"], ("mean",))["mean"].standard_error
    assert error == pytest.approx(float(np.std(levels)) / 20**0.5, rel=0.2)


def test_a_stretch_without_an_answer_has_a_rate_of_zero() -> None:
    # 20/s for half of the window, then nothing: 20 stretches whose rates deviate by 10 from their mean of 10.
    records = [request(due, due, due + 10) for due in range(5, 5000, 50)]
    found = estimates(sample(records, end_ms=10_000), BY_KEY["finished_rate_per_s"], (None,))[None]
    assert found.value == 10 and found.standard_error == pytest.approx(10 / 20**0.5, rel=0.1)


def test_too_few_requests_tell_no_spread() -> None:
    few = sample([request(place, place, place + 50) for place in range(59)])
    assert estimates(few, BY_KEY["latency_ms"], ("p50",))["p50"] == Estimate(50.0)


@pytest.mark.long
def test_two_runs_of_the_same_server_seldom_differ() -> None:
    statistics = ("mean", "p50", "p99")
    alarms = {statistic: 0 for statistic in statistics}
    for seed in range(60):
        a, b = one_pass(50, 1000, 2 * seed), one_pass(50, 1000, 2 * seed + 1)
        of_a, of_b = (estimates(one, BY_KEY["latency_ms"], statistics) for one in (a, b))
        for statistic in statistics:
            found = welch_test(of_a[statistic], of_b[statistic])
            assert found is not None
            alarms[statistic] += found.p_value < 0.05
    # 3 of 60 are expected; more than 9 come of chance once in 1000 times.
    assert max(alarms.values()) <= 9
