from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bench.measured import measured
from trtllm_hpc.bench.compare import compare
from trtllm_hpc.bench.comparison import Row
from trtllm_hpc.bench.summary import Verdict
from trtllm_hpc.report.comparison_table import comparison_table, opinion, print_comparison
from trtllm_hpc.report.tables import as_text

SLOWER = Row("8/s", "latency_ms", "latency", "ms", "p99", 100, 120, better=False, beyond=True, p_value=0.01)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (SLOWER, "WORSE"),
        (replace(SLOWER, p_value=None), "WORSE"),
        (replace(SLOWER, p_value=0.3), "may be chance"),
        (replace(SLOWER, beyond=False), "worse, within tolerance"),
        (replace(SLOWER, better=True), "better"),
        (replace(SLOWER, better=None), "same"),
    ],
)
def test_what_is_to_be_thought_of_a_row(row: Row, word: str) -> None:
    assert opinion(row) == word
    assert row.regressed is (word == "WORSE")


def test_the_table_shows_both_figures_the_change_and_how_sure_it_is() -> None:
    found = compare(measured("before", capacity_per_s=150), measured("after", capacity_per_s=75, seed=1))
    found = replace(found, rows=[replace(SLOWER, low=8.0, high=32.0)])
    line = next(line for line in as_text(comparison_table(found)).splitlines() if "latency, p99" in line)
    assert " ".join(line.split()) == "latency, p99 (ms) 100 120 +20.0% 8.00 to 32.0 0.010 WORSE"


def test_a_narrow_terminal_has_fewer_columns_and_no_longer_lines() -> None:
    found = compare(measured("before"), measured("after", seed=1))
    lines = as_text(comparison_table(found, narrow=True), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("latency, p99" in line for line in lines)


def test_every_level_has_a_table_and_sentences_follow(capsys: pytest.CaptureFixture[str]) -> None:
    a = measured("before", rates=(20, 50), provenance={"engine": {"key": "k1"}})
    b = measured("after", rates=(20, 50), provenance={"engine": {"key": "k2"}}, max_tokens=32)
    b = replace(b, measurement=replace(b.measurement, verdict=Verdict(["Sent late."])))
    print_comparison(compare(a, b))
    text = capsys.readouterr().out
    for words in (
        "at 20/s",
        "at 50/s",
        "INVALID: The figures of after may not be used: Sent late.",
        "Asked differently",
        "max_tokens: 16 against 32",
        'engine.key: "k1" against "k2"',
        "note: before has one pass",
    ):
        assert words in text
