"""Whether the figures of a pass are valid.

A finding makes the figures invalid; a warning is shown with them. Both are data; :mod:`.sentences` has the
sentences, which give the number, the limit, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile

from trtllm_hpc.bench.metrics import ITL, LATENCY, LATENCY_FROM_SEND, TTFT, TTFT_FROM_SEND
from trtllm_hpc.bench.records import DRAIN, NO_CONNECTION, NoValue, RequestRecord, Sample
from trtllm_hpc.bench.results import ClientUse, Finding, Verdict
from trtllm_hpc.bench.workload.request import BY_SERVER, BY_TOKENIZER
from trtllm_hpc.config.benchmark import Benchmark

LATE_S = 0.001
LATE_SHARE_OF_TTFT = 0.02
"""A request of an open loop is late if it is sent after its time by more than ``LATE_S``, and by more than
this share of the median TTFT."""
MAX_TURNAROUND_SHARE = 0.02
"""The share of a closed loop's time in which slots may wait for the client's next request."""
MAX_STAMP_SHARE = 0.02
"""The share of a shown TTFT, or latency without streaming, by which the client's stamps may be late."""
MAX_STAMP_SHARE_OF_ITL = 0.05
"""The same of an inter-token latency, which a stamp that is as late as the one before does not change."""
FULL_CORE_SHARE = 0.7
"""From this share of a core on, further processes relieve the client."""
FEW_LATE = 0.1
"""Up to this share of late requests the load is nearly that requested: then the figures decide."""
MAX_LATE_EFFECT = 0.05
"""The share of a latency figure (p50, p99) that delays of few late requests may make up."""
MAX_BUSY_SHARE = 0.9
"""From this share of a core on, a client process waits for its own interpreter and not for the server."""
P99_REQUESTS = 100
"""With fewer values the 99th percentile lies between the two largest."""
ROUNDING_S = 1e-3
"""Eight requests at 8/s make a window of one second, but for the last digits."""

TIMED_OUT = "DEADLINE_EXCEEDED"
_LEAST_HANGING = 3
"""With so many requests in a row that time out without a token, the server hangs."""

PARTS = 10
"""Parts of the window whose mean latencies are tested for a trend. Unlike the latencies of neighbours in a
queue, means of parts are nearly independent (batch means; Law, Simulation Modeling and Analysis, 9.5.3)."""
MIN_REQUESTS_PER_PART = 3
"""On average; with fewer, the means are noise."""
TREND_P_VALUE = 0.01
"""The share of steady loads that may be called growing."""
MIN_GROWTH = 1.2
"""Growth of latency from the first half of the window to the second; less is harmless drift."""

MAX_TEXT_DIFFERENCE = 0.05
"""Of texts from the number of tokens that they must have (exact_output); of a stream from its responses."""
MAX_DRAINED_TURNS = 0.2
"""Share of the turns that may be due after the window."""


def check_pass(
    sample: Sample, client: ClientUse, settings: Benchmark, *, interrupted: bool = False
) -> Verdict:
    """Judge the figures of one pass; ``interrupted``: it was ended early, for example by Ctrl-C."""
    warnings = [Finding("interrupted")] if interrupted else []
    lost = list(_lost_server(sample))
    if not sample.answered:
        # If the server was gone in the warm-up already, a longer window would not help.
        return Verdict(lost if lost and not sample.measured else [*lost, _no_answer(sample)], warnings)
    late, some_late = _late(sample, settings)
    growth = latency_growth(sample)
    findings = [*lost, *_errors(sample, settings), *late]
    if client.busiest_share >= MAX_BUSY_SHARE:
        findings.append(Finding("client-busy", client.busiest_share, MAX_BUSY_SHARE))
    if settings.max_late_share < 1:
        findings += [*_slow_turnaround(sample, client), *_late_stamps(sample, client)]
    findings += [*_wrong_answers(sample, settings), *_too_short(sample, settings)]
    warnings += [*some_late, *_doubtful_tokens(sample, settings), *_doubtful_requests(sample)]
    if not findings and len(sample.answered) < P99_REQUESTS:
        warnings.append(Finding("few-answers", len(sample.answered), P99_REQUESTS))
    return Verdict(findings, [*warnings, *([growth] if growth else [])])


# The server -----------------------------------------------------------------------------------------


def requests_without_server(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the last requests of a pass, mostly none, that found the server gone or were in flight then."""
    in_order = sorted(records, key=lambda record: record.sent_s)
    last = list(takewhile(lambda record: record.status == "UNAVAILABLE", reversed(in_order)))
    return last if last and (last[0].error or "").startswith(NO_CONNECTION) else []


def unanswered_at_the_end(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the requests after the last answer if they show that the server hangs: none got a token."""
    in_order = sorted(records, key=lambda record: record.ended_s)
    last = list(takewhile(lambda it: it.status == TIMED_OUT and not it.chunks_s, reversed(in_order)))
    return last if len(last) >= _LEAST_HANGING else []


def _lost_server(sample: Sample) -> Iterator[Finding]:
    if last := requests_without_server(sample.records):
        yield Finding("server-gone", len(last))
    last, answered = unanswered_at_the_end(sample.records), sum(record.ok for record in sample.records)
    if last and answered:
        yield Finding("server-hangs", len(last), facts={"answered": answered})


def _no_answer(sample: Sample) -> Finding:
    if not sample.measured:
        return Finding("nothing-due")
    hangs = len(unanswered_at_the_end(sample.records)) == len(sample.records)
    return Finding("no-answer-in-time" if hangs else "no-answer", len(sample.measured))


def _errors(sample: Sample, settings: Benchmark) -> Iterator[Finding]:
    measured, failed = len(sample.measured), len(sample.measured) - len(sample.answered)
    if failed > settings.max_error_share * measured:
        facts = {"failed": failed, "measured": measured}
        yield Finding("errors", failed / measured, settings.max_error_share, facts)


def latency_growth(sample: Sample) -> Finding | None:
    """Return a finding if latency grew over the window, which means that the server did not keep up.

    An open loop keeps sending when the server cannot follow: each request then waits
    longer than the one before, and the figures depend mostly on the length of the
    window. The test is the one-sided Mann-Kendall test for a trend (Mann 1945; Kendall
    1975) on the mean latencies of the window's parts.
    """
    window = sample.window
    # Later turns of a conversation have longer prompts.
    answered = [record for record in sample.answered if record.turn in (None, 1)]
    if window.length_s <= 0 or len(answered) < MIN_REQUESTS_PER_PART * PARTS:
        return None
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for record in answered:
        place = int((record.scheduled_s - window.start_s) / window.length_s * PARTS)
        parts[min(max(place, 0), PARTS - 1)].append((record.ended_s - record.scheduled_s) * 1e3)
    if not all(parts):
        return None
    means, half = [sum(part) / len(part) for part in parts], PARTS // 2
    first_ms, second_ms = sum(means[:half]) / half, sum(means[half:]) / (PARTS - half)
    if second_ms < MIN_GROWTH * first_ms:
        return None
    from scipy import stats  # takes half a second to load, and few loads come here

    if not stats.kendalltau(range(PARTS), means, alternative="greater").pvalue < TREND_P_VALUE:
        return None
    facts = {"first_ms": first_ms, "second_ms": second_ms}
    return Finding("not-steady", second_ms / max(first_ms, 1e-9), MIN_GROWTH, facts)


# The client and the load ----------------------------------------------------------------------------


def _late(sample: Sample, settings: Benchmark) -> tuple[list[Finding], list[Finding]]:
    """Return a finding if the client sent more requests late than it may; a warning if that is harmless."""
    measured = len(sample.measured)
    allowed_s = max(LATE_S, LATE_SHARE_OF_TTFT * _median_ms(sample) / 1e3)
    delays_s = [record.sent_s - record.scheduled_s for record in sample.measured]
    late_s = [delay_s for delay_s in delays_s if delay_s > allowed_s]
    share = len(late_s) / measured
    if share <= settings.max_late_share:
        return [], []
    if share <= FEW_LATE and _late_effect(sample) <= MAX_LATE_EFFECT:
        return [], [Finding("some-late", share, settings.max_late_share, {"effect": MAX_LATE_EFFECT})]
    facts = {"allowed_ms": allowed_s * 1e3, "worst_ms": max(late_s) * 1e3}
    counts = {"late": len(late_s), "measured": measured}
    return [Finding("late", share, settings.max_late_share, counts | facts)], []


def _median_ms(sample: Sample) -> float:
    """Return the median TTFT, or latency without streaming, in milliseconds."""
    for metric in (TTFT_FROM_SEND, LATENCY_FROM_SEND):
        with suppress(NoValue):
            return metric.of(sample).p50
    return 0.0


def _slow_turnaround(sample: Sample, client: ClientUse) -> Iterator[Finding]:
    """Yield a finding if the slots of a closed loop waited long for the client's next request."""
    closed = [(record, record.freed_s) for record in sample.answered if record.freed_s is not None]
    waited_s = sum(record.sent_s - freed_s for record, freed_s in closed)
    share = waited_s / max(sum(record.ended_s - freed_s for record, freed_s in closed), 1e-9)
    if share > MAX_TURNAROUND_SHARE:
        facts = {"mean_ms": waited_s / len(closed) * 1e3, "cause": _cause(client)}
        yield Finding("slow-turnaround", share, MAX_TURNAROUND_SHARE, facts)


def _late_stamps(sample: Sample, client: ClientUse) -> Iterator[Finding]:
    """Yield a finding if stamps may be so late that a shown figure is wrong.

    It is the tail of inter-token latency that late stamps make, so the bound is compared with its 99th
    percentile.
    """
    bound_ms, shown = client.stamp_bound_s * 1e3, list[tuple[str, float, float]]()
    with suppress(NoValue):
        shown.append(("TTFT", TTFT_FROM_SEND.of(sample).p50, MAX_STAMP_SHARE))
        shown.append(("inter-token latency (p99)", ITL.of(sample).p99, MAX_STAMP_SHARE_OF_ITL))
    for name, shown_ms, limit in shown or [("latency", _median_ms(sample), MAX_STAMP_SHARE)]:
        if bound_ms > limit * shown_ms:
            facts = {"bound_ms": bound_ms, "figure": name, "shown_ms": shown_ms, "cause": _cause(client)}
            yield Finding("late-stamps", bound_ms / max(shown_ms, 1e-9), limit, facts)
            return


def _cause(client: ClientUse) -> str:
    """Return why the client was late, and what helps."""
    if client.busiest_share > FULL_CORE_SHARE:
        return f"its process used {client.busiest_share:.0%} of a core: raise --processes"
    if client.stall_s > client.stamp_bound_s / 2:
        return (
            f"the machine left it without a core for up to {client.stall_s * 1e3:.1f} ms: give it cores or a "
            "node of its own"
        )
    return "many answers came in one burst and were read one after the other: lower the concurrency"


def _late_effect(sample: Sample) -> float:
    """Return the largest share of a latency's median or 99th percentile that is the client's delay."""
    shares = [0.0]
    for metric, from_send in ((TTFT, TTFT_FROM_SEND), (LATENCY, LATENCY_FROM_SEND)):
        with suppress(NoValue):
            due, sent = metric.of(sample), from_send.of(sample)
            pairs = ((sent.p50, due.p50), (sent.p99, due.p99))
            shares += [1 - from_send_ms / due_ms for from_send_ms, due_ms in pairs if due_ms > 0]
    return max(shares)


def _too_short(sample: Sample, settings: Benchmark) -> Iterator[Finding]:
    measured, length_s = len(sample.measured), sample.window.length_s
    if measured < settings.min_requests:
        yield Finding("few-requests", measured, settings.min_requests)
    median_s = LATENCY.of(sample).p50 / 1e3
    least_s = max(settings.min_window_seconds, median_s)
    if length_s < least_s - ROUNDING_S:
        why = "the median latency" if median_s >= least_s else "min_window_seconds"
        yield Finding("short-window", length_s, least_s, {"why": why})


def _doubtful_requests(sample: Sample) -> Iterator[Finding]:
    """Warn of requests that count for no figure, or whose figures include more than the model's work."""
    phases = [record.phase for record in sample.records if record.turn is not None]
    if (after := phases.count(DRAIN)) > MAX_DRAINED_TURNS * len(phases):
        facts = {"after": after, "turns": len(phases)}
        yield Finding("turns-after-window", after / len(phases), MAX_DRAINED_TURNS, facts)
    measured, failed = len(sample.measured), len(sample.measured) - len(sample.answered)
    if failed:
        yield Finding("some-errors", failed / measured, facts={"failed": failed, "measured": measured})
    if sample.energy is not None and sample.energy.slowed:
        yield Finding("gpus-slowed", facts={"gpus": sample.energy.slowed})


# The tokens -----------------------------------------------------------------------------------------


def _wrong_answers(sample: Sample, settings: Benchmark) -> Iterator[Finding]:
    answered = len(sample.answered)
    empty = sum(record.output_tokens == 0 for record in sample.answered)
    if empty > settings.max_error_share * answered:
        facts = {"empty": empty, "answered": answered}
        yield Finding("empty-answers", empty / answered, settings.max_error_share, facts)
    # Only of the model's own tokens: tokenizing the text again may give another number.
    wrong = [
        (record.output_tokens, record.requested_tokens)
        for record in sample.answered
        if record.output_by == BY_SERVER and record.output_tokens != record.requested_tokens
    ]
    if settings.exact_output and wrong:
        tokens, requested = wrong[0]
        of_first = {"tokens": tokens, "requested": requested}
        yield Finding("wrong-length", len(wrong), facts={"answered": answered, **of_first})


def _doubtful_tokens(sample: Sample, settings: Benchmark) -> Iterator[Finding]:
    """Warn of unknown tokens, of responses with several, and of texts that have far fewer than requested."""
    unknown = sum(record.output_tokens is None for record in sample.answered)
    if unknown:
        facts = {"unknown": unknown, "answered": len(sample.answered)}
        yield Finding("tokens-unknown", unknown / len(sample.answered), facts=facts)
    streams = [record for record in sample.answered if record.chunks_s and record.output_tokens]
    responses = sum(sum(record.chunk_tokens) for record in streams)
    joined = sum(record.output_tokens or 0 for record in streams) / max(responses, 1)
    if joined > 1 + MAX_TEXT_DIFFERENCE:
        yield Finding("joined-tokens", joined, 1 + MAX_TEXT_DIFFERENCE)
    texts = [
        (record.output_tokens or 0, record.requested_tokens)
        for record in sample.answered
        if record.output_by == BY_TOKENIZER and record.requested_tokens is not None
    ]
    counted, requested = sum(tokens for tokens, _ in texts), sum(tokens for _, tokens in texts)
    facts = {"counted": counted, "requested": requested}
    if settings.exact_output and abs(counted - requested) > MAX_TEXT_DIFFERENCE * requested:
        yield Finding("text-length", counted / requested, 1.0, facts)
