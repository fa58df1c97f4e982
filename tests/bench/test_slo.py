from __future__ import annotations

import pytest

from trtllm_hpc.bench.analysis.slo import BadSlo, parse_slo
from trtllm_hpc.bench.results import Distribution
from trtllm_hpc.errors import ExitCode

from .make import request

TTFT = Distribution(mean=100, p50=90, p90=300, p95=400, p99=600, max=900, count=50)


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("ttft.p99<500ms,tpot.p99<50ms", "ttft.p99<500ms,tpot.p99<50ms"),
        ("ttft<0.5s", "ttft.p99<500ms"),
        ("ttft_ms.mean <= 500 ms", "ttft.mean<=500ms"),
        ("latency:2s", "latency.p99<2000ms"),
        ("itl.max<900us", "itl.max<0.9ms"),
        ("errors<1%", "errors<1%"),
        ("errors<0.01", "errors<1%"),
        ("tokens>1200/s, requests:20", "tokens>1200/s,requests>20/s"),
    ],
)
def test_limits_are_read_and_written_back(text: str, meaning: str) -> None:
    assert str(parse_slo(text)) == meaning
    assert str(parse_slo(meaning)) == meaning


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("ttft", "'ttft'"),
        ("ttft.p99", "in quotes"),  # what a shell leaves of ttft.p99<500ms
        ("tttf<5ms", "Did you mean 'ttft'?"),
        ("speed<5ms", "choices: ttft,"),
        ("ttft.p98<5ms", "choices: mean, p50, p90, p95, p99, max"),
        ("ttft.<5ms", "no statistic is called ''"),
        ("ttft<500", "needs a unit"),
        ("ttft<5m", "choices: ms, s, us"),
        ("ttft<e5ms", "'e5' is not a number"),
        ("ttft<-5ms", "'-5' is not a number"),
        ("ttft>5ms", "write <"),
        ("tokens<5", "write >"),
        ("errors.p99<1%", "single number"),
        ("ttft<5ms,tpot", "'tpot'"),
    ],
)
def test_a_limit_that_cannot_be_parsed_is_named(text: str, words: str) -> None:
    with pytest.raises(BadSlo) as caught:
        parse_slo(text)
    assert words in str(caught.value) and caught.value.exit_code is ExitCode.USAGE


def test_a_violation_gives_the_figure_and_its_limit() -> None:
    slo = parse_slo("ttft.p99<500ms,ttft.p50<500ms,errors<1%,requests>10")
    broken = slo.violations({"ttft_ms": TTFT, "error_share": 0.02, "finished_rate_per_s": 11})
    assert broken == ["ttft.p99 is 600ms, not < 500ms.", "errors is 2%, not < 1%."]
    at = {"ttft_ms": TTFT}
    assert parse_slo("ttft<600ms").violations(at) and not parse_slo("ttft<=600ms").violations(at)
    assert parse_slo("ttft<1s").violations({})[0].startswith("ttft.p99 has no value.")


def test_a_request_is_held_to_every_limit_on_times() -> None:
    slo = parse_slo("ttft<150ms,itl.max<100ms,errors<0%")
    fine = request(0, 0, 300, chunks_ms=[100, 190, 280])
    stalled = request(0, 0, 400, chunks_ms=[100, 110, 380])
    assert slo.met_by(fine) and not slo.met_by(stalled)
    assert parse_slo("itl.mean<150ms").met_by(stalled)  # 10 and 270 ms


def test_an_answer_of_one_token_cannot_break_a_limit_between_tokens() -> None:
    short = request(0, 0, 100, chunks_ms=[100], tokens_out=1)
    assert parse_slo("tpot<1ms").met_by(short)
    assert parse_slo("tpot<1ms").judge([short]) is None
