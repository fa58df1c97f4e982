"""Whether the figures of a pass may be used.

A finding refuses them; a warning goes with them. Each sentence tells the
number, the bound, and what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trtllm_hpc.bench.judgement.gone import gone
from trtllm_hpc.bench.judgement.steadiness import growth
from trtllm_hpc.bench.metrics import Sample
from trtllm_hpc.bench.metrics.latency import LatencyFromSchedule
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.summary import ClientUse, Verdict
from trtllm_hpc.bench.workload.request import BY_MODEL, BY_REQUEST, BY_RESPONSES
from trtllm_hpc.config.benchmark import Benchmark

LATE_S = 0.001
LATE_SHARE_OF_GAP = 0.01
"""A send is late by more than ``LATE_S`` and this share of the mean gap between sends."""
MAX_BUSY_SHARE = 0.9
"""A client process that is busier waits for the interpreter and not for the server."""
P99_REQUESTS = 100
"""With fewer values the 99th percentile lies between the two largest."""


def judge(sample: Sample, client: ClientUse, settings: Benchmark, *, interrupted: bool = False) -> Verdict:
    """Judge one pass.

    Args:
        interrupted: whether somebody ended it before its time.
    """
    warnings = ["The measurement was interrupted: it is shorter than asked for."] if interrupted else []
    left = gone(sample.records)
    if not sample.answered:
        # Who was left in the warm-up would not be helped by a longer window.
        return Verdict(left if left and not sample.measured else [*left, _no_answer(sample)], warnings)
    clients = [*_late(sample, settings), *_busy(client)]
    growing = growth(sample)
    findings = [
        *left,
        *_errors(sample, settings),
        *clients,
        *_tokens_missing(sample, settings),
        *_too_short(sample, settings),
    ]
    warnings += [*_doubtful_tokens(sample), *_failed(sample), *([] if findings else _few(sample))]
    return Verdict(
        findings=findings,
        warnings=[*warnings, *([growing] if growing else [])],
        client_limited=bool(clients),
        unsteady=growing is not None,
    )


def _no_answer(sample: Sample) -> str:
    if not sample.measured:
        return "No request was due in the measured window; ask for more requests or a longer one."
    return f"No request was answered, of {len(sample.measured)}; see what the server says of them."


def _errors(sample: Sample, settings: Benchmark) -> list[str]:
    failed, measured = len(sample.measured) - len(sample.answered), len(sample.measured)
    if failed <= settings.max_error_share * measured:
        return []
    return [
        f"{failed} of {measured} requests failed ({failed / measured:.1%}); at most "
        f"{settings.max_error_share:.4g} of them may (max_error_share). The figures are of the rest only."
    ]


def _late(sample: Sample, settings: Benchmark) -> list[str]:
    """The client sent late: the load was not the one asked for.

    The gap is the mean one, as bursts have gaps of nearly nothing.
    """
    measured = sample.measured
    allowed_s = LATE_S + LATE_SHARE_OF_GAP * max(sample.window.length_s, 0.0) / len(measured)
    delays_s = [record.sent_s - record.scheduled_s for record in measured]
    late = sum(delay_s > allowed_s for delay_s in delays_s)
    if late <= settings.max_late_share * len(measured):
        return []
    return [
        f"{late} of {len(measured)} requests ({late / len(measured):.1%}) were sent more than "
        f"{allowed_s * 1e3:.2f} ms late (1 ms and 1 % of the mean gap), at worst {max(delays_s) * 1e3:.1f} "
        f"ms; at most {settings.max_late_share:.4g} of them may be (max_late_share). The load was not the "
        f"one asked for: {_RELIEF}."
    ]


_RELIEF = "give the client cores or a node of its own, more --processes, or a lower rate"


def _busy(client: ClientUse) -> list[str]:
    if client.busiest_share < MAX_BUSY_SHARE:
        return []
    return [
        f"The client's busiest process used {client.busiest_share:.0%} of a core; from {MAX_BUSY_SHARE:.0%} "
        f"on the client is the limit, and not the server: {_RELIEF}."
    ]


def _tokens_missing(sample: Sample, settings: Benchmark) -> list[str]:
    answered = sample.answered
    found = []
    uncounted = sum(record.output_tokens is None or record.output_by == BY_REQUEST for record in answered)
    if uncounted:
        found.append(
            f"Nobody counted the output tokens of {uncounted} of {len(answered)} answers; the number asked "
            "for is too high where the model stopped earlier. Name the folder of the tokenizer "
            "(workload.tokenizer, --tokenizer)."
        )
    empty = sum(record.output_tokens == 0 for record in answered)
    if empty > settings.max_error_share * len(answered):
        found.append(
            f"{empty} of {len(answered)} answers hold no token; at most {settings.max_error_share:.4g} of "
            "them may (max_error_share). An answer that is empty is fast and worth nothing."
        )
    if settings.exact_output:
        found += _not_exact(answered)
    return found


def _not_exact(answered: Sequence[RequestRecord]) -> list[str]:
    """By those who count tokens as the model made them: a text that is cut anew may have another number."""
    lengths = [
        (record.output_tokens, record.requested_tokens)
        for record in answered
        if record.output_by in (BY_MODEL, BY_RESPONSES) and record.output_tokens != record.requested_tokens
    ]
    if not lengths:
        return []
    given, asked = lengths[0]
    return [
        f"{len(lengths)} of {len(answered)} answers are not as long as asked for (exact_output), the first "
        f"of them {given} tokens and not {asked}. Does the model take min_length?"
    ]


def _too_short(sample: Sample, settings: Benchmark) -> list[str]:
    measured, length_s = len(sample.measured), sample.window.length_s
    found = []
    if measured < settings.min_requests:
        found.append(
            f"{_requests_were(measured)} measured; it takes {settings.min_requests} (min_requests). Ask for "
            "more requests or a longer window."
        )
    median_s = LatencyFromSchedule().of(sample).p50 / 1e3
    least_s = max(settings.min_window_seconds, median_s)
    if length_s < least_s:
        why = "half of the requests took longer" if median_s >= least_s else "min_window_seconds"
        found.append(
            f"The measured window is {length_s:.2f} s long; it takes {least_s:.2f} s ({why}). Ask for more "
            "requests or a longer window."
        )
    return found


def _doubtful_tokens(sample: Sample) -> list[str]:
    answered = sample.answered
    found = []
    for doubt, doubtful in _DOUBTS:
        count = sum(doubtful(record) for record in answered)
        if count:
            found.append(f"In {count} of {len(answered)} answers {doubt}")
    return found


def _unlike(record: RequestRecord) -> bool:
    return bool(record.chunks_s) and record.output_tokens not in (None, sum(record.chunk_tokens))


_DOUBTS: tuple[tuple[str, Callable[[RequestRecord], bool]], ...] = (
    (
        "each response was taken for one output token.",
        lambda record: record.output_by == BY_RESPONSES,
    ),
    (
        "the tokens of the chunks are not those of the whole: the inter-token latency is one of responses.",
        _unlike,
    ),
)


def _failed(sample: Sample) -> list[str]:
    measured, failed = len(sample.measured), len(sample.measured) - len(sample.answered)
    if not failed:
        return []
    return [
        f"{failed} of {measured} requests failed and {'are' if failed > 1 else 'is'} in no latency: for "
        "those who waited in vain the tail is longer than it looks."
    ]


def _few(sample: Sample) -> list[str]:
    answered = len(sample.answered)
    if answered >= P99_REQUESTS:
        return []
    return [
        f"{_requests_were(answered)} answered: with fewer than {P99_REQUESTS} the p99 is the maximum in "
        "effect."
    ]


def _requests_were(count: int) -> str:
    return "1 request was" if count == 1 else f"{count} requests were"
