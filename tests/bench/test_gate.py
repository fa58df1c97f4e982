from __future__ import annotations

from trtllm_hpc.bench.gate import judge
from trtllm_hpc.bench.tokens import BY_REQUEST

from .make import request

FINE = [request(0, 0, 100)]
FAILED = [request(0, 0, 100, status="UNAVAILABLE", counted_by=None)]


def test_a_good_measurement_passes_without_a_word() -> None:
    verdict = judge(FINE * 100, 10)
    assert (verdict.findings, verdict.warnings, verdict.late_share) == ([], [], 0.0)


def test_one_failure_in_a_hundred_passes_and_two_do_not() -> None:
    assert judge(FINE * 99 + FAILED, 10).findings == []
    assert judge(FINE * 98 + FAILED * 2, 10).findings == ["2 of 100 requests failed; at most 1 % may."]


def test_no_answer_at_all_is_said_so() -> None:
    assert judge(FAILED * 3, 10).findings == ["No request was answered."]


def test_late_sends_are_warned_of() -> None:
    # At 10/s a send may be 1 ms + 1 % of 100 ms = 2 ms late.
    in_time, late = request(0, 1.9, 100), request(0, 2.1, 100)
    assert judge([in_time] * 100, 10).warnings == []
    assert judge([in_time] * 99 + [late], 10).warnings == []
    verdict = judge([in_time] * 98 + [late] * 2, 10)
    assert verdict.late_share == 0.02 and verdict.findings == []
    assert verdict.warnings[0].startswith("2 of 100 requests were sent more than 2.0 ms late")


def test_tokens_that_nobody_counted_are_warned_of() -> None:
    assert "not counted" in judge([request(0, 0, 1, counted_by=BY_REQUEST)], 10).warnings[0]
