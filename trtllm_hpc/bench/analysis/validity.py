"""Judge whether the figures of a pass are valid.

A finding makes the figures invalid; a warning is shown with them. Both are data. Their sentences in
:data:`SENTENCES` name the value, the limit, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile

from trtllm_hpc.bench.metrics import ITL, LATENCY, LATENCY_FROM_SEND, TTFT, TTFT_FROM_SEND
from trtllm_hpc.bench.records import DRAIN, NO_CONNECTION, NoValue, RequestRecord, Sample
from trtllm_hpc.bench.results import Caveat, ClientUse, Verdict
from trtllm_hpc.bench.workload.request import BY_SERVER, BY_TOKENIZER
from trtllm_hpc.config.benchmark import Benchmark

LATE_S = 0.001
LATE_SHARE_OF_TTFT = 0.02
"""A request of an open loop is late if its delay exceeds both ``LATE_S`` and this share of the median
TTFT."""
MAX_TURNAROUND_SHARE = 0.02
"""Largest valid share of time for which slots of a closed loop wait for the client's next request."""
MAX_STAMP_SHARE = 0.02
"""Largest valid lateness of the client's timestamps, as a share of TTFT (without streaming, of latency)."""
MAX_STAMP_SHARE_OF_ITL = 0.05
"""The same for inter-token latency, which does not change if two successive timestamps are equally late."""
FULL_CORE_SHARE = 0.7
"""Share of a core above which further client processes help."""
FEW_LATE = 0.1
"""Share of late requests up to which the load is close to the requested one, so that their effect decides."""
MAX_LATE_EFFECT = 0.05
"""Largest valid share of the client's delays in a latency figure (p50, p99) if few requests are late."""
MAX_BUSY_SHARE = 0.9
"""Share of a core above which a client process waits for its interpreter instead of the server."""
P99_REQUESTS = 100
"""Number of values below which the 99th percentile lies between the two largest."""
ROUNDING_S = 1e-3
"""Tolerance for windows: eight requests at 8/s make one second only up to rounding."""

TIMED_OUT = "DEADLINE_EXCEEDED"
_LEAST_HANGING = 3
"""Consecutive requests that time out without a token, from which on the server counts as hung."""

PARTS = 10
"""Parts of the window whose mean latencies are tested for a trend. Unlike latencies of neighbours in a queue,
means of parts are nearly independent (batch means; Law, Simulation Modeling and Analysis, 9.5.3)."""
MIN_REQUESTS_PER_PART = 3
"""Fewest requests per part on average; with fewer, the means are noise."""
TREND_P_VALUE = 0.01
"""Share of steady loads that the test may call growing."""
MIN_GROWTH = 1.2
"""Growth of latency between the halves of the window up to which a trend is harmless drift."""

MAX_TEXT_DIFFERENCE = 0.05
"""Largest relative difference between the tokens of texts and the requested number (exact_output), between
the tokens and the responses of a stream, and between input tokens of server and workload."""
MAX_DRAINED_TURNS = 0.2
"""Largest share of turns that are due after the window, without a warning."""


def check_pass(
    sample: Sample, client: ClientUse, settings: Benchmark, *, interrupted: bool = False
) -> Verdict:
    """Judge the figures of one pass; ``interrupted``: it ended early, for example by Ctrl-C."""
    warnings = [Caveat("interrupted")] if interrupted else []
    lost = []
    # Requests at the end of the pass that found no server, or were in flight when it disappeared.
    in_order = sorted(sample.records, key=lambda record: record.sent_s)
    last = list(takewhile(lambda record: record.status == "UNAVAILABLE", reversed(in_order)))
    if last and (last[0].error or "").startswith(NO_CONNECTION):
        lost.append(Caveat("server-gone", len(last)))
    unanswered, answered = unanswered_at_the_end(sample.records), sum(record.ok for record in sample.records)
    if unanswered and answered:
        lost.append(Caveat("server-hangs", len(unanswered), facts={"answered": answered}))
    if not sample.answered:
        if sample.measured:
            hangs = len(unanswered) == len(sample.records)
            lost.append(Caveat("no-answer-in-time" if hangs else "no-answer", len(sample.measured)))
        # Without "nothing-due" if the server was gone in the warm-up: a longer window would not help then.
        return Verdict(lost or [Caveat("nothing-due")], warnings)
    late, some_late = _late(sample, settings)
    findings, measured, failed = lost, len(sample.measured), len(sample.measured) - len(sample.answered)
    counts = {"failed": failed, "measured": measured}
    if failed > settings.max_error_share * measured:
        findings.append(Caveat("errors", failed / measured, settings.max_error_share, counts))
    findings += late
    if client.busiest_share >= MAX_BUSY_SHARE:
        findings.append(Caveat("client-busy", client.busiest_share, MAX_BUSY_SHARE))
    if settings.max_late_share < 1:
        # Slots of a closed loop may wait too long for the client's next request.
        closed = [(record, record.freed_s) for record in sample.answered if record.freed_s is not None]
        waited_s = sum(record.sent_s - freed_s for record, freed_s in closed)
        share = waited_s / max(sum(record.ended_s - freed_s for record, freed_s in closed), 1e-9)
        if share > MAX_TURNAROUND_SHARE:
            facts = {"mean_ms": waited_s / len(closed) * 1e3, "cause": _cause(client)}
            findings.append(Caveat("slow-turnaround", share, MAX_TURNAROUND_SHARE, facts))
        findings += _late_stamps(sample, client)
    findings += _wrong_answers(sample, settings)
    if measured < settings.min_requests:
        findings.append(Caveat("few-requests", measured, settings.min_requests))
    length_s, median_s = sample.window.length_s, LATENCY.of(sample).p50 / 1e3
    least_s = max(settings.min_window_seconds, median_s)
    if length_s < least_s - ROUNDING_S:
        why = "the median latency" if median_s >= least_s else "min_window_seconds"
        findings.append(Caveat("short-window", length_s, least_s, {"why": why}))
    warnings += [*some_late, *_doubtful_tokens(sample, settings)]
    phases = [record.phase for record in sample.records if record.turn is not None]
    if (after := phases.count(DRAIN)) > MAX_DRAINED_TURNS * len(phases):
        facts = {"after": after, "turns": len(phases)}
        warnings.append(Caveat("turns-after-window", after / len(phases), MAX_DRAINED_TURNS, facts))
    if failed:
        warnings.append(Caveat("some-errors", failed / measured, facts=counts))
    if sample.energy is not None and sample.energy.slowed:
        warnings.append(Caveat("gpus-slowed", facts={"gpus": sample.energy.slowed}))
    if not findings and len(sample.answered) < P99_REQUESTS:
        warnings.append(Caveat("few-answers", len(sample.answered), P99_REQUESTS))
    return Verdict(findings, [*warnings, *_latency_growth(sample)])


# The server -----------------------------------------------------------------------------------------


def unanswered_at_the_end(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the last requests if all timed out without a token, which means that the server hangs."""
    in_order = sorted(records, key=lambda record: record.ended_s)
    last = list(
        takewhile(lambda record: record.status == TIMED_OUT and not record.chunks_s, reversed(in_order))
    )
    return last if len(last) >= _LEAST_HANGING else []


def _latency_growth(sample: Sample) -> Iterator[Caveat]:
    """Yield a warning if latency grew over the window, because the server did not keep up.

    An open loop keeps sending when the server cannot follow, so each request waits longer than the one
    before, and the figures depend mostly on the length of the window. The test is the one-sided Mann-Kendall
    test for a trend (Mann 1945; Kendall 1975) on the mean latencies of the window's parts.
    """
    window = sample.window
    # Only first turns, because later turns of a conversation have longer prompts.
    answered = [record for record in sample.answered if record.turn in (None, 1)]
    if window.length_s <= 0 or len(answered) < MIN_REQUESTS_PER_PART * PARTS:
        return
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for record in answered:
        place = int((record.scheduled_s - window.start_s) / window.length_s * PARTS)
        parts[min(max(place, 0), PARTS - 1)].append((record.ended_s - record.scheduled_s) * 1e3)
    if not all(parts):
        return
    means, half = [sum(part) / len(part) for part in parts], PARTS // 2
    first_ms, second_ms = sum(means[:half]) / half, sum(means[half:]) / (PARTS - half)
    if second_ms < MIN_GROWTH * first_ms:
        return
    from scipy import stats  # takes half a second to load, and few loads come here

    if stats.kendalltau(range(PARTS), means, alternative="greater").pvalue < TREND_P_VALUE:
        facts = {"first_ms": first_ms, "second_ms": second_ms}
        yield Caveat("not-steady", second_ms / max(first_ms, 1e-9), MIN_GROWTH, facts)


# The client and the load ----------------------------------------------------------------------------


def _late(sample: Sample, settings: Benchmark) -> tuple[list[Caveat], list[Caveat]]:
    """Return findings and warnings about late requests; a warning if their effect is small."""
    measured = len(sample.measured)
    allowed_s = max(LATE_S, LATE_SHARE_OF_TTFT * _median_ms(sample) / 1e3)
    delays_s = [record.sent_s - record.scheduled_s for record in sample.measured]
    late_s = [delay_s for delay_s in delays_s if delay_s > allowed_s]
    share = len(late_s) / measured
    if share <= settings.max_late_share:
        return [], []
    # The largest share of a latency's median or 99th percentile that is the client's delay.
    effect = 0.0
    for metric, from_send in ((TTFT, TTFT_FROM_SEND), (LATENCY, LATENCY_FROM_SEND)):
        with suppress(NoValue):
            due, sent = metric.of(sample), from_send.of(sample)
            for sent_ms, due_ms in ((sent.p50, due.p50), (sent.p99, due.p99)):
                effect = max(effect, 1 - sent_ms / due_ms if due_ms > 0 else 0.0)
    if share <= FEW_LATE and effect <= MAX_LATE_EFFECT:
        return [], [Caveat("some-late", share, settings.max_late_share, {"effect": MAX_LATE_EFFECT})]
    facts = {"allowed_ms": allowed_s * 1e3, "worst_ms": max(late_s) * 1e3}
    counts = {"late": len(late_s), "measured": measured}
    return [Caveat("late", share, settings.max_late_share, counts | facts)], []


def _median_ms(sample: Sample) -> float:
    """Return the median TTFT, or latency without streaming, in milliseconds."""
    for metric in (TTFT_FROM_SEND, LATENCY_FROM_SEND):
        with suppress(NoValue):
            return metric.of(sample).p50
    return 0.0


def _late_stamps(sample: Sample, client: ClientUse) -> Iterator[Caveat]:
    """Yield a finding if timestamps may be so late that a figure is wrong.

    Late timestamps change the tail of the inter-token latency, so the bound is compared with its 99th
    percentile.
    """
    bound_ms, shown = client.stamp_bound_s * 1e3, list[tuple[str, float, float]]()
    with suppress(NoValue):
        shown.append(("TTFT", TTFT_FROM_SEND.of(sample).p50, MAX_STAMP_SHARE))
        shown.append(("inter-token latency (p99)", ITL.of(sample).p99, MAX_STAMP_SHARE_OF_ITL))
    for name, shown_ms, limit in shown or [("latency", _median_ms(sample), MAX_STAMP_SHARE)]:
        if bound_ms > limit * shown_ms:
            facts = {"bound_ms": bound_ms, "figure": name, "shown_ms": shown_ms, "cause": _cause(client)}
            yield Caveat("late-stamps", bound_ms / max(shown_ms, 1e-9), limit, facts)
            return


def _cause(client: ClientUse) -> str:
    """Return the reason for the client's delay, and the remedy."""
    if client.busiest_share > FULL_CORE_SHARE:
        share = f"{client.busiest_share:.0%} of a core"
        return f"its process used {share}: use more client processes, e.g. --set processes=4"
    if client.stall_s > client.stamp_bound_s / 2:
        return (
            f"the machine left it without a core for up to {client.stall_s * 1e3:.1f} ms: give it cores or a "
            "node of its own"
        )
    return "many answers came in one burst and were read one after the other: lower the concurrency"


# The tokens -----------------------------------------------------------------------------------------


def _wrong_answers(sample: Sample, settings: Benchmark) -> Iterator[Caveat]:
    answered = len(sample.answered)
    empty = sum(record.output_tokens == 0 for record in sample.answered)
    if empty > settings.max_error_share * answered:
        facts = {"empty": empty, "answered": answered}
        yield Caveat("empty-answers", empty / answered, settings.max_error_share, facts)
    # Only for counts of the server, because tokenizing the text may give another number.
    wrong = [
        (record.output_tokens, record.requested_tokens)
        for record in sample.answered
        if record.output_by == BY_SERVER and record.output_tokens != record.requested_tokens
    ]
    if settings.exact_output and wrong:
        tokens, requested = wrong[0]
        of_first = {"tokens": tokens, "requested": requested}
        yield Caveat("wrong-length", len(wrong), facts={"answered": answered, **of_first})


def _doubtful_tokens(sample: Sample, settings: Benchmark) -> Iterator[Caveat]:
    """Warn of unknown token counts, of several tokens per response, and of unexpected lengths."""
    unknown = sum(record.output_tokens is None for record in sample.answered)
    if unknown:
        facts = {"unknown": unknown, "answered": len(sample.answered)}
        yield Caveat("tokens-unknown", unknown / len(sample.answered), facts=facts)
    streams = [record for record in sample.answered if record.chunks_s and record.output_tokens]
    responses = sum(sum(record.chunk_tokens) for record in streams)
    joined = sum(record.output_tokens or 0 for record in streams) / max(responses, 1)
    if joined > 1 + MAX_TEXT_DIFFERENCE:
        yield Caveat("joined-tokens", joined, 1 + MAX_TEXT_DIFFERENCE)
    texts = [
        (record.output_tokens or 0, record.requested_tokens)
        for record in sample.answered
        if record.output_by == BY_TOKENIZER and record.requested_tokens is not None
    ]
    counted, requested = sum(tokens for tokens, _ in texts), sum(tokens for _, tokens in texts)
    facts = {"counted": counted, "requested": requested}
    inputs = [
        (record.input_tokens, record.prompt_tokens)
        for record in sample.answered
        if record.input_by == BY_SERVER and record.input_tokens and record.prompt_tokens
    ]
    given, asked = sum(tokens for tokens, _ in inputs), sum(tokens for _, tokens in inputs)
    if abs(given - asked) > MAX_TEXT_DIFFERENCE * asked:
        each = {"given": given / len(inputs), "asked": asked / len(inputs)}
        yield Caveat("input-length", given / asked - 1, MAX_TEXT_DIFFERENCE, each)
    if settings.exact_output and abs(counted - requested) > MAX_TEXT_DIFFERENCE * requested:
        yield Caveat("text-length", counted / requested, 1.0, facts)


# The sentences --------------------------------------------------------------------------------------

_LONGER = "Use more requests (--requests) or a longer window (--duration)."
_CLIENT = "give the client more cores or a node of its own, add --set processes=4, or lower the rate."
_EXACT = "The ids of --model tensorrt_llm are counted exactly."
_TOKENIZER = "Name the tokenizer's folder (workload.tokenizer, --tokenizer)."

SENTENCES = {
    # The server
    "server-gone": (
        "The server was gone at the end: the last {value:,.0f} requests did not reach it, or lost it."
    ),
    "ended-server-gone": "The measurement ended early: the server was gone.",
    "requests-broke": "Requests failed during {step}: {ended}.",
    "server-hangs": (
        "The server hangs: the last {value:,.0f} requests got no answer, after {answered:,} answers."
    ),
    "only-failures": (
        "The measurement ended early: {value:,.0f} requests in a row failed, with none answered in between "
        "(max_failures_in_a_row)."
    ),
    "no-answer": "None of {value:,.0f} requests was answered; see the server's errors for the reason.",
    "no-answer-in-time": (
        "None of {value:,.0f} requests was answered in time: the server hangs, or is far too slow."
    ),
    "errors": (
        "{failed:,} of {measured:,} requests failed ({value:.1%}); the limit is {limit:.2%} "
        "(max_error_share). The figures cover only the answered requests."
    ),
    "some-errors": (
        "{failed:,} of {measured:,} requests failed and have no latency, so users see a longer tail than the "
        "figures show."
    ),
    "not-steady": (
        "The load was not steady: latency grew from {first_ms:.0f} ms in the first half of the window to "
        "{second_ms:.0f} ms in the second. The server did not keep up, or the warm-up was too short; a "
        "longer window would show even higher latencies."
    ),
    "gpus-slowed": (
        "Heat or a lack of power slowed GPUs down: {gpus}. Check cooling and power supply (nvidia-smi -q -d "
        "PERFORMANCE,TEMPERATURE on the node), or exclude the node."
    ),
    # The client
    "late": (
        "{late:,} of {measured:,} requests ({value:.1%}) were sent more than {allowed_ms:.2f} ms late (1 ms, "
        "or 2% of the median TTFT), the worst by {worst_ms:.1f} ms; the limit is {limit:.2%} "
        f"(max_late_share). The server did not get the requested load: {_CLIENT}"
    ),
    "some-late": (
        "{value:.1%} of the requests were sent late (the limit is {limit:.2%}), which changes no p50 or p99 "
        "by more than {effect:.0%}."
    ),
    "client-busy": (
        "The client's busiest process used {value:.0%} of a core. From {limit:.0%} on, the client limits the "
        f"load instead of the server: {_CLIENT}"
    ),
    "slow-turnaround": (
        "The client took {mean_ms:.2f} ms from the end of an answer to its next request, {value:.1%} of the "
        "time; the limit is {limit:.0%}. The server had less load than requested, because {cause}."
    ),
    "late-stamps": (
        "The client's timestamps may be up to {bound_ms:.2f} ms late, {value:.0%} of the {figure} of "
        "{shown_ms:.2f} ms; the limit is {limit:.0%}. Do not trust this figure, because {cause}."
    ),
    # The length of the measurement
    "interrupted": "The measurement was interrupted, so it is shorter than requested.",
    "ended-interrupted": "The measurement was interrupted.",
    "unfinished": "The measurement did not finish.",
    "nothing-due": f"No request was due in the measured window. {_LONGER}",
    "few-requests": (
        f"Measured requests: {{value:,.0f}}; at least {{limit:,.0f}} are needed (min_requests). {_LONGER}"
    ),
    "few-answers": ("Answered requests: {value:,.0f}; below {limit:,.0f}, p99 is practically the maximum."),
    "short-window": (
        "The measured window is {value:.2f} s long; at least {limit:.2f} s are needed ({why}). " + _LONGER
    ),
    "turns-after-window": (
        "{after:,} of {turns:,} turns were due after the window and are in no figure. Use more conversations "
        "(--requests), or a longer window (--duration)."
    ),
    "repeated-prompts": (
        "{value:,.0f} requests repeated {limit:,.0f} prompts, so the server's KV cache may have made answers "
        "faster. Measure a number of requests (--requests) instead of a time, or use a larger workload."
    ),
    # The tokens
    "tokens-unknown": (
        "The tokens of {unknown:,} of {answered:,} answers are unknown, so figures of tokens are missing. "
        + _TOKENIZER
    ),
    "empty-answers": (
        "{empty:,} of {answered:,} answers are empty, which makes them look fast; the limit is {limit:.2%} "
        "(max_error_share)."
    ),
    "wrong-length": (
        "{value:,.0f} of {answered:,} answers do not have the requested length (exact_output); the first has "
        "{tokens:,} tokens and not {requested:,}. Check that the model supports min_length (over OpenAI's "
        "protocol min_tokens and ignore_eos)."
    ),
    "joined-tokens": (
        "Each response of a stream had {value:.2f} tokens on average, so the inter-token latency is the time "
        "between responses."
    ),
    "input-length": (
        "The workload has {asked:,.0f} input tokens per request, but the server counted {given:,.0f} "
        "({value:+.0%}; the limit is {limit:.0%}). In a chat, the template may be the reason; otherwise the "
        "server truncates prompts, or has another tokenizer (--tokenizer)."
    ),
    "text-length": (
        "The answers' texts have {counted:,} of {requested:,} requested output tokens, although exact_output "
        "keeps answers from ending early: other tokens, such as special ones, have no text, so token rates "
        f"are wrong. {_EXACT}"
    ),
    "no-rate": "The search found no rate at which {slo} holds. {stopped}",
}


def sentence_of(finding: Caveat) -> str:
    """Return the sentence of a finding, with its value, its limit and what to do."""
    if finding.sentence:
        return finding.sentence
    known = {"value": finding.value, "limit": finding.limit, **finding.facts}
    return SENTENCES[finding.code].format(**known).strip()


def stated(finding: Caveat) -> Caveat:
    """Return a finding with its sentence."""
    return replace(finding, sentence=sentence_of(finding))
