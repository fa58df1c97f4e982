from __future__ import annotations

import random

import pytest

from trtllm_hpc.bench.analysis.aggregate import over_repeats
from trtllm_hpc.bench.analysis.statistics import t_interval
from trtllm_hpc.bench.results import Distribution, Figure, Interval


def test_one_pass_tells_nothing_of_the_spread() -> None:
    assert t_interval([5.0]) == Interval(5.0, None, None)


def test_equal_passes_have_no_spread() -> None:
    assert t_interval([5.0, 5.0, 5.0]) == Interval(5.0, 5.0, 5.0)


def test_the_interval_of_three_by_hand() -> None:
    # Mean 2, deviation 1, error 1 / sqrt 3; Student's factor for 2 degrees of freedom is 4.3027 in any table.
    reach = 4.3027 / 3**0.5
    found = t_interval([1.0, 2.0, 3.0])
    assert found.low is not None and found.high is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - reach, 2 + reach), 1e-4)


def test_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    source = random.Random(7)
    held = 0
    for _ in range(400):
        found = t_interval([source.gauss(100, 5) for _ in range(4)])
        assert found.low is not None and found.high is not None
        held += found.low <= 100 <= found.high
    assert 0.92 <= held / 400 <= 0.98


def test_each_statistic_of_a_distribution_has_its_own_interval() -> None:
    passes: list[dict[str, Figure]] = [
        {"ttft_ms": Distribution(1, 2, 3, 4, 5, 6, 10), "finished_rate_per_s": 9.0},
        {"ttft_ms": Distribution(3, 4, 5, 6, 7, 8, 20), "finished_rate_per_s": 11.0},
    ]
    found = over_repeats(passes)
    ttft, rate = found["ttft_ms"], found["finished_rate_per_s"]
    assert isinstance(ttft, dict) and isinstance(rate, Interval)
    assert [interval.mean for interval in ttft.values()] == [2, 3, 4, 5, 6, 7]
    assert list(ttft) == ["mean", "p50", "p90", "p95", "p99", "max"]
    assert rate.mean == 10 and rate.low is not None and rate.low < 9


def test_a_figure_that_a_pass_lacks_is_left_out() -> None:
    assert over_repeats([{"a": 1.0, "b": 2.0}, {"a": 3.0}]).keys() == {"a"}
    assert over_repeats([]) == {}
