from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.measured import measured
from trtllm_hpc.bench.analysis.compare import ComparedFigure, compare
from trtllm_hpc.bench.results import Caveat, Verdict
from trtllm_hpc.report.measurement_table import comparison_table, remarks, verdict
from trtllm_hpc.report.tables import as_text

SLOWER = ComparedFigure(
    "8/s", "latency_ms", "latency", "ms", "p99", 100, 120, better=False, beyond=True, p_value=0.01
)
FAILING = ComparedFigure(
    "8/s", "error_share", "errors", "share", None, 0, 0.02, better=False, beyond=True, p_value=0.3
)


@pytest.mark.parametrize(
    ("row", "words", "regressed"),
    [
        (SLOWER, "worse", True),
        (replace(SLOWER, p_value=None), "worse, spread unknown", False),
        (replace(SLOWER, p_value=0.3), "worse, perhaps by chance", False),
        (replace(SLOWER, beyond=False), "same", False),
        (replace(SLOWER, better=True), "better", False),
        (replace(SLOWER, better=None, beyond=False), "same", False),
    ],
)
def test_what_is_to_be_thought_of_a_row(row: ComparedFigure, words: str, regressed: bool) -> None:
    assert verdict(row) == words
    assert row.regressed is regressed


def test_the_table_shows_both_figures_the_change_and_how_sure_it_is() -> None:
    found = replace(
        compare(measured("before"), measured("after", seed=1)),
        rows=[replace(SLOWER, low=8.0, high=32.0), FAILING],
    )
    lines = [" ".join(line.split()) for line in as_text(comparison_table(found)).splitlines()]
    assert lines[-3:] == [
        "8/s",
        "latency p99 (ms) 100 120 +20.0% 8.00 to 32.0 worse",
        "errors 0 % 2.00 % - - worse, perhaps by chance",
    ]


def test_a_figure_has_one_line_in_80_columns() -> None:
    found = compare(measured("before"), measured("after", seed=1))
    for rows in (found.rows, [*found.rows, replace(SLOWER, p_value=0.3, low=-1234.5, high=12345.6)]):
        lines = as_text(comparison_table(replace(found, rows=rows)), 80).splitlines()
        assert max(map(len, lines)) <= 80
        assert len(lines) == 2 + len({row.level for row in rows}) + len(rows)


def test_different_workloads_have_no_verdict() -> None:
    a, b = measured("before", repeats=2), measured("after", repeats=2, capacity_per_s=60, max_tokens=32)
    assert "worse" not in as_text(comparison_table(compare(a, b)))
    assert "worse" in as_text(comparison_table(compare(a, b, allow_different_workload=True)))


def test_everything_that_must_be_known_is_remarked() -> None:
    a = measured("before", provenance={"engine": {"key": "k1"}})
    b = measured("after", provenance={"engine": {"key": "k2"}}, max_tokens=32)
    b = replace(
        b,
        measurement=replace(b.measurement, verdict=Verdict([Caveat("test", sentence="Sent late.")])),
    )
    lines = remarks(compare(a, b))
    for line in (
        "not valid: The figures of after are invalid: Sent late.",
        "different workload: max_tokens: 16 against 32",
        'different environment: engine.key: "k1" against "k2"',
    ):
        assert line in lines
    assert any(line.startswith("note: before has one pass") for line in lines)
