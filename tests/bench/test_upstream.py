from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_hpc.bench.analysis.compare import UPSTREAM_TOLERANCE, Tolerance
from trtllm_hpc.bench.analysis.upstream_table import (
    FIELDS,
    append_csv,
    check_reference,
    format_table,
    upstream_fields,
)
from trtllm_hpc.bench.records import WARMUP
from trtllm_hpc.errors import InvalidMeasurement, RunNotFound

from .make import request

# Sent at 0, 100, ... 900 ms, and answered after 100, 200, ... 1000 ms: the last ends at 1900 ms.
RECORDS = [
    request(0, 100 * place, 200 * place + 100, tokens_in=place, tokens_out=2 * place) for place in range(10)
]
BY_HAND = {
    "Requests/Sec": 10 / 1.9,
    "OP tokens/sec": 90 / 1.9,
    "Avg. latency (ms)": 550,
    "P99 latency (ms)": 1000,  # the 10th of 10
    "P90 latency (ms)": 900,  # the 9th: nearest rank, where NumPy says 910
    "Avg. Input tokens per request": 4.5,
    "Avg. Output tokens per request": 9,
    "Avg. InFlight requests": 0,
    "Total latency (ms)": 1900,
    "Total requests": 10,
}


def test_the_fields_by_hand() -> None:
    assert upstream_fields(RECORDS) == pytest.approx(BY_HAND)


def test_percentiles_are_nearest_rank() -> None:
    # 101 latencies of 1 to 101 ms: places 100 and 91.
    found = upstream_fields([request(0, 0, place) for place in range(1, 102)])
    assert (found["P99 latency (ms)"], found["P90 latency (ms)"]) == pytest.approx((100, 91))


def test_only_measured_answers_count() -> None:
    others = [
        replace(request(0, -500, 5000), phase=WARMUP),
        request(0, 0, 9000, status="UNAVAILABLE", tokens_out=None),
    ]
    assert upstream_fields(RECORDS + others) == pytest.approx(BY_HAND)


@pytest.mark.parametrize("missing", [{"tokens_in": None}, {"tokens_out": None}, {"status": "UNAVAILABLE"}])
def test_a_missing_count_is_an_error_and_not_zero(missing: dict[str, None]) -> None:
    with pytest.raises(InvalidMeasurement):
        upstream_fields([request(0, 0, 100, **missing)])  # type: ignore[arg-type]


def test_the_table_has_nine_fields_by_upstreams_names() -> None:
    lines = format_table(BY_HAND).splitlines()
    names = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert names[0] == "Stat" and len(names) == 10
    assert "Avg. IP tokens per request" in names and "Avg. InFlight requests" not in names
    assert any(line.split("|")[2].strip() == "5.26" for line in lines if "Requests/Sec" in line)
    assert len({len(line) for line in lines}) == 1


def test_rows_are_added_below_one_header(tmp_path: Path) -> None:
    path = tmp_path / "stats.csv"
    append_csv(path, BY_HAND)
    append_csv(path, BY_HAND)
    header = (
        "Requests/Sec,OP tokens/sec,Avg. latency (ms),P99 latency (ms),P90 latency (ms),"
        "Avg. Input tokens per request,Avg. Output tokens per request,Avg. InFlight requests,"
        "Total latency (ms),Total requests"
    )
    assert path.read_text().splitlines()[0] == header == ",".join(FIELDS)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["Avg. latency (ms)"]) for row in rows] == [550, 550]


def test_reference_figures_within_the_tolerance_pass(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    path.write_text(json.dumps({"tiny": {"Avg. latency (ms)": 476.2, "Total requests": 10}}))
    # 550 - 476.2 = 73.8 is just within 50 + 5 % of 476.2 = 73.81.
    assert check_reference(BY_HAND, path, "tiny", UPSTREAM_TOLERANCE) == []
    [sentence] = check_reference(BY_HAND, path, "tiny", Tolerance(0.05, 49))
    assert sentence.startswith("Avg. latency (ms) is 550.00, but 476.2 in ")


def test_faster_than_the_reference_is_off_too_as_upstream_has_it(tmp_path: Path) -> None:
    path = tmp_path / "reference.json"
    path.write_text(json.dumps({"tiny": {"Avg. latency (ms)": 1000}}))
    assert len(check_reference(BY_HAND, path, "tiny", UPSTREAM_TOLERANCE)) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "holds no reference figures"),
        ('{"big": {"Total requests": 1}}', "choices: big"),
        ("[]", "choices: none"),
        ('{"tiny": {}}', "no reference figures for 'tiny'"),
        ('{"tiny": {"Total requests": "many"}}', "not a number"),
        ('{"tiny": {"Speed": 1}}', "unknown field 'Speed'"),
    ],
)
def test_unusable_reference_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "reference.json"
    path.write_text(text)
    with pytest.raises(RunNotFound, match=words):
        check_reference(BY_HAND, path, "tiny", UPSTREAM_TOLERANCE)
