from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from trtllm_hpc.bench.analysis.validity import check_pass, server_count_doubt
from trtllm_hpc.bench.levels import ClosedLoop, OpenLoop
from trtllm_hpc.bench.records import WARMUP, RequestRecord
from trtllm_hpc.bench.results import ClientUse, Energy, Verdict
from trtllm_hpc.bench.server_metrics.sampling import ServerTokens
from trtllm_hpc.bench.workload.request import BY_REQUEST, BY_RESPONSES, BY_TOKENIZER
from trtllm_hpc.config.benchmark import Benchmark

from .make import IDLE, request, sample
from .queueing import last_due_ms, served

SETTINGS = Benchmark()


def steady(count: int = 100, **kwargs: object) -> list[RequestRecord]:
    """So many requests, evenly over a second, each answered in 50 ms."""
    gap_ms = 1000 / count
    return [
        request(place * gap_ms, place * gap_ms, place * gap_ms + 50, **kwargs)  # type: ignore[arg-type]
        for place in range(count)
    ]


def failed(record: RequestRecord) -> RequestRecord:
    return replace(record, status="UNAVAILABLE", output_tokens=None, output_by=None)


def late(record: RequestRecord, by_ms: float) -> RequestRecord:
    return replace(record, sent_s=record.scheduled_s + by_ms / 1e3)


def delayed(record: RequestRecord, by_ms: float) -> RequestRecord:
    """Late, and answered as much later."""
    return replace(late(record, by_ms), ended_s=record.ended_s + by_ms / 1e3)


def verdict(
    records: Sequence[RequestRecord],
    client: ClientUse = IDLE,
    settings: Benchmark = SETTINGS,
    **kwargs: object,
) -> Verdict:
    return check_pass(sample(records, **kwargs), client, settings)  # type: ignore[arg-type]


def only_finding(records: Sequence[RequestRecord], **kwargs: object) -> str:
    """The one sentence for which figures are refused."""
    found = verdict(records, **kwargs)  # type: ignore[arg-type]
    assert not found.valid
    [sentence] = found.findings
    return sentence


def test_a_good_pass_has_no_findings_and_no_warnings() -> None:
    assert verdict(steady()) == Verdict([], [], client_limited=False, unsteady=False)


def test_a_gpu_that_is_too_warm_is_a_note() -> None:
    hot = Energy(100.0, slowed="GPU3 of n1 (hw_thermal, 4.0 of 10 s)")
    found = verdict(steady(), energy=hot)
    assert found.valid and "GPU3 of n1 (hw_thermal, 4.0 of 10 s)" in found.warnings[0]
    assert verdict(steady(), energy=replace(hot, slowed="")).warnings == []


def test_one_failure_in_a_hundred_passes_and_two_do_not() -> None:
    records = steady(200)
    assert verdict([failed(record) for record in records[:2]] + records[2:]).valid
    sentence = only_finding([failed(record) for record in records[:3]] + records[3:])
    assert sentence.startswith("3 of 200 requests failed (1.5%)") and "max_error_share" in sentence


def test_the_share_of_errors_is_the_settings() -> None:
    records = steady()
    half = [failed(record) for record in records[:50]] + records[50:]
    assert verdict(half, settings=Benchmark(max_error_share=0.5)).valid
    assert not verdict(half, settings=Benchmark(max_error_share=0.49)).valid


def test_failures_of_the_warm_up_do_not_count() -> None:
    warmup = [replace(failed(record), phase=WARMUP) for record in steady(50)]
    assert verdict(warmup + steady()).findings == []


def test_without_any_answer_there_is_one_finding() -> None:
    found = verdict([failed(record) for record in steady(3)])
    assert found.findings == ["None of 3 requests was answered; the server's errors say why."]
    assert "No request was due" in verdict([]).findings[0]


@pytest.mark.parametrize("words", ["no connection to n1:8001: refused", "Cannot connect to host n1:8000"])
def test_a_server_that_goes_away_is_a_finding(words: str) -> None:
    records = steady()
    lost = replace(failed(records[60]), error="the connection was lost")
    refused = [replace(failed(record), error=words) for record in records[61:]]
    told = "The server was gone at the end: the last 40 requests lost the connection or could not connect."
    assert verdict([*records[:60], lost, *refused]).findings[0] == told
    assert verdict(refused).findings[0].startswith("The server was gone at the end: the last 39")
    warming = [replace(record, phase=WARMUP) for record in refused]
    assert verdict(warming).findings == [
        "The server was gone at the end: the last 39 requests lost the connection or could not connect."
    ]
    # One that is there again, or that lives and refuses, is not gone.
    assert "gone" not in str(verdict([*refused[:30], *records[91:]]).findings)
    busy = [replace(failed(record), error="exceeds maximum queue size") for record in records[60:]]
    assert "gone" not in str(verdict([*records[:60], *busy]).findings)


def test_a_server_that_answers_nothing_any_more_hangs() -> None:
    """It is no matter of the time limit, as it is where the requests that time out are among others."""
    timed_out = [replace(one, status="DEADLINE_EXCEEDED", chunks_s=()) for one in steady(40)]
    assert "The server hangs: it answered 30 requests, and none of the 10 that ended after them." in (
        verdict([*steady(40)[:30], *timed_out[30:]]).findings
    )
    [none] = verdict(timed_out).findings
    assert none == "None of 40 requests was answered in time: the server hangs, or is far too slow."
    for slow in ([*timed_out[:10], *steady(40)[10:]], [*steady(40)[:38], *timed_out[38:]]):
        assert "hangs" not in " ".join(verdict(slow).findings)


def test_sends_late_by_more_than_a_millisecond_and_a_hundredth_of_the_gap() -> None:
    # 100 in a second: a send may be 1 ms + 1 % of 10 ms = 1.1 ms late.
    records = steady()
    assert verdict([late(record, 1.09) for record in records]).valid
    assert verdict([late(records[0], 1.2), *records[1:]]).valid
    sentence = only_finding([late(record, 1.2) for record in records[:12]] + [*records[12:]])
    assert sentence.startswith("12 of 100 requests (12.0%) were sent more than 1.10 ms late")
    assert "the worst by 1.2 ms" in sentence and "--processes" in sentence


def test_a_few_late_sends_count_where_a_figure_shows_them() -> None:
    first, *others = steady(20)
    found = verdict([delayed(first, 2), *others])
    assert found.valid and not found.client_limited
    assert "5.0% of the requests were sent late (the limit is 1%)" in found.warnings[0]
    assert "1 of 20 requests (5.0%)" in only_finding([delayed(first, 30), *others])


def test_the_gap_is_that_of_the_rate() -> None:
    # 10 in a second: 1 ms + 1 % of 100 ms = 2 ms.
    assert verdict([late(record, 1.99) for record in steady(10)]).valid
    assert not verdict([late(record, 2.01) for record in steady(10)]).valid


def test_a_closed_loop_that_fills_its_slots_late_is_refused_too() -> None:
    records = [late(record, 5) for record in steady()]
    assert "late" in only_finding(records, level=ClosedLoop(4))


def test_a_busy_client_is_the_limit() -> None:
    busy = ClientUse(cpu_s=0.9, wall_s=1.0, busiest_share=0.9)
    sentence = only_finding(steady(), client=busy)
    assert "used 90% of a core" in sentence
    assert verdict(steady(), client=replace(busy, busiest_share=0.89)).valid


def test_a_client_at_its_limit_is_marked() -> None:
    assert verdict([late(record, 50) for record in steady()]).client_limited
    assert not verdict([failed(record) for record in steady()[:5]] + steady()[5:]).client_limited


def test_unknown_token_counts_are_a_finding() -> None:
    records = [*steady()[1:], request(0, 0, 50, tokens_out=None)]
    assert only_finding(records).startswith("1 of 100 answers have no known number of output tokens")


def test_empty_answers_are_like_errors() -> None:
    empty = request(0, 0, 50, tokens_out=0)
    assert verdict([*steady()[1:], empty]).valid
    assert only_finding([*steady()[2:], empty, empty]).startswith("2 of 100 answers are empty")


@pytest.mark.parametrize("given", [9, 11])
def test_exact_output_is_exact(given: int) -> None:
    records = [*steady()[1:], request(0, 0, 50, tokens_out=given, asked=10)]
    assert verdict(records).valid
    sentence = only_finding(records, settings=Benchmark(exact_output=True))
    assert (
        sentence.startswith("1 of 100 answers do not have the requested length")
        and f"{given} tokens and not 10" in sentence
    )
    assert verdict(steady(), settings=Benchmark(exact_output=True)).valid


@pytest.mark.parametrize(("given", "valid"), [(93, False), (96, True), (100, True), (101, False)])
def test_exact_output_of_a_stream_allows_for_joined_tokens_that_look_like_one(
    given: int, valid: bool
) -> None:
    records = steady(tokens_out=given, asked=100, output_by=BY_RESPONSES)
    assert verdict(records, settings=Benchmark(exact_output=True)).valid == valid


def test_too_few_requests() -> None:
    assert only_finding(steady(9)).startswith(
        "9 requests were measured; at least 10 are needed (min_requests)."
    )
    assert verdict(steady(10)).valid
    assert verdict(steady(9), settings=Benchmark(min_requests=9)).valid


def test_a_window_that_is_too_short() -> None:
    records = [request(place * 9, place * 9, place * 9 + 50) for place in range(100)]
    assert "is 0.90 s long; at least 1.00 s are needed (min_window_seconds)" in only_finding(
        records, end_ms=900
    )
    assert verdict(records, end_ms=900, settings=Benchmark(min_window_seconds=0.9)).valid


def test_a_window_that_is_shorter_than_an_answer_takes() -> None:
    records = [replace(record, ended_s=record.scheduled_s + 1.5) for record in steady()]
    assert "at least 1.50 s are needed (the median latency)" in only_finding(records)


def test_all_findings_are_reported_at_once() -> None:
    records = [failed(request(0, 0, 1)), request(0, 90, 91, tokens_out=None)]
    busy = ClientUse(cpu_s=1, wall_s=1, busiest_share=1)
    assert len(verdict(records, client=busy, end_ms=100).findings) == 6


def test_the_requested_number_of_tokens_is_no_count() -> None:
    found = verdict(steady(output_by=BY_REQUEST))
    assert not found.valid and "100 of 100 answers have no known number of output tokens" in found.findings[0]


def test_failed_requests_within_the_limit_are_a_warning() -> None:
    found = verdict([*steady(199), replace(steady()[0], status="UNAVAILABLE", output_tokens=None)])
    assert found.valid and any(
        "1 of 200 requests failed and has no latency" in warning for warning in found.warnings
    )


def test_counts_from_a_poor_source_are_warned_of() -> None:
    found = verdict(steady(output_by=BY_RESPONSES))
    assert (
        found.valid
        and len(found.warnings) == 1
        and found.warnings[0].startswith("In all 100 answers, each response was counted as one output token.")
        and "--tokenizer" in found.warnings[0]
    )
    records = steady(output_by=BY_RESPONSES)
    assert check_pass(sample(records), IDLE, SETTINGS, texts_checked=True).warnings == []


def test_answers_whose_text_has_few_of_their_tokens_are_warned_of() -> None:
    """As of a model whose tokens are mostly special ones, and 128 tokens an answer."""
    records = steady(tokens_out=3, asked=128, output_by=BY_TOKENIZER)
    [warning] = verdict(records).warnings
    assert warning.startswith(
        "300 of 12,800 requested output tokens were found in the answers' texts: either"
    )
    assert warning.endswith("The ids of --model tensorrt_llm are counted exactly.")
    assert verdict(steady(tokens_out=40, asked=128, output_by=BY_TOKENIZER)).warnings == [], "short answers"
    assert verdict(steady(tokens_out=3, asked=128)).warnings == [], "the model says so"


def test_with_exact_output_a_text_must_have_about_the_requested_tokens() -> None:
    exact = Benchmark(exact_output=True)
    [warning] = verdict(steady(tokens_out=9, output_by=BY_TOKENIZER), settings=exact).warnings
    assert warning.startswith("900 of 1,000 requested output tokens") and "exact_output" in warning
    near = [*steady(90, output_by=BY_TOKENIZER), *steady(10, tokens_out=9, output_by=BY_TOKENIZER)]
    assert verdict(near, settings=exact).warnings == []


@pytest.mark.parametrize(("tokens", "doubtful"), [(20_600, True), (1050, False), (990, False), (500, True)])
def test_the_servers_own_count_is_compared_with_the_clients(tokens: int, doubtful: bool) -> None:
    """100 answers of 10 tokens."""
    by_text, server = steady(output_by=BY_TOKENIZER), ServerTokens(tokens, -0.1, 3.0)
    doubt = server_count_doubt(by_text, server)
    assert (doubt is not None) == doubtful
    if doubt is not None:
        assert f"counted {tokens:,} output tokens" in doubt and "the client 1,000" in doubt
        assert "--model tensorrt_llm" in doubt
    assert server_count_doubt(steady(), server) is None, "the model itself counted"
    assert server_count_doubt(by_text, None) is None


def test_the_tokens_that_the_leader_asks_for_in_pauses_cause_no_doubt() -> None:
    """In 8 s it looks twice at two models: four tokens beside ten."""
    by_text = steady(1, output_by=BY_TOKENIZER)
    assert server_count_doubt(by_text, ServerTokens(14, -0.1, 7.9)) is None
    assert server_count_doubt(by_text, ServerTokens(18, -0.1, 7.9)) is not None


def test_answers_that_the_last_page_of_metrics_may_lack_cause_no_doubt() -> None:
    """Those of the last second, and those before the first page."""
    by_text = steady(output_by=BY_TOKENIZER)
    assert server_count_doubt(by_text, ServerTokens(200, -0.1, 1.25)) is None
    assert server_count_doubt(by_text, ServerTokens(200, 0.85, 9.0)) is None


def test_chunks_that_do_not_add_up_are_warned_of() -> None:
    streamed = [replace(record, chunks_s=(record.ended_s,), chunk_tokens=(10,)) for record in steady()]
    assert verdict(streamed).warnings == []
    assert "responses" in verdict([replace(record, chunk_tokens=(1,)) for record in streamed]).warnings[0]


def test_fewer_than_a_hundred_have_no_p99() -> None:
    assert verdict(steady(99)).warnings == [
        "99 requests were answered: below 100, p99 is practically the maximum."
    ]


def test_invalid_figures_have_no_warning_about_p99() -> None:
    assert verdict(steady(9)).findings and verdict(steady(9)).warnings == []


def test_one_request_is_not_several() -> None:
    assert only_finding([request(0, 0, 50)]).startswith("1 request was measured;")
    warned = verdict([request(0, 0, 50)], settings=Benchmark(min_requests=1)).warnings
    assert warned == ["1 request was answered: below 100, p99 is practically the maximum."]


def test_an_interruption_is_a_warning() -> None:
    assert "interrupted" in check_pass(sample(steady()), IDLE, SETTINGS, interrupted=True).warnings[0]
    nothing = check_pass(sample([]), IDLE, SETTINGS, interrupted=True)
    assert nothing.findings and nothing.warnings


def test_a_server_that_does_not_keep_up_is_a_warning() -> None:
    records = served(130, requests=400, warmup=40)
    found = verdict(records, end_ms=last_due_ms(records), level=OpenLoop(130))
    assert found.unsteady and found.warnings[0].startswith("The load was not steady: latency grew from")


def test_a_server_that_keeps_up_is_rarely_flagged() -> None:
    flagged = 0
    for seed in range(50):
        records = served(70, requests=200, warmup=60, seed=seed)
        flagged += verdict(records, end_ms=last_due_ms(records), level=OpenLoop(70)).unsteady
    assert flagged <= 3


@pytest.mark.parametrize(("growth_ms", "unsteady"), [(15, False), (60, True)])
def test_a_drift_that_is_sure_but_small_does_not_matter(growth_ms: float, unsteady: bool) -> None:
    # Evenly from 100 ms: the halves differ by 15 / 2 of 100 + 15 / 4, and by 60 / 2 of 100 + 60 / 4.
    records = [request(due, due, due + 100 + growth_ms * due / 1000) for due in range(0, 1000, 5)]
    assert verdict(records).unsteady is unsteady


def test_a_load_that_is_made_to_rise_is_not_tested() -> None:
    records = served(130, requests=400)
    rising = OpenLoop(130, ramp_to_per_s=200)
    assert not verdict(records, end_ms=last_due_ms(records), level=rising).unsteady
