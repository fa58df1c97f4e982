from __future__ import annotations

from dataclasses import replace

from trtllm_hpc.bench.totals import kinds_of_errors

from .make import request


def test_errors_are_told_in_their_own_words() -> None:
    words = ["300 tokens exceed 256", "no luck", "400 tokens exceed 256", "300 tokens exceed 256", "no luck"]
    records = [replace(request(0, 0, 1, status="INTERNAL"), error=error) for error in words]
    assert kinds_of_errors(records) == {
        "300 tokens exceed 256 (and 1 more that differ in numbers only)": 3,
        "no luck": 2,
    }
