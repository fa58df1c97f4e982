from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.results import Caveat, Distribution, Figure, Pass, Verdict, Window
from trtllm_hpc.bench.search import RateOutcome, find_max, outcome_of

from .make import IDLE

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


def test_passes_that_keep_the_limits_hold() -> None:
    assert outcome_of([a_pass(), a_pass(), a_pass(600)], SLO, 0.01) == RateOutcome(
        2, 3, ["latency.p99 is 600ms, not < 500ms."]
    )


def test_too_many_errors_are_the_servers_failure() -> None:
    invalid = Verdict([Caveat("errors", sentence="2 of 100 requests failed.")])
    found = outcome_of([a_pass(failed=2, verdict=invalid)], SLO, 0.01)
    assert (found.holds, found.unusable, found.broken) == (False, None, ["2 of 100 requests failed."])
    assert outcome_of([a_pass(failed=1)], SLO, 0.01).holds


def test_a_queue_that_grows_is_the_servers_failure_even_below_the_limit() -> None:
    found = outcome_of([a_pass(verdict=Verdict([], [Caveat("not-steady", 1.5)]))], SLO, 0.01)
    assert not found.holds and "did not keep up" in found.broken[0]


def test_a_client_at_its_limit_says_nothing_about_the_server() -> None:
    limited = Verdict([Caveat("client-busy", 0.97, 0.9)])
    for latency_ms in (100, 600):
        found = outcome_of([a_pass(latency_ms, verdict=limited)], SLO, 0.01)
        assert found.unusable is not None and found.broken == []
        assert found.unusable.startswith("The client, not the server, is the limit: The client's busiest")
        # Another pass over the same rate, on which nothing is to be said against the client, decides.
        others = outcome_of([a_pass(), a_pass(latency_ms, verdict=limited)], SLO, 0.01)
        assert (others.holds, others.passes, others.broken, others.unusable) == (True, 1, [], None)


def test_invalid_figures_stop_the_search_unless_the_limits_are_broken_anyway() -> None:
    short = Verdict([Caveat("short-window", 0.1, 1.0, {"why": "min_window_seconds"})])
    found = outcome_of([a_pass(verdict=short)], SLO, 0.01)
    assert (found.unusable or "").startswith("The figures are invalid: The measured window is 0.10 s long")
    assert outcome_of([a_pass(600, verdict=short)], SLO, 0.01).unusable is None


def test_a_server_that_answers_nothing_stops_the_search() -> None:
    dead = a_pass(failed=100, verdict=Verdict([Caveat("no-answer", 100)]))
    found = outcome_of([dead], SLO, 0.01)
    assert found.unusable is not None and "No request was answered" in found.unusable
    assert outcome_of([dead, a_pass(), a_pass()], SLO, 0.01).holds
