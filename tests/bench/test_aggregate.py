"""Intervals, errors and the verdict of a whole measurement, from its passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtllm_hpc.bench.analysis.aggregate import error_counts, over_repeats, overall_verdict
from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.results import (
    Distribution,
    Figure,
    Interval,
    LevelResult,
    Pass,
    SearchResult,
    Verdict,
    Window,
)

from .make import IDLE, request

FEW = "{} requests were answered: below 100, p99 is practically the maximum."


def level(rate: float, *passes: Sequence[str], wrong: Sequence[str] = ()) -> LevelResult:
    """A level with these warnings, a list a pass."""
    window = Window(0, 1)
    made = [
        Pass(repeat, 0, 1, window, 10, 10, 0, {}, IDLE, Verdict(list(wrong), list(warnings)))
        for repeat, warnings in enumerate(passes)
    ]
    return LevelResult(OpenLoop(rate), made, {})


def warnings(*levels: LevelResult) -> list[str]:
    return overall_verdict(levels, None).warnings


def test_a_single_pass_is_not_named() -> None:
    assert warnings(level(2, ["Look out."])) == ["Look out."]


def test_a_repeated_sentence_appears_once_with_its_levels() -> None:
    assert warnings(level(2, ["Look out."]), level(4, []), level(8, ["Look out."])) == ["2/s, 8/s: Look out."]


def test_sentences_that_differ_in_numbers_only_are_one_with_the_range() -> None:
    [sentence] = warnings(level(2, [FEW.format(20)]), level(4, [FEW.format(95)]), level(8, [FEW.format(5)]))
    assert sentence == f"all levels: {FEW.format('5 to 95')}"
    shares = [["3 of 200 requests failed (1.5%)."], ["1,200 of 4000 requests failed (30.0%)."]]
    assert warnings(level(2, shares[0]), level(4, shares[1])) == [
        "all levels: up to 1,200 of 4000 requests failed (1.5 to 30.0%)."
    ]


def test_a_count_and_its_total_are_read_together() -> None:
    each, some = "In all {} answers, look out.", "In {} of {} answers, look out."
    levels = [level(2, [each.format(10)]), level(4, [each.format(160)])]
    assert warnings(*levels) == ["all levels: In all 10 to 160 answers, look out."]
    levels = [level(2, [some.format(3, 10)]), level(4, [some.format(16, 160)]), level(8, [])]
    assert warnings(*levels) == ["2/s, 4/s: In up to 3 of 10 answers, look out."]
    assert warnings(level(2, ["3 of 10 failed."], ["1 of 10 failed."])) == ["Up to 3 of 10 failed."]


def test_numbers_within_names_are_left_alone() -> None:
    [sentence] = warnings(
        level(2, ["p99 of 20 is bad (max_p99)."]), level(4, ["p99 of 30 is bad (max_p99)."])
    )
    assert sentence == "all levels: p99 of 20 to 30 is bad (max_p99)."
    assert warnings(level(2, ["p50 is bad."]), level(4, ["p99 is bad."])) == [
        "2/s: p50 is bad.",
        "4/s: p99 is bad.",
    ]


def test_passes_are_named_where_not_all_of_a_level_are_meant() -> None:
    both, one = level(2, ["Bad 1."], ["Bad 2."]), level(4, [], ["Bad 3."])
    assert warnings(both, one) == ["2/s, 4/s (pass 2): Bad 1 to 3."]
    assert warnings(both) == ["Bad 1 to 2."]
    assert warnings(one) == ["pass 2: Bad 3."]


def test_findings_of_a_search_become_warnings() -> None:
    search = SearchResult("ttft.p99<1s", 2.0, 4.0, [])
    found = overall_verdict([level(2, []), level(4, [], wrong=["3 failed."])], search)
    assert found.valid and found.warnings == ["4/s: 3 failed."]


def test_errors_that_differ_only_in_numbers_are_counted_together() -> None:
    words = ["300 tokens exceed 256", "no luck", "400 tokens exceed 256", "300 tokens exceed 256", "no luck"]
    records = [replace(request(0, 0, 1, status="INTERNAL"), error=error) for error in words]
    assert error_counts(records) == {
        "300 tokens exceed 256 (and 1 more that differ only in numbers)": 3,
        "no luck": 2,
    }


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
