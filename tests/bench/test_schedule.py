from __future__ import annotations

from itertools import pairwise

import pytest

from trtllm_hpc.bench.prompts import BUILT_IN, choose_prompts
from trtllm_hpc.bench.schedule import send_times


def test_a_constant_schedule_has_equal_gaps() -> None:
    assert send_times(5, 4.0, "constant", seed=0) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_late_time_of_a_constant_schedule_has_not_drifted() -> None:
    assert send_times(100_001, 1000.0, "constant", seed=0)[-1] == 100.0


def test_a_poisson_schedule_is_seeded_and_hits_the_rate() -> None:
    times = send_times(1001, 10.0, "poisson", seed=3)
    assert times == send_times(1001, 10.0, "poisson", seed=3)
    assert times != send_times(1001, 10.0, "poisson", seed=4)
    assert times[0] == 0 and times == sorted(times)
    assert times[-1] == pytest.approx(100.0)


def test_poisson_gaps_vary_as_much_as_their_mean() -> None:
    times = send_times(5001, 10.0, "poisson", seed=1)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert deviation / mean == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("arrival", ["constant", "poisson"])
def test_one_request_is_due_at_once(arrival: str) -> None:
    assert send_times(1, 2.0, arrival, seed=0) == [0.0]


def test_every_prompt_is_asked_before_any_is_repeated() -> None:
    chosen = choose_prompts(20, (), seed=5)
    assert set(chosen[:8]) == set(chosen[8:16]) == set(BUILT_IN) and len(chosen) == 20
    assert chosen == choose_prompts(20, (), seed=5) != choose_prompts(20, (), seed=6)


def test_given_prompts_replace_the_built_in_ones() -> None:
    assert choose_prompts(3, ("a",), seed=0) == ["a", "a", "a"]
