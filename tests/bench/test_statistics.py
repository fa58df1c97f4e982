from __future__ import annotations

import random

import pytest

from trtllm_hpc.bench.analysis.intervals import MeanDifference, t_interval, welch_test
from trtllm_hpc.bench.results import Interval


def test_one_pass_has_no_interval() -> None:
    assert t_interval([5.0]) == Interval(5.0, None, None)


def test_equal_passes_have_no_spread() -> None:
    assert t_interval([5.0, 5.0, 5.0]) == Interval(5.0, 5.0, 5.0)


def test_the_interval_of_three_by_hand() -> None:
    # Mean 2, deviation 1, error 1 / sqrt 3; Student's factor for 2 degrees of freedom is 4.3027 in any table.
    reach = 4.3027 / 3**0.5
    found = t_interval([1.0, 2.0, 3.0])
    assert found.low is not None and found.high is not None
    assert (found.mean, found.low, found.high) == pytest.approx((2, 2 - reach, 2 + reach), 1e-4)


def test_passes_are_compared_by_welchs_test() -> None:
    source = random.Random(3)
    a, b = [source.gauss(10, 1) for _ in range(4)], [source.gauss(12, 3) for _ in range(6)]
    found = welch_test(a, b)
    from scipy import stats  # slow to import

    theirs = stats.ttest_ind(b, a, equal_var=False)
    interval = theirs.confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high, found.p_value) == pytest.approx(
        (interval.low, interval.high, theirs.pvalue)
    )


def test_the_spread_of_a_single_pass_is_unknown() -> None:
    assert welch_test([5.0], [6.0, 7.0]) is None


def test_figures_without_any_spread_differ_or_do_not() -> None:
    assert welch_test([1.0, 1.0], [2.0, 2.0]) == MeanDifference(1, 1, 0)
    assert welch_test([1.0, 1.0], [1.0, 1.0]) == MeanDifference(0, 0, 1)
