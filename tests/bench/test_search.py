from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.analysis.validity import check_pass
from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.metrics import figures
from trtllm_hpc.bench.results import Distribution, Figure, Finding, Pass, Verdict, Window
from trtllm_hpc.bench.search import RateOutcome, find_max, outcome_of
from trtllm_hpc.config.benchmark import Benchmark

from .make import IDLE, sample
from .queueing import last_due_ms, served

SLO = parse_slo("latency.p99<500ms")


def holds_below(capacity: float, noise: Callable[[], float] = lambda: 1.0) -> Callable[[float], RateOutcome]:
    """A server that keeps the limits up to a rate, give or take ``noise`` in each of three passes."""

    def measure(rate: float) -> RateOutcome:
        held = sum(rate * noise() <= capacity for _ in range(3))
        return RateOutcome(held, 3, ["too slow"] if held < 3 else [])

    return measure


def a_pass(latency_ms: float = 100, *, failed: int = 0, verdict: Verdict | None = None) -> Pass:
    metrics: dict[str, Figure] = {"error_share": failed / 100}
    if failed < 100:
        ms = latency_ms
        metrics["latency_ms"] = Distribution(ms, ms, ms, ms, ms, ms, 100 - failed)
    return Pass(0, 0, 1, Window(0, 1), 100, 100, failed, metrics, IDLE, verdict or Verdict())


def test_it_doubles_until_it_fails_and_then_bisects() -> None:
    found = find_max(holds_below(45), 10, str(SLO))
    assert [tried.rate_per_s for tried in found.tried] == [10, 20, 40, 80, 60, 50, 45, 47.5, 46.25]
    assert (found.max_rate_per_s, found.first_failing_per_s, found.stopped) == (45, 46.25, None)
    assert found.slo == "latency.p99<500ms"
    assert [tried.level for tried in found.tried] == list(range(9))
    assert [tried.rate_per_s for tried in found.tried if tried.holds] == [10, 20, 40, 45]


def test_it_halves_where_the_first_rate_is_too_high() -> None:
    found = find_max(holds_below(11), 40, "", precision=0.2)
    assert [tried.rate_per_s for tried in found.tried] == [40, 20, 10, 15, 12.5, 11.25]
    assert (found.max_rate_per_s, found.first_failing_per_s) == (10, 11.25)


def test_a_server_that_holds_nowhere_has_no_highest_rate() -> None:
    found = find_max(holds_below(0), 64, "")
    assert found.max_rate_per_s is None and found.first_failing_per_s == 1
    assert found.stopped == "The limits do not hold even at 1/s."


def test_a_server_without_a_limit_ends_the_search_too() -> None:
    found = find_max(holds_below(math.inf), 30_000, "")
    assert (found.max_rate_per_s, found.first_failing_per_s) == (100_000, None)
    assert found.stopped is not None and "even at 100000/s" in found.stopped


def test_the_limit_of_the_client_is_not_the_servers() -> None:
    server = holds_below(10_000)

    def measure(rate: float) -> RateOutcome:
        return server(rate) if rate < 900 else RateOutcome(0, 3, [], unusable="The client is the limit.")

    found = find_max(measure, 250, "")
    assert (found.max_rate_per_s, found.first_failing_per_s) == (500, None)
    assert found.stopped == "The search ended at 1000/s. The client is the limit."
    assert all(tried.holds for tried in found.tried)


@given(capacity=st.floats(2, 90_000), start=st.floats(1, 100), precision=st.sampled_from([0.01, 0.05, 0.2]))
def test_the_capacity_lies_between_what_held_and_what_failed(
    capacity: float, start: float, precision: float
) -> None:
    found = find_max(holds_below(capacity), start, "", precision=precision)
    low, high = found.max_rate_per_s, found.first_failing_per_s
    assert low is not None and high is not None
    assert low <= capacity < high and high - low < precision * low
    assert found.stopped is None


@given(capacity=st.floats(2, 10_000), seed=st.integers(0, 1000))
def test_noise_of_single_passes_moves_the_result_by_no_more_than_itself(capacity: float, seed: int) -> None:
    source = random.Random(seed)
    found = find_max(holds_below(capacity, lambda: source.uniform(0.9, 1.1)), 10, "")
    assert found.max_rate_per_s is not None
    # A rate holds for sure below capacity / 1.1 and fails for sure above capacity / 0.9.
    assert capacity / 1.1 / 1.05 < found.max_rate_per_s <= capacity / 0.9


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_the_capacity_of_a_queue_is_found_from_its_records(seed: int) -> None:
    # One slot with exponential service: latency is exponential with the rate (100 - load) per second
    # (Kleinrock, Queueing Systems I, section 5.4), so its median is ln 2 / (100 - load) s: 20 ms at 65.3/s.
    slo = parse_slo("latency.p50<20ms")
    seeds = iter(range(1000 * seed, 1000 * seed + 1000))

    def measure(rate: float) -> RateOutcome:
        return outcome_of([_measured(rate, next(seeds)) for _ in range(3)], slo, 0.01)

    found = find_max(measure, 20, str(slo))
    assert found.max_rate_per_s == pytest.approx(100 - math.log(2) / 0.02, rel=0.08)


def _measured(rate: float, seed: int) -> Pass:
    records = served(rate, requests=3000, slots=1, warmup=200, seed=seed)
    one = sample(records, end_ms=last_due_ms(records), level=OpenLoop(rate))
    verdict = check_pass(one, IDLE, Benchmark())
    return Pass(0, 0, 1, one.window, len(records), len(one.measured), 0, figures(one), IDLE, verdict)


def test_passes_that_keep_the_limits_hold() -> None:
    assert outcome_of([a_pass(), a_pass(), a_pass(600)], SLO, 0.01) == RateOutcome(
        2, 3, ["latency.p99 is 600ms, not < 500ms."]
    )


@pytest.mark.parametrize(
    ("held", "passes", "holds"), [(1, 1, True), (1, 2, False), (2, 3, True), (0, 1, False)]
)
def test_more_than_half_must_hold(held: int, passes: int, holds: bool) -> None:
    assert RateOutcome(held, passes, []).holds is holds


def test_too_many_errors_are_the_servers_failure() -> None:
    invalid = Verdict([Finding("errors", sentence="2 of 100 requests failed.")])
    found = outcome_of([a_pass(failed=2, verdict=invalid)], SLO, 0.01)
    assert (found.holds, found.unusable, found.broken) == (False, None, ["2 of 100 requests failed."])
    assert outcome_of([a_pass(failed=1)], SLO, 0.01).holds


def test_a_queue_that_grows_is_the_servers_failure_even_below_the_limit() -> None:
    found = outcome_of([a_pass(verdict=Verdict([], [Finding("not-steady", 1.5)]))], SLO, 0.01)
    assert not found.holds and "did not keep up" in found.broken[0]


def test_a_client_at_its_limit_says_nothing_about_the_server() -> None:
    limited = Verdict([Finding("client-busy", 0.97, 0.9)])
    for latency_ms in (100, 600):
        found = outcome_of([a_pass(latency_ms, verdict=limited)], SLO, 0.01)
        assert found.unusable is not None and found.broken == []
        assert found.unusable.startswith("The client, not the server, is the limit: The client's busiest")
        # Another pass over the same rate, on which nothing is to be said against the client, decides.
        others = outcome_of([a_pass(), a_pass(latency_ms, verdict=limited)], SLO, 0.01)
        assert (others.holds, others.passes, others.broken, others.unusable) == (True, 1, [], None)


def test_invalid_figures_stop_the_search_unless_the_limits_are_broken_anyway() -> None:
    short = Verdict([Finding("short-window", 0.1, 1.0, {"why": "min_window_seconds"})])
    found = outcome_of([a_pass(verdict=short)], SLO, 0.01)
    assert (found.unusable or "").startswith("The figures are invalid: The measured window is 0.10 s long")
    assert outcome_of([a_pass(600, verdict=short)], SLO, 0.01).unusable is None


def test_a_server_that_answers_nothing_stops_the_search() -> None:
    dead = a_pass(failed=100, verdict=Verdict([Finding("no-answer", 100)]))
    found = outcome_of([dead], SLO, 0.01)
    assert found.unusable is not None and "No request was answered" in found.unusable
    assert outcome_of([dead, a_pass(), a_pass()], SLO, 0.01).holds
