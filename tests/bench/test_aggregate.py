"""Intervals, errors and the verdict of a whole measurement, from its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtllm_hpc.bench.analysis.aggregate import by_turn, error_counts, over_repeats, overall_verdict
from trtllm_hpc.bench.results import (
    Caveat,
    Distribution,
    Figure,
    Interval,
    LevelResult,
    OpenLoop,
    Pass,
    SearchResult,
    Verdict,
    Window,
)

from .make import IDLE, request


def few(answered: int) -> Caveat:
    return Caveat("few-answers", answered, 100)


def sentence(answered: int) -> str:
    return f"Answered requests: {answered}; below 100, p99 is practically the maximum."


def level(rate: float, *passes: Sequence[Caveat], wrong: Sequence[Caveat] = ()) -> LevelResult:
    """A level with these warnings, a list a pass."""
    window = Window(0, 1)
    made = [
        Pass(repeat, 0, 1, window, 10, 10, 0, {}, IDLE, Verdict(list(wrong), list(warnings)))
        for repeat, warnings in enumerate(passes)
    ]
    return LevelResult(OpenLoop(rate), made, {})


def warnings(*levels: LevelResult) -> list[str]:
    return list(map(str, overall_verdict(levels, None).warnings))


def test_a_finding_of_several_passes_appears_once_as_the_worst_with_its_levels() -> None:
    assert warnings(level(2, [few(5)])) == [sentence(5)]
    assert warnings(level(2, [few(5)], [])) == [sentence(5)]
    assert warnings(level(2, [few(5)]), level(4, []), level(8, [few(5)])) == [f"2/s, 8/s: {sentence(5)}"]
    assert warnings(level(2, [few(20)]), level(4, [few(5)]), level(8, [few(95)])) == [
        f"{sentence(5)} This is the worst of 3 passes."
    ]
    assert len(warnings(level(2, [few(5)]), level(4, [Caveat("interrupted")]))) == 2


def test_findings_about_the_whole_come_first_with_their_sentences() -> None:
    found = overall_verdict([level(2, [], wrong=[few(5)])], None, findings=[Caveat("unfinished")])
    assert [str(it) for it in found.findings] == ["The measurement did not finish.", sentence(5)]


def test_findings_of_a_search_become_warnings() -> None:
    search = SearchResult("ttft.p99<1s", 2.0, 4.0, [])
    levels = [level(2, []), level(4, [], wrong=[few(5)])]
    found = overall_verdict(levels, search)
    assert found.valid and list(map(str, found.warnings)) == [f"4/s: {sentence(5)}"]
    assert overall_verdict(levels, replace(search, max_rate_per_s=None)).findings[0].code == "no-rate"


def test_errors_that_differ_only_in_numbers_are_counted_together() -> None:
    words = ["300 tokens exceed 256", "no luck", "400 tokens exceed 256", "300 tokens exceed 256", "no luck"]
    records = [replace(request(0, 0, 1, status="INTERNAL"), error=error) for error in words]
    assert error_counts(records) == {"300 tokens exceed 256": 3, "no luck": 2}


def test_later_turns_are_put_together() -> None:
    records = [request(0, 0, 100 * turn, session="a", turn=turn) for turn in range(1, 12)]
    found = by_turn([*records, request(0, 0, 5, session="a", turn=2, status="UNAVAILABLE")])
    counts = {it.turn: (it.requests, it.failed) for it in found}
    assert counts == {**{str(turn): (1, 0) for turn in range(1, 9)}, "2": (2, 1), "9 and later": (3, 0)}
    latency = found[-1].metrics["latency_ms"]
    assert isinstance(latency, Distribution) and latency.mean == 1000


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


def test_an_interval_of_two_passes_does_not_go_below_zero() -> None:
    found = over_repeats([{"error_share": 0.0}, {"error_share": 0.02}])["error_share"]
    assert isinstance(found, Interval)
    assert found.low == 0 and found.mean == 0.01 and found.high is not None and found.high > 0.13
