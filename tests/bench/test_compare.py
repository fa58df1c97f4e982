from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from trtllm_hpc.bench.analysis.compare import (
    ComparedFigure,
    Comparison,
    DifferentWorkloads,
    Side,
    Worse,
    compare,
    raise_if_worse,
)
from trtllm_hpc.bench.results import Caveat, Distribution, Figure, Verdict
from trtllm_hpc.errors import ExitCode, InvalidMeasurement

from .measured import measured


def row(comparison: Comparison, key: str, statistic: str | None = None) -> ComparedFigure:
    [found] = [row for row in comparison.rows if (row.key, row.statistic) == (key, statistic)]
    return found


def with_figures(side: Side, figures: Sequence[dict[str, Figure]]) -> Side:
    """The same measurement, whose passes had these figures and no others."""
    [level] = side.measurement.levels
    passes = [replace(level.passes[0], repeat=repeat, metrics=own) for repeat, own in enumerate(figures)]
    return Side(side.name, replace(side.measurement, levels=[replace(level, passes=passes)]))


def with_latencies(side: Side, latencies_ms: Sequence[float]) -> Side:
    """The same measurement, whose passes had these latencies, each the same for every request."""
    return with_figures(
        side, [{"latency_ms": Distribution(ms, ms, ms, ms, ms, ms, 300)} for ms in latencies_ms]
    )


def test_a_measurement_is_not_worse_than_itself() -> None:
    a = measured("a")
    found = compare(a, replace(a, name="b"))
    assert found.rows and not found.regressed
    assert not found.workload and not found.settings and not found.environment
    assert all(row.better is None and row.change in (0, None) for row in found.rows)
    raise_if_worse(found)


def test_a_slower_server_is_worse_and_a_faster_one_is_not() -> None:
    fast = measured("fast", repeats=5, capacity_per_s=150)
    slow = measured("slow", repeats=5, capacity_per_s=75, seed=1)
    worse, better = compare(fast, slow), compare(slow, fast)
    found = row(worse, "latency_ms", "mean")
    assert found.regressed and found.significant and found.better is False
    assert found.low is not None and found.low > 0 and found.change is not None and found.change > 0.5
    assert not better.regressed and row(better, "latency_ms", "mean").better
    words = r"slow is worse than fast by more than 5 % in \d+ of \d+ figures: "
    with pytest.raises(Worse, match=words) as caught:
        raise_if_worse(worse)
    assert caught.value.exit_code is ExitCode.MEASUREMENT
    raise_if_worse(better)


def test_passes_by_hand() -> None:
    a = with_latencies(measured("a"), [99, 100, 101])
    found = row(compare(a, with_latencies(measured("b"), [109, 110, 111])), "latency_ms", "p99")
    assert (found.a, found.b) == (100, 110) and found.change == pytest.approx(0.1)
    # Errors of 1 / sqrt 3 each: 10 apart, Student's factor for 4 degrees of freedom 2.7764.
    reach = 2.7764 * (2 / 3) ** 0.5
    assert (found.low, found.high) == pytest.approx((10 - reach, 10 + reach), rel=1e-4)
    assert found.regressed


def test_a_difference_that_may_be_chance_is_no_regression() -> None:
    a = with_latencies(measured("a"), [80, 100, 120])
    b = with_latencies(measured("b"), [90, 110, 130])
    found = row(compare(a, b), "latency_ms", "mean")
    assert found.beyond and found.better is False and found.significant is False and not found.regressed


def test_a_small_significant_difference_is_no_regression() -> None:
    a = with_latencies(measured("a"), [99.9, 100, 100.1])
    b = with_latencies(measured("b"), [103.9, 104, 104.1])
    found = row(compare(a, b), "latency_ms", "mean")
    assert found.significant and not found.beyond and not found.regressed
    assert row(compare(a, b, 0.03), "latency_ms", "mean").regressed


def test_differences_of_unknown_spread_are_counted_and_are_no_regression() -> None:
    a = with_latencies(measured("a"), [100])
    b = with_latencies(measured("b"), [106])
    found = compare(a, b)
    assert row(found, "latency_ms", "mean").significant is None and not found.regressed
    unknown = "has one pass, so the spread of its figures is unknown."
    assert found.notes == [
        f"a {unknown}",
        f"b {unknown}",
        "3 of 3 figures differ by more than 5 %, 3 of them for the worse, but they decide nothing, because "
        "their spread is unknown. Measure both with --repeats 5.",
    ]
    raise_if_worse(found)
    assert "decide nothing" not in " ".join(compare(a, replace(a, name="b")).notes)


def test_levels_are_matched_and_the_rest_is_named() -> None:
    a = measured("a", rates=(20, 50), repeats=2)
    found = compare(a, measured("b", rates=(50, 80), repeats=2))
    assert {row.level for row in found.rows} == {"50/s"}
    assert found.notes == [
        "Only a has the levels 20/s, which are not compared.",
        "Only b has the levels 80/s, which are not compared.",
    ]


def test_measurements_without_a_common_level_are_refused() -> None:
    with pytest.raises(InvalidMeasurement, match="no level of load in common: 20/s and 80/s"):
        compare(measured("a", rates=(20,)), measured("b", rates=(80,)))


def test_settings_that_differ_are_shown() -> None:
    found = compare(measured("a"), measured("b", request_timeout_seconds=9, min_requests=5, max_late_share=1))
    assert found.settings == ["request_timeout_seconds: 60.0 against 9.0"]
    assert not found.workload and found.judged


def test_different_workloads_are_shown_and_not_judged() -> None:
    short, long = (
        measured(f"{tokens}", max_tokens=tokens // 2, workload={"kind": "normal", "input_tokens": tokens})
        for tokens in (32, 64)
    )
    found = compare(short, long)
    assert found.workload == ["workload.input_tokens: 32 against 64", "max_tokens: 16 against 32"]
    assert not found.settings and not found.judged and found.worse is None
    with pytest.raises(DifferentWorkloads, match=r"workload\.input_tokens: 32 against 64") as caught:
        raise_if_worse(found)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "--allow-different-workload" in (caught.value.hint or "")


def test_other_requests_by_the_same_settings_are_another_workload() -> None:
    digests = [{"workload": {"sha256": digest}} for digest in ("0a", "0b")]
    a, b = measured("a", provenance=digests[0]), measured("b", provenance=digests[1])
    assert compare(a, b).workload == ["the requests differ, although the settings are the same"]
    assert compare(a, measured("b", provenance=digests[0])).workload == []


def test_the_same_requests_from_another_path_are_the_same_workload() -> None:
    digest = {"workload": {"sha256": "0a"}}
    a, b = (
        measured(name, provenance=digest, workload={"kind": "dataset", "path": f"/{name}.jsonl"})
        for name in ("a", "b")
    )
    assert compare(a, b).workload == []
    assert compare(a, measured("c", workload={"kind": "dataset", "path": "/c.jsonl"})).workload == [
        'workload.path: "/a.jsonl" against "/c.jsonl"'
    ]
    bursts = measured("b", provenance=digest, arrival="constant")
    assert compare(measured("a", provenance=digest), bursts).workload == [
        'arrival: "poisson" against "constant"'
    ]


def test_another_engine_is_listed_and_another_job_is_not() -> None:
    a, b = (
        measured(name, provenance={"engine": {"key": key}, "server": {"job_id": key, "ranks": [gpu]}})
        for name, key, gpu in (("a", "k1", {"gpu_models": ["H100"]}), ("b", "k2", {"gpu_models": ["H200"]}))
    )
    found = compare(a, b)
    assert found.environment == [
        'engine.key: "k1" against "k2"',
        'server.ranks.0.gpu_models: ["H100"] against ["H200"]',
    ]


def test_invalid_figures_are_refused_whatever_they_are() -> None:
    a = measured("a")
    invalid = replace(a.measurement, verdict=Verdict([Caveat("test", sentence="Sent late.")]))
    found = compare(a, Side("b", invalid))
    with pytest.raises(InvalidMeasurement, match="The figures of b are invalid: Sent late"):
        raise_if_worse(found)


def test_errors_where_there_were_none_are_a_regression() -> None:
    a = measured("a", repeats=2)
    passes = a.measurement.levels[0].passes
    b = with_figures(a, [{**one.metrics, "error_share": 0.02} for one in passes])
    found = row(compare(a, b), "error_share")
    assert found.change is None and found.regressed


def test_the_more_rows_the_surer_each_must_be() -> None:
    # Benjamini and Hochberg: of two rows the smaller p-value doubles, unless the larger is smaller than that.
    def side(tokens: float, requests: float) -> Side:
        keys = "output_tokens_per_s", "finished_rate_per_s"
        passes = [
            dict[str, Figure](zip(keys, (tokens + at, requests + at), strict=True)) for at in (-1, 0, 1)
        ]
        return with_figures(measured("any"), passes)

    a, b = side(100.0, 10.0), side(97.0, 10.1)
    found = row(compare(a, b), "output_tokens_per_s")
    from scipy.stats import ttest_ind

    alone = ttest_ind([99, 100, 101], [96, 97, 98], equal_var=False).pvalue
    assert found.p_value == pytest.approx(2 * alone)


@pytest.mark.long
def test_two_runs_of_the_same_server_are_seldom_called_different() -> None:
    alarms = 0
    for seed in range(0, 40, 2):
        a, b = (measured("a or b", repeats=5, seed=seed + one) for one in (0, 1))
        alarms += bool(compare(a, b).regressed)
    assert alarms <= 3
