"""Whether the figures of a pass are valid.

A finding makes the figures invalid; a warning is shown with them. Each sentence
gives the number, the limit, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import takewhile

from trtllm_hpc.bench.levels import OpenLoop
from trtllm_hpc.bench.metrics import LATENCY, LATENCY_FROM_SEND, TTFT, TTFT_FROM_SEND
from trtllm_hpc.bench.records import DRAIN, NO_CONNECTION, NoValue, RequestRecord, Sample
from trtllm_hpc.bench.results import ClientUse, Verdict
from trtllm_hpc.bench.server_metrics.sampling import ServerTokens
from trtllm_hpc.bench.workload.request import BY_REQUEST, BY_RESPONSES, EXACT_SOURCES, TEXT_SOURCES
from trtllm_hpc.client.lora import is_unknown_adapter
from trtllm_hpc.config.benchmark import Benchmark
from trtllm_hpc.runtime.probe import most_tokens

LATE_S = 0.001
LATE_SHARE_OF_GAP = 0.01
"""A request is late if it is sent more than ``LATE_S`` plus this share of the mean gap after its time."""
FEW_LATE = 0.1
"""Up to this share of late requests the load is nearly that requested: then the figures decide."""
MAX_LATE_EFFECT = 0.05
"""The share of a latency figure (p50, p99) that delays of few late requests may make up."""
MAX_BUSY_SHARE = 0.9
"""From this share of a core on, a client process waits for its own interpreter and not for the server."""
P99_REQUESTS = 100
"""With fewer values the 99th percentile lies between the two largest."""
SERVER_GONE = "The measurement ended early: the server was gone."
REQUESTS_BROKE = "Requests broke during"
"""How the finding begins that a part of the server has ended, and has broken too many requests."""

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
"""From the number of tokens that a text must have (exact_output)."""
LOW_TEXT_SHARE = 0.2
"""Tokens of texts over the requested ones. Short answers have fewer, too, but then the user should know."""
MAX_SERVER_DIFFERENCE = 0.1
"""Between the server's count of output tokens and the client's."""
MAX_DRAINED_TURNS = 0.2
"""Share of the turns that may be due after the window."""
METRICS_DELAY_S = 1.0
"""Answers may be missing on a page of metrics for this long."""

_ADAPTER_REMEDY = (
    "Give the server room for all adapters (upstream's lora_cache_gpu_memory_fraction and "
    "lora_cache_host_memory_bytes; the reference backend has 8 places), or use fewer"
)
_EXACT_REMEDY = "The ids of --model tensorrt_llm are counted exactly."
_CLIENT_REMEDY = "give the client more cores or a node of its own, raise --processes, or lower the rate"


def check_pass(
    sample: Sample,
    client: ClientUse,
    settings: Benchmark,
    *,
    interrupted: bool = False,
    texts_checked: bool = False,
) -> Verdict:
    """Judge the figures of one pass.

    Args:
        interrupted: whether the pass was ended early, for example by Ctrl-C.
        texts_checked: whether responses that count as one token each have the text of one.
    """
    warnings = ["The measurement was interrupted, so it is shorter than requested."] if interrupted else []
    gone = [*_server_gone(sample.records), *_hangs(sample)]
    if not sample.answered:
        # If the server was gone in the warm-up already, a longer window would not help.
        return Verdict(gone if gone and not sample.measured else [*gone, _no_answer(sample)], warnings)
    late, late_share = list(_late(sample, settings)), len(_late_delays_s(sample)) / len(sample.measured)
    is_harmless = late_share <= FEW_LATE and _late_effect(sample) <= MAX_LATE_EFFECT
    client_limits = [*([] if is_harmless else late), *_busy(client)]
    growth = latency_growth(sample)
    findings = [
        *gone,
        *_errors(sample, settings),
        *client_limits,
        *_missing_tokens(sample, settings),
        *_too_short(sample, settings),
    ]
    if late and is_harmless:
        warnings.append(
            f"{late_share:.1%} of the requests were sent late (the limit is "
            f"{settings.max_late_share * 100:.4g}%), which changes no p50 or p99 by more than "
            f"{MAX_LATE_EFFECT:.0%}."
        )
    warnings += [
        *_doubtful_tokens(sample, texts_checked),
        *_doubtful_texts(sample, settings),
        *_turns_after_the_window(sample),
        *_failed(sample),
        *_resent(sample),
        *_slowed(sample),
    ]
    answered = len(sample.answered)
    if not findings and answered < P99_REQUESTS:
        warnings.append(
            f"{_requests_were(answered)} answered: below {P99_REQUESTS}, p99 is practically the maximum."
        )
    return Verdict(
        findings=findings,
        warnings=[*warnings, *([growth] if growth else [])],
        client_limited=bool(client_limits),
        unsteady=growth is not None,
    )


def _slowed(sample: Sample) -> Iterator[str]:
    if sample.energy is not None and sample.energy.slowed:
        yield (
            f"Heat or a lack of power slowed GPUs down: {sample.energy.slowed}. Check cooling and power "
            "supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE on the node), or exclude the node."
        )


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


def only_failures(count: int) -> str:
    """Return the finding of a measurement that ended because nothing but failures came."""
    return (
        f"The measurement ended early: {count} requests in a row failed, with none answered in between "
        "(max_failures_in_a_row)."
    )


def _server_gone(records: Iterable[RequestRecord]) -> Iterator[str]:
    last = requests_without_server(records)
    if last:
        which = "request" if len(last) == 1 else f"{len(last)} requests"
        yield f"The server was gone at the end: the last {which} lost the connection or could not connect."


def _hangs(sample: Sample) -> Iterator[str]:
    last, answered = unanswered_at_the_end(sample.records), sum(record.ok for record in sample.records)
    if last and answered:
        before = f"it answered {'a request' if answered == 1 else f'{answered} requests'}"
        yield f"The server hangs: {before}, and none of the {len(last)} that ended after them."


def _no_answer(sample: Sample) -> str:
    if not sample.measured:
        return (
            "No request was due in the measured window. Use more requests (--requests) or a longer window "
            "(--duration)."
        )
    count = len(sample.measured)
    if len(unanswered_at_the_end(sample.records)) == len(sample.records):
        return f"None of {count} requests was answered in time: the server hangs, or is far too slow."
    return f"None of {count} requests was answered; the server's errors say why."


def _errors(sample: Sample, settings: Benchmark) -> Iterator[str]:
    failed, measured = len(sample.measured) - len(sample.answered), len(sample.measured)
    if failed > settings.max_error_share * measured:
        yield (
            f"{failed} of {measured} requests failed ({failed / measured:.1%}); the limit is "
            f"{settings.max_error_share * 100:.4g}% (max_error_share). The figures cover only the others."
        )


def _late_effect(sample: Sample) -> float:
    """Return the largest share of a latency's median or 99th percentile that is the client's delay."""
    shares = [0.0]
    for metric, from_send in ((TTFT, TTFT_FROM_SEND), (LATENCY, LATENCY_FROM_SEND)):
        with suppress(NoValue):
            due, sent = metric.of(sample), from_send.of(sample)
            pairs = ((sent.p50, due.p50), (sent.p99, due.p99))
            shares += [1 - from_send_ms / due_ms for from_send_ms, due_ms in pairs if due_ms > 0]
    return max(shares)


def _allowed_delay_s(sample: Sample) -> float:
    """Return how late a request may be. The gap is the mean one, because bursts have gaps of nearly zero."""
    return LATE_S + LATE_SHARE_OF_GAP * max(sample.window.length_s, 0.0) / len(sample.measured)


def _late_delays_s(sample: Sample) -> list[float]:
    allowed_s = _allowed_delay_s(sample)
    delays_s = (record.sent_s - record.scheduled_s for record in sample.measured)
    return [delay_s for delay_s in delays_s if delay_s > allowed_s]


def _late(sample: Sample, settings: Benchmark) -> Iterator[str]:
    """Report if the client sent more requests late than it may."""
    measured, late_s = len(sample.measured), _late_delays_s(sample)
    if len(late_s) > settings.max_late_share * measured:
        yield (
            f"{len(late_s)} of {measured} requests ({len(late_s) / measured:.1%}) were sent more than "
            f"{_allowed_delay_s(sample) * 1e3:.2f} ms late (1 ms plus 1% of the mean gap), the worst by "
            f"{max(late_s) * 1e3:.1f} ms; the limit is {settings.max_late_share * 100:.4g}% "
            f"(max_late_share). The server did not get the requested load: {_CLIENT_REMEDY}."
        )


def _busy(client: ClientUse) -> Iterator[str]:
    if client.busiest_share >= MAX_BUSY_SHARE:
        yield (
            f"The client's busiest process used {client.busiest_share:.0%} of a core. From "
            f"{MAX_BUSY_SHARE:.0%} on, the client is the limit and not the server: {_CLIENT_REMEDY}."
        )


def _missing_tokens(sample: Sample, settings: Benchmark) -> Iterator[str]:
    answered = sample.answered
    uncounted = sum(record.output_tokens is None or record.output_by == BY_REQUEST for record in answered)
    if uncounted:
        yield (
            f"{uncounted} of {len(answered)} answers have no known number of output tokens; the requested "
            "number is too high if the model stopped early. Name the tokenizer's folder (workload.tokenizer, "
            "--tokenizer)."
        )
    empty = sum(record.output_tokens == 0 for record in answered)
    if empty > settings.max_error_share * len(answered):
        yield (
            f"{empty} of {len(answered)} answers are empty, which makes them look fast; the limit is "
            f"{settings.max_error_share * 100:.4g}% (max_error_share)."
        )
    wrong = [record for record in answered if settings.exact_output and _is_wrong_length(record)]
    if wrong:
        yield (
            f"{len(wrong)} of {len(answered)} answers do not have the requested length (exact_output); the "
            f"first has {wrong[0].output_tokens} tokens and not {wrong[0].requested_tokens}. Check that the "
            "model supports min_length (over OpenAI's protocol min_tokens and ignore_eos)."
        )


def _is_wrong_length(record: RequestRecord) -> bool:
    """Compare only counts of the model's own tokens: tokenizing the text again may give another number.

    Tokens that were joined in one response may look like a single one.
    """
    tokens, requested = record.output_tokens, record.requested_tokens
    if record.output_by == BY_RESPONSES and tokens is not None and requested is not None:
        return not requested - max(1, MAX_TEXT_DIFFERENCE * requested) <= tokens <= requested
    return record.output_by in EXACT_SOURCES and tokens != requested


_ROUNDING_S = 1e-3
"""Eight requests at 8/s make a window of one second, but for the last digits."""


def _too_short(sample: Sample, settings: Benchmark) -> Iterator[str]:
    measured, length_s = len(sample.measured), sample.window.length_s
    if measured < settings.min_requests:
        yield (
            f"{_requests_were(measured)} measured; at least {settings.min_requests} are needed "
            "(min_requests). Use more requests (--requests) or a longer window (--duration)."
        )
    median_s = LATENCY.of(sample).p50 / 1e3
    least_s = max(settings.min_window_seconds, median_s)
    if length_s < least_s - _ROUNDING_S:
        why = "the median latency" if median_s >= least_s else "min_window_seconds"
        yield (
            f"The measured window is {length_s:.2f} s long; at least {least_s:.2f} s are needed ({why}). Use "
            "more requests (--requests) or a longer window (--duration)."
        )


def _doubtful_tokens(sample: Sample, texts_checked: bool) -> Iterator[str]:
    answered = sample.answered
    by_responses = 0 if texts_checked else sum(record.output_by == BY_RESPONSES for record in answered)
    if by_responses:
        yield (
            f"In {_of(by_responses, len(answered))} answers, each response was counted as one output token. "
            "A server that is behind may send several in one: name the tokenizer's folder (--tokenizer). "
            f"{_EXACT_REMEDY}"
        )
    not_added_up = sum(
        bool(record.chunks_s) and record.output_tokens not in (None, sum(record.chunk_tokens))
        for record in answered
    )
    if not_added_up:
        yield (
            f"In {_of(not_added_up, len(answered))} answers, the tokens of the chunks do not add up to the "
            "answer's: the inter-token latency is that between responses."
        )


def _of(count: int, total: int) -> str:
    return f"all {total}" if count == total else f"{count} of {total}"


def _doubtful_texts(sample: Sample, settings: Benchmark) -> Iterator[str]:
    """Warn if texts have far fewer tokens than were requested: special tokens have no text."""
    texts = [
        record
        for record in sample.answered
        if record.output_by in TEXT_SOURCES and record.requested_tokens is not None
    ]
    counted = sum(record.output_tokens or 0 for record in texts)
    requested = sum(record.requested_tokens or 0 for record in texts)
    found = f"{counted:,} of {requested:,} requested output tokens were found in the answers' texts"
    if settings.exact_output:
        if abs(counted - requested) > MAX_TEXT_DIFFERENCE * requested:
            yield (
                f"{found}, though exact_output keeps answers from ending early: other tokens have no text, "
                f"such as special ones, and the rates of tokens are wrong. {_EXACT_REMEDY}"
            )
    elif counted < LOW_TEXT_SHARE * requested:
        yield (
            f"{found}: either the answers are short, or most of their tokens have no text, such as special "
            f"ones, and the rates of tokens are too low. {_EXACT_REMEDY}"
        )


def server_count_doubt(records: Iterable[RequestRecord], server: ServerTokens | None) -> str | None:
    """Return a sentence if the server's metrics have other output tokens than were counted in all passes."""
    answered = [record for record in records if record.ok and record.output_tokens is not None]
    if server is None or all(record.output_by in EXACT_SOURCES for record in answered):
        return None
    counted = sum(record.output_tokens or 0 for record in answered)
    on_page = sum(
        record.output_tokens or 0
        for record in answered
        if server.since_s < record.ended_s < server.until_s - METRICS_DELAY_S
    )
    least = (1 - MAX_SERVER_DIFFERENCE) * on_page
    most = (1 + MAX_SERVER_DIFFERENCE) * counted + most_tokens(server.until_s - server.since_s)
    if least <= server.tokens <= most:
        return None
    return (
        f"The server's metrics counted {server.tokens:,} output tokens during the measurement, the client "
        f"{counted:,} in the answers. Unless other clients used the server, the rates of tokens are wrong: "
        f"tokens may have no text, such as special ones. {_EXACT_REMEDY}"
    )


def _failed(sample: Sample) -> Iterator[str]:
    measured, failed = len(sample.measured), len(sample.measured) - len(sample.answered)
    if failed:
        yield (
            f"{failed} of {measured} requests failed and {'have' if failed > 1 else 'has'} no latency: the "
            "tail that users see is longer than the one shown."
        )


def _turns_after_the_window(sample: Sample) -> Iterator[str]:
    phases = [record.phase for record in sample.records if record.turn is not None]
    if phases.count(DRAIN) > MAX_DRAINED_TURNS * len(phases):
        yield (
            f"{phases.count(DRAIN)} of {len(phases)} turns were due after the window and count for no "
            "figure. Use more conversations (--requests), or a longer window (--duration)."
        )


def _resent(sample: Sample) -> Iterator[str]:
    """Say that a server did not keep the adapters: the figures include sending their weights."""
    resent = sum(record.resent for record in sample.measured)
    if resent:
        yield (
            f"{_requests_were(resent)} sent again with the LoRA adapter's weights, because the server no "
            f"longer had it; the latency includes both. {_ADAPTER_REMEDY}."
        )
    lost = sum(not record.ok and is_unknown_adapter(record.error or "") for record in sample.measured)
    if lost:
        yield (
            f"{lost} requests failed because the server no longer had their LoRA adapter; over HTTP its "
            f"weights cannot be sent. Measure over gRPC (--protocol grpc), or: {_ADAPTER_REMEDY}."
        )


def _requests_were(count: int) -> str:
    return "1 request was" if count == 1 else f"{count} requests were"


def latency_growth(sample: Sample) -> str | None:
    """Return a sentence if latency grew over the window, which means that the server did not keep up.

    An open loop keeps sending when the server cannot follow: each request then waits
    longer than the one before, and the figures depend mostly on the length of the
    window. The test is the one-sided Mann-Kendall test for a trend (Mann 1945; Kendall
    1975) on the mean latencies of the window's parts. A ramp is not tested.
    """
    level = sample.level
    is_ramp = isinstance(level, OpenLoop) and level.ramp_to_per_s not in (None, level.rate_per_s)
    means = None if is_ramp else _mean_latencies_ms(sample)
    if means is None:
        return None
    half = PARTS // 2
    first_ms, second_ms = sum(means[:half]) / half, sum(means[half:]) / (PARTS - half)
    if second_ms < MIN_GROWTH * first_ms:
        return None
    from scipy import stats  # takes half a second to load, and few loads come here

    trend = stats.kendalltau(range(PARTS), means, alternative="greater")
    if not trend.pvalue < TREND_P_VALUE:
        return None
    return (
        f"The load was not steady: latency grew from {first_ms:.0f} ms in the first half of the window to "
        f"{second_ms:.0f} ms in the second. The server did not keep up, or the warm-up was too short; a "
        "longer window would show even higher latencies."
    )


def _mean_latencies_ms(sample: Sample) -> list[float] | None:
    """Return the mean latency of each part of the window, by when requests were due; ``None`` if too few."""
    window = sample.window
    # Later turns of a conversation have longer prompts.
    answered = [record for record in sample.answered if record.turn in (None, 1)]
    if window.length_s <= 0 or len(answered) < MIN_REQUESTS_PER_PART * PARTS:
        return None
    parts: list[list[float]] = [[] for _ in range(PARTS)]
    for record in answered:
        place = int((record.scheduled_s - window.start_s) / window.length_s * PARTS)
        parts[min(max(place, 0), PARTS - 1)].append((record.ended_s - record.scheduled_s) * 1e3)
    return [sum(part) / len(part) for part in parts] if all(parts) else None
