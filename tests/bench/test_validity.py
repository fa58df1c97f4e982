from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from trtllm_hpc.bench.analysis import validity
from trtllm_hpc.bench.analysis.validity import SENTENCES, check_pass, sentence_of
from trtllm_hpc.bench.records import DRAIN, WARMUP, RequestRecord
from trtllm_hpc.bench.results import Caveat, ClientUse, ClosedLoop, Energy, OpenLoop, Verdict
from trtllm_hpc.bench.workload.request import BY_TOKENIZER
from trtllm_hpc.config.benchmark import Benchmark

from .make import IDLE, request, sample
from .queueing import last_due_ms, served

SETTINGS = Benchmark()
EXACT = Benchmark(exact_output=True)


def steady(count: int = 100, **kwargs: object) -> list[RequestRecord]:
    """So many requests, evenly over a second, each answered in 50 ms."""
    gap_ms = 1000 / count
    return [
        request(place * gap_ms, place * gap_ms, place * gap_ms + 50, **kwargs)  # type: ignore[arg-type]
        for place in range(count)
    ]


def failed(record: RequestRecord, status: str = "UNAVAILABLE", error: str = "it broke") -> RequestRecord:
    return replace(record, status=status, error=error, output_tokens=None, output_by=None)


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


def codes(records: Sequence[RequestRecord], **kwargs: object) -> list[str]:
    """The codes for which figures are refused."""
    return [finding.code for finding in verdict(records, **kwargs).findings]  # type: ignore[arg-type]


def warned(records: Sequence[RequestRecord], **kwargs: object) -> list[str]:
    """The codes of what is shown with valid figures."""
    found = verdict(records, **kwargs)  # type: ignore[arg-type]
    assert found.valid, found.findings
    return [warning.code for warning in found.warnings]


def test_a_good_pass_has_no_findings_and_no_warnings() -> None:
    assert verdict(steady()) == Verdict([], [])


def test_every_finding_has_a_sentence() -> None:
    folder = Path(validity.__file__).parents[1]
    source = "".join(file.read_text(encoding="utf-8") for file in folder.rglob("*.py"))
    made = set(re.findall(r'Caveat\(\s*"([a-z-]+)"(?!, sentence)', source)) | {"no-answer"}
    assert made == SENTENCES.keys()


def test_a_sentence_names_the_numbers_the_limit_and_what_to_do() -> None:
    [finding] = verdict([*map(failed, steady(200)[:3]), *steady(200)[3:]]).findings
    assert (finding.value, finding.limit) == (0.015, 0.01)
    assert sentence_of(finding) == (
        "3 of 200 requests failed (1.5%); the limit is 1.00% (max_error_share). The figures cover only the "
        "answered requests."
    )


def test_a_gpu_that_is_too_warm_is_a_note() -> None:
    hot = Energy(100.0, slowed="GPU3 of n1 (hw_thermal, 4.0 of 10 s)")
    [warning] = verdict(steady(), energy=hot).warnings
    assert "GPU3 of n1 (hw_thermal, 4.0 of 10 s)" in sentence_of(warning)
    assert warned(steady(), energy=replace(hot, slowed="")) == []


def test_errors_are_counted_in_the_window_and_limited_by_the_settings() -> None:
    records = steady(200)
    assert warned([*map(failed, records[:2]), *records[2:]]) == ["some-errors"]
    assert codes([*map(failed, records[:3]), *records[3:]]) == ["errors"]
    half = [*map(failed, records[:100]), *records[100:]]
    assert warned(half, settings=Benchmark(max_error_share=0.5)) == ["some-errors"]
    assert codes(half, settings=Benchmark(max_error_share=0.49)) == ["errors"]
    assert warned([*(replace(failed(it), phase=WARMUP) for it in steady(50)), *steady()]) == []


def test_without_any_answer_there_is_one_finding() -> None:
    assert codes(list(map(failed, steady(3)))) == ["no-answer"]
    assert codes([]) == ["nothing-due"]


@pytest.mark.parametrize("words", ["no connection to n1:8001: refused", "Cannot connect to host n1:8000"])
def test_a_server_that_goes_away_is_a_finding(words: str) -> None:
    records = steady()
    lost = failed(records[60], error="the connection was lost")
    refused = [failed(record, error=words) for record in records[61:]]
    gone = verdict([*records[:60], lost, *refused]).findings[0]
    assert (gone.code, gone.value) == ("server-gone", 40)
    assert codes([replace(record, phase=WARMUP) for record in refused]) == ["server-gone"]
    # One that is there again, or that lives and refuses, is not gone.
    assert codes([*refused[:30], *records[91:]]) == ["errors"]
    busy = [failed(record, error="exceeds maximum queue size") for record in records[60:]]
    assert codes([*records[:60], *busy]) == ["errors"]


def test_a_server_that_answers_nothing_any_more_hangs() -> None:
    """It is no matter of the time limit, as it is where the requests that time out are among others."""
    timed_out = [failed(one, "DEADLINE_EXCEEDED") for one in steady(40)]
    hangs = verdict([*steady(40)[:30], *timed_out[30:]]).findings[0]
    assert (hangs.code, hangs.value, hangs.facts) == ("server-hangs", 10, {"answered": 30})
    assert codes(timed_out) == ["no-answer-in-time"]
    assert codes([*timed_out[:10], *steady(40)[10:]]) == ["errors"]
    assert codes([*steady(40)[:38], *timed_out[38:]]) == ["errors"]


@pytest.mark.parametrize(("latency_ms", "allowed_ms"), [(20, 1.0), (200, 4.0)])
def test_a_send_may_be_late_by_a_millisecond_or_a_fiftieth_of_the_latency(
    latency_ms: float, allowed_ms: float
) -> None:
    def sent_late(by_ms: float) -> list[RequestRecord]:
        return [request(10 * at, 10 * at + by_ms, 10 * at + by_ms + latency_ms) for at in range(100)]

    assert "late" not in codes(sent_late(allowed_ms - 0.01))
    [finding] = verdict(sent_late(allowed_ms + 0.01)).findings
    assert finding.code == "late" and finding.facts["allowed_ms"] == pytest.approx(allowed_ms)
    assert "--set processes" in sentence_of(finding)


def test_a_few_late_sends_count_where_a_figure_shows_them() -> None:
    assert warned([late(steady()[0], 1.2), *steady()[1:]]) == []
    first, *others = steady(20)
    assert warned([delayed(first, 2), *others]) == ["some-late", "few-answers"]
    assert codes([delayed(first, 30), *others]) == ["late"]


@pytest.mark.parametrize(
    ("share", "stall_s", "cause"),
    [
        (0.2, 0.0, "in one burst"),
        (0.8, 0.0, "use more client processes, e.g. --set processes=4"),
        (0.2, 0.002, "without a core for up to 2.0 ms"),
    ],
)
def test_a_closed_loop_whose_client_is_slow_is_refused_with_the_cause(
    share: float, stall_s: float, cause: str
) -> None:
    client = replace(IDLE, busiest_share=share, stall_s=stall_s, stamp_bound_s=0.0004)

    def of_turnaround(by_ms: float) -> list[Caveat]:
        """Each slot waits so long before an answer of 49 ms."""
        freed = [
            replace(one, scheduled_s=one.scheduled_s + 0.001, freed_s=one.scheduled_s) for one in steady()
        ]
        sent = [replace(one, sent_s=(one.freed_s or 0.0) + by_ms / 1e3) for one in freed]
        return verdict(sent, client=client, level=ClosedLoop(4)).findings

    assert of_turnaround(0.9) == []
    [finding] = of_turnaround(1.1)
    assert finding.code == "slow-turnaround" and finding.value == pytest.approx(1.1 / 50)
    assert cause in sentence_of(finding)


def test_stamps_that_may_be_late_by_much_of_a_figure_are_refused() -> None:
    """By a fiftieth of a TTFT of 40 ms, or a twentieth of 10 ms between tokens."""
    streams = [
        request(10 * at, 10 * at, 10 * at + 50, chunks_ms=[10 * at + 40, 10 * at + 50]) for at in range(100)
    ]
    for bound_s, figure in ((0.00049, None), (0.00051, "inter-token latency (p99)"), (0.00081, "TTFT")):
        found = verdict(streams, client=replace(IDLE, stamp_bound_s=bound_s)).findings
        assert [one.facts["figure"] for one in found] == ([] if figure is None else [figure])
        assert all(one.code == "late-stamps" for one in found)
    lenient = Benchmark(max_late_share=1.0)
    assert verdict(streams, client=replace(IDLE, stamp_bound_s=1.0), settings=lenient).valid


def test_a_client_at_its_limit_is_marked() -> None:
    busy = ClientUse(cpu_s=0.9, wall_s=1.0, busiest_share=0.9)
    found = verdict(steady(), client=busy)
    assert found.client_limited and [finding.code for finding in found.findings] == ["client-busy"]
    assert verdict(steady(), client=replace(busy, busiest_share=0.89)).valid
    assert verdict([late(record, 50) for record in steady()]).client_limited
    assert not verdict([*map(failed, steady()[:5]), *steady()[5:]]).client_limited


def test_unknown_tokens_are_a_warning() -> None:
    assert warned([*steady()[1:], request(0, 0, 50, tokens_out=None)]) == ["tokens-unknown"]


def test_empty_answers_are_like_errors() -> None:
    empty = request(0, 0, 50, tokens_out=0)
    assert warned([*steady()[1:], empty]) == []
    assert codes([*steady()[2:], empty, empty]) == ["empty-answers"]


@pytest.mark.parametrize("given", [9, 11])
def test_exact_output_is_exact(given: int) -> None:
    records = [*steady()[1:], request(0, 0, 50, tokens_out=given, asked=10)]
    assert warned(records) == warned(steady(), settings=EXACT) == []
    assert codes(records, settings=EXACT) == ["wrong-length"]


def test_too_few_requests() -> None:
    assert codes(steady(9)) == ["few-requests"]
    assert warned(steady(10)) == warned(steady(9), settings=Benchmark(min_requests=9)) == ["few-answers"]
    assert "few-answers" not in warned(steady(100))


def test_a_window_is_as_long_as_the_settings_and_an_answer_want() -> None:
    records = [request(place * 9, place * 9, place * 9 + 50) for place in range(100)]
    assert codes(records, end_ms=900) == ["short-window"]
    assert warned(records, end_ms=900, settings=Benchmark(min_window_seconds=0.9)) == []
    [finding] = verdict([replace(record, ended_s=record.scheduled_s + 1.5) for record in steady()]).findings
    assert finding.limit == pytest.approx(1.5) and finding.facts == {"why": "the median latency"}


def test_with_exact_output_a_text_must_have_about_the_requested_tokens() -> None:
    assert warned(steady(tokens_out=9, output_by=BY_TOKENIZER), settings=EXACT) == ["text-length"]
    near = [*steady(90, output_by=BY_TOKENIZER), *steady(10, tokens_out=9, output_by=BY_TOKENIZER)]
    assert warned(near, settings=EXACT) == []


@pytest.mark.parametrize(("counted", "named"), [(100, False), (104, False), (11, True), (140, True)])
def test_other_input_tokens_than_asked_for_are_named(counted: int, named: bool) -> None:
    records = [request(at, at, at + 5, tokens_in=counted, prompt_tokens=100) for at in range(0, 1000, 5)]
    found = verdict(records)
    assert found.valid
    notes = [it for it in found.warnings if it.code == "input-length"]
    assert [it.facts for it in notes] == ([{"asked": 100, "given": counted}] if named else [])
    assert all(
        f"has 100 input tokens per request, but the server counted {counted}" in sentence_of(it)
        for it in notes
    )


def test_responses_with_several_tokens_are_warned_of() -> None:
    streamed = [replace(record, chunks_s=(record.ended_s,), chunk_tokens=(10,)) for record in steady()]
    assert warned(streamed) == []
    [warning] = verdict([replace(record, chunk_tokens=(4,)) for record in streamed]).warnings
    assert (warning.code, warning.value) == ("joined-tokens", 2.5)


def test_what_counts_for_no_figure_is_warned_of() -> None:
    turns = [replace(record, turn=2) for record in steady(130)]
    drained = [replace(record, phase=DRAIN) for record in turns[:30]]
    assert warned([*drained, *turns[30:]]) == ["turns-after-window"]
    assert warned([*drained[:26], *turns[26:]]) == []


def test_an_interruption_is_a_warning() -> None:
    assert check_pass(sample(steady()), IDLE, SETTINGS, interrupted=True).warnings[0].code == "interrupted"
    nothing = check_pass(sample([]), IDLE, SETTINGS, interrupted=True)
    assert nothing.findings and nothing.warnings


def test_a_server_that_does_not_keep_up_is_a_warning() -> None:
    records = served(130, requests=400, warmup=40)
    found = verdict(records, end_ms=last_due_ms(records), level=OpenLoop(130))
    assert found.unsteady and [warning.code for warning in found.warnings] == ["not-steady"]


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
