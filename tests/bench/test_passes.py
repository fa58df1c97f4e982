"""How long a measurement will still take, for those who wait for it."""

from __future__ import annotations

import pytest

from trtllm_hpc.bench.levels import levels_of
from trtllm_hpc.bench.passes import step_of
from trtllm_hpc.config.benchmark import Benchmark


def then_s(settings: Benchmark, place: int, repeat: int) -> float | None:
    return step_of(settings, place, levels_of(settings)[place], repeat).then_s


def test_the_passes_after_each_pass_are_added_up() -> None:
    sweep = Benchmark(rates_per_second=[2.0, 4.0], requests=20, warmup_requests=0, repeats=2)
    # Two passes of 10 s, then two of 5 s.
    assert [then_s(sweep, place, repeat) for place in (0, 1) for repeat in (0, 1)] == [20, 10, 5, 0]


def test_a_ramp_has_the_length_of_its_mean_rate() -> None:
    ramp = Benchmark(rate_per_second=2.0, ramp_to_per_second=8.0, requests=20, warmup_requests=2, repeats=2)
    assert then_s(ramp, 0, 0) == pytest.approx(1 + 4)


def test_the_length_of_a_closed_loop_that_counts_requests_is_unknown() -> None:
    assert then_s(Benchmark(concurrencies=[1, 2], requests=20), 0, 0) is None
    timed = Benchmark(concurrencies=[1, 2], duration_seconds=5.0, warmup_seconds=1.0)
    assert then_s(timed, 0, 0) == 6


def test_a_search_does_not_know_its_levels() -> None:
    search = Benchmark(find_max=True, slo="ttft<1s")
    step = step_of(search, 3, levels_of(search)[0], 0)
    assert (step.level, step.levels, step.then_s) == (3, None, None)
