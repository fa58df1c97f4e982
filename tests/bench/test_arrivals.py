from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_hpc.bench.passes import Schedule, open_schedule
from trtllm_hpc.bench.results import OpenLoop, Window
from trtllm_hpc.bench.workload.request import WorkloadRequest
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.errors import ConfigError

ARRIVALS = ("constant", "poisson", "gamma")


def scheduled(rate: float, arrival: str, *, repeat: int = 0, **values: Any) -> Schedule:
    benchmark = Benchmark(rate_per_second=rate, **{"warmup_requests": 0, **values})
    level = OpenLoop(rate, arrival, benchmark.burstiness)
    return open_schedule(level, benchmark, repeat=repeat)


def warmup_of(schedule: Schedule) -> int:
    """Requests before the window."""
    return sum(due_s < schedule.window.start_s for due_s in schedule.due_s)


def gaps(times: list[float]) -> list[float]:
    return [after - before for before, after in pairwise(times)]


def spread(times: list[float]) -> float:
    """Standard deviation of the gaps, in mean gaps."""
    found = gaps(times)
    mean = sum(found) / len(found)
    return float((sum((gap - mean) ** 2 for gap in found) / len(found)) ** 0.5 / mean)


def test_a_constant_schedule_has_equal_gaps_and_a_window_of_their_sum() -> None:
    schedule = scheduled(4.0, "constant", requests=5)
    assert schedule.due_s == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert schedule.window == Window(0.0, 1.25)


def test_warm_up_comes_before_the_window_at_the_same_rate() -> None:
    schedule = scheduled(2.0, "constant", requests=4, warmup_requests=3)
    assert schedule.due_s == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    assert schedule.window == Window(1.5, 3.5) and warmup_of(schedule) == 3


@pytest.mark.parametrize(("shape", "expected"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_burstiness_is_the_shape_of_gamma_gaps(shape: float, expected: float) -> None:
    """A gamma distribution varies by one over the root of its shape."""
    schedule = scheduled(10.0, "gamma", requests=5000, burstiness=shape)
    assert spread(schedule.due_s) == pytest.approx(expected, rel=0.1)


def test_repeats_have_different_arrivals_and_rates_the_same_ones() -> None:
    first = scheduled(1.0, "poisson", requests=30)
    assert scheduled(1.0, "poisson", requests=30, repeat=1).due_s != first.due_s
    assert scheduled(2.0, "poisson", requests=30).due_s == pytest.approx([due / 2 for due in first.due_s])
    assert scheduled(1.0, "poisson", requests=30, seed=1).due_s != first.due_s


@given(
    arrival=st.sampled_from(ARRIVALS),
    rate=st.floats(0.01, 10_000),
    shape=st.floats(0.01, 100),
    seed=st.integers(0, 2**31 - 1),
    counts=st.tuples(st.integers(0, 50), st.integers(1, 300)),
)
def test_schedules_are_sorted_and_have_exactly_the_mean_rate(
    arrival: str, rate: float, shape: float, seed: int, counts: tuple[int, int]
) -> None:
    warmup, requests = counts
    options: dict[str, Any] = {"warmup_requests": warmup, "requests": requests, "seed": seed}
    schedule = scheduled(rate, arrival, burstiness=shape, **options)
    assert schedule.due_s == sorted(schedule.due_s)
    assert schedule.due_s[0] == 0.0
    assert schedule.due_s[-1] <= schedule.window.end_s
    assert (warmup_of(schedule), len(schedule.due_s)) == (warmup, warmup + requests)
    # Times are rounded to nanoseconds.
    assert schedule.window.length_s == pytest.approx(requests / rate, rel=1e-9, abs=2e-9)
    assert schedule.window.start_s == pytest.approx(warmup / rate, rel=1e-9, abs=2e-9)
    assert schedule == scheduled(rate, arrival, burstiness=shape, **options)


def recorded(times: list[float | None], **values: Any) -> Schedule:
    benchmark = Benchmark(**{"arrival": "trace", "requests": None, "warmup_requests": 0, **values})
    requests = [WorkloadRequest(1, "x", due_s=time) for time in times]
    return open_schedule(OpenLoop(1.0, "trace"), benchmark, requests=requests)


def test_a_trace_keeps_its_times_from_its_first_request_on() -> None:
    schedule = recorded([10.0, 10.5, 10.5, 12.0])
    assert schedule.due_s == [0.0, 0.5, 0.5, 2.0]
    assert schedule.window.start_s == 0.0
    assert schedule.window.end_s == pytest.approx(2.0 + 2.0 / 3), "a mean gap after the last one"


def test_the_first_requests_of_a_trace_are_warm_up() -> None:
    schedule = recorded([0.0, 1.0, 2.0, 4.0, 8.0], warmup_requests=1, requests=3)
    assert schedule.due_s == [0.0, 1.0, 2.0, 4.0]
    assert schedule.window == Window(1.0, 8.0), "it ends when the next request would be due"


def test_a_trace_may_be_cut_by_time() -> None:
    schedule = recorded(
        [0.0, 1.0, 2.0, 4.0, 8.0], warmup_seconds=1.5, warmup_requests=None, duration_seconds=3.0
    )
    assert schedule.due_s == [0.0, 1.0, 2.0, 4.0]
    assert schedule.window == Window(2.0, 5.0)


def test_the_window_ends_with_a_trace_that_is_shorter() -> None:
    """Otherwise its rates would include time in which nothing is sent."""
    schedule = recorded([0.0, 1.0, 2.0, 3.0], duration_seconds=60.0)
    assert schedule.due_s == [0.0, 1.0, 2.0, 3.0] and schedule.window == Window(0.0, 4.0)
    assert recorded([0.0, 1.0, 2.0, 3.0], duration_seconds=3.5).window.end_s == 3.5


@pytest.mark.parametrize("times", [[], [None, None], [0.0, None]])
def test_a_trace_without_times_is_refused(times: list[float | None]) -> None:
    with pytest.raises(ConfigError, match="a trace needs a time for each request"):
        recorded(times)
