"""The metrics of a pass: meaning, unit, formula, and the figure for a sample of requests.

To add a metric, define it here, and add a row to ``docs/reference/metrics.md`` and a test to
``tests/bench/test_metrics.py``.

Times are measured from the schedule and from the send. Times from the schedule include the full wait behind a
stalled server or a late client (no coordinated omission). Without streaming, times of single tokens have no
value; they are never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from trtllm_hpc.bench.records import NoValue, RequestRecord, Sample
from trtllm_hpc.bench.results import Distribution, Figure, OpenLoop


@dataclass(frozen=True, kw_only=True)
class Metric:
    """The description of a metric."""

    key: str
    """Name in files; times end with ``_ms``, rates with ``_per_s``."""
    label: str
    """Name in tables and plots."""
    unit: str
    meaning: str
    formula: str
    better: Literal["lower", "higher"] | None = None
    """Better direction; ``None`` if the metric describes the load instead of the server."""
    needs_streaming: bool = False
    """Whether only streamed answers have a value."""
    slo_name: str | None = None
    """Name in an SLO; ``None`` if an SLO cannot limit the metric."""


@dataclass(frozen=True, kw_only=True)
class Single(Metric):
    """A metric that is one number for a whole pass."""

    of: Callable[[Sample], float]
    """Returns the number for a sample, or raises NoValue."""


@dataclass(frozen=True, kw_only=True)
class PerRequest(Metric):
    """A metric of single requests; its figure is the distribution of all values."""

    values: Callable[[RequestRecord], Sequence[float]]
    """Returns the values of one request, zero or more."""
    includes_failed: bool = False
    """Whether failed requests have values, too."""

    def of(self, sample: Sample) -> Distribution:
        """Return the distribution over the measured requests; raises NoValue if there are no values."""
        records = sample.measured if self.includes_failed else sample.answered
        return distribution(value for record in records for value in self.values(record))


def distribution(values: Iterable[float]) -> Distribution:
    """Summarise values, with percentiles interpolated linearly. Raises NoValue if there are no values."""
    import numpy as np

    array = np.fromiter(values, dtype=float)
    if not array.size:
        raise NoValue
    p50, p90, p95, p99 = (float(value) for value in np.percentile(array, (50, 90, 95, 99)))
    return Distribution(float(array.mean()), p50, p90, p95, p99, float(array.max()), int(array.size))


# The load -------------------------------------------------------------------------------------------


def _scheduled_rate(sample: Sample) -> float:
    if not isinstance(sample.level, OpenLoop):
        raise NoValue
    return sample.rate(len(sample.measured))


SCHEDULED_RATE = Single(
    key="asked_rate_per_s",
    label="scheduled rate",
    unit="requests/s",
    meaning="The rate of the schedule in the window. Open loop only.",
    formula="requests due in the window / its length",
    of=_scheduled_rate,
)


SENT_RATE = Single(
    key="sent_rate_per_s",
    label="sent rate",
    unit="requests/s",
    meaning="The rate at which the client sent requests, whenever they were due.",
    formula="requests sent in the window / its length",
    of=lambda sample: sample.rate(
        sum(sample.window.start_s <= record.sent_s < sample.window.end_s for record in sample.records)
    ),
)


# Throughput -----------------------------------------------------------------------------------------
#
# Warm-up requests that end in the window count, and measured requests that end after it do not. So the rate
# is neither too low at the start of the window nor too high while the load drains.


def _all_answered(sample: Sample) -> list[RequestRecord]:
    answered = [record for record in sample.records if record.ok]
    if not answered:
        raise NoValue
    return answered


def _output_tokens_in_window(sample: Sample) -> float:
    return sum(_arrived_tokens(record, sample) for record in _all_answered(sample))


def _arrived_tokens(record: RequestRecord, sample: Sample) -> float:
    if record.output_tokens is None:
        raise NoValue
    counted = sum(record.chunk_tokens)
    if not counted or len(record.chunk_tokens) != len(record.chunks_s):
        return record.output_tokens if sample.within(record.ended_s) else 0
    inside = sum(
        tokens
        for chunk_s, tokens in zip(record.chunks_s, record.chunk_tokens, strict=True)
        if sample.within(chunk_s)
    )
    # Scaled to the answer's own count, because the counts of single chunks can be less exact.
    return record.output_tokens * inside / counted


def _total_tokens_in_window(sample: Sample) -> float:
    prompts = 0
    for record in _all_answered(sample):
        if record.input_tokens is None:
            raise NoValue
        first_s = record.ended_s if record.first_token_s is None else record.first_token_s
        prompts += record.input_tokens if sample.within(first_s) else 0
    return prompts + _output_tokens_in_window(sample)


FINISHED_RATE = Single(
    key="finished_rate_per_s",
    label="request throughput",
    unit="requests/s",
    meaning="The rate at which complete answers arrived.",
    formula="requests of the pass that were answered in the window / its length",
    better="higher",
    slo_name="requests",
    of=lambda sample: sample.rate(sum(sample.within(record.ended_s) for record in _all_answered(sample))),
)
OUTPUT_TOKEN_RATE = Single(
    key="output_tokens_per_s",
    label="output token throughput",
    unit="tokens/s",
    meaning="The rate at which output tokens arrived, over all requests.",
    formula=(
        "output tokens that arrived in the window / its length: by the times of chunks, or all at the end if "
        "the answer was not streamed; complete answers only"
    ),
    better="higher",
    slo_name="tokens",
    of=lambda sample: sample.rate(_output_tokens_in_window(sample)),
)
TOTAL_TOKEN_RATE = Single(
    key="total_tokens_per_s",
    label="total token throughput",
    unit="tokens/s",
    meaning="The rate at which prompts and answers were processed, in tokens.",
    formula=(
        "(output tokens that arrived in the window + input tokens of requests whose first output arrived in "
        "it) / its length"
    ),
    better="higher",
    slo_name="total_tokens",
    of=lambda sample: sample.rate(_total_tokens_in_window(sample)),
)

# Latency --------------------------------------------------------------------------------------------


def _time_per_output_token(record: RequestRecord) -> Sequence[float]:
    """Return the mean time between tokens; empty for a single chunk, whose tokens arrive together."""
    tokens = record.output_tokens
    if len(record.chunks_s) < 2 or tokens is None or tokens < 2:
        return ()
    return [(record.chunks_s[-1] - record.chunks_s[0]) * 1e3 / (tokens - 1)]


def _inter_token_latencies(record: RequestRecord) -> Sequence[float]:
    """Return one value for each token after the first chunk."""
    if len(record.chunk_tokens) != len(record.chunks_s):
        return ()
    gaps: list[float] = []
    previous_s = record.chunks_s[0] if record.chunks_s else 0.0
    for chunk_s, tokens in zip(record.chunks_s[1:], record.chunk_tokens[1:], strict=True):
        # Skip a chunk without a token, so that the next token's gap includes it.
        if tokens > 0:
            gaps += [(chunk_s - previous_s) * 1e3 / tokens] * tokens
            previous_s = chunk_s
    return gaps


_latency = partial(PerRequest, unit="ms", better="lower")

TTFT = _latency(
    key="ttft_ms",
    label="time to first token",
    meaning="How long a user waits for the first output. Needs streaming.",
    formula="first chunk - scheduled",
    needs_streaming=True,
    slo_name="ttft",
    values=lambda record: [(first_s - record.scheduled_s) * 1e3 for first_s in record.chunks_s[:1]],
)
TTFT_FROM_SEND = _latency(
    key="ttft_from_send_ms",
    label="time to first token, from send",
    meaning="Time to first token without the client's delay; TTFT of other tools. Needs streaming.",
    formula="first chunk - sent",
    needs_streaming=True,
    slo_name="ttft_from_send",
    values=lambda record: [(first_s - record.sent_s) * 1e3 for first_s in record.chunks_s[:1]],
)
TTFA = _latency(
    key="ttfa_ms",
    label="time to first answer token",
    meaning="Time until the answer begins, after a reasoning model's thoughts. Needs streaming.",
    formula="first chunk with more than reasoning - scheduled; only if any answer of the pass has reasoning",
    needs_streaming=True,
    slo_name="ttfa",
    values=lambda record: (
        [] if record.first_answer_s is None else [(record.first_answer_s - record.scheduled_s) * 1e3]
    ),
)
# A mean per request hides single stalls, which the inter-token latency shows.
TPOT = _latency(
    key="tpot_ms",
    label="time per output token",
    meaning="The mean time between tokens of one request. Needs streaming in two chunks or more.",
    formula="(last chunk - first chunk) / (output tokens - 1)",
    needs_streaming=True,
    slo_name="tpot",
    values=_time_per_output_token,
)
# Over all tokens of all requests, so that no mean hides rare stalls.
ITL = _latency(
    key="itl_ms",
    label="inter-token latency",
    meaning=(
        "The time from one token to the next, over all tokens of all requests, without the wait for the "
        "first. Needs streaming."
    ),
    formula="for each chunk of k tokens after the first: k values of (chunk - previous chunk) / k",
    needs_streaming=True,
    slo_name="itl",
    values=_inter_token_latencies,
)
LATENCY = _latency(
    key="latency_ms",
    label="latency",
    meaning="How long the answer took to its last token, including any wait to be sent.",
    formula="end - scheduled",
    slo_name="latency",
    values=lambda record: [(record.ended_s - record.scheduled_s) * 1e3],
)
LATENCY_FROM_SEND = _latency(
    key="latency_from_send_ms",
    label="latency, from send",
    meaning="How long the answer took to its last token after the send; latency of other tools.",
    formula="end - sent",
    slo_name="latency_from_send",
    values=lambda record: [(record.ended_s - record.sent_s) * 1e3],
)
CLIENT_LATENESS = PerRequest(
    key="client_lateness_ms",
    label="client lateness",
    unit="ms",
    meaning=(
        "How much later than scheduled the client sent: the client's fault, not the server's. In a closed "
        "loop: the client's turnaround, from the end of an answer to the next request of that slot."
    ),
    formula="sent - scheduled, in a closed loop sent - freed, including failed requests",
    values=lambda record: [
        (record.sent_s - (record.scheduled_s if record.freed_s is None else record.freed_s)) * 1e3
    ],
    includes_failed=True,
)

# Errors and goodput (DistServe, Zhong et al. 2024, section 2) ---------------------------------------


def _error_share(sample: Sample) -> float:
    if not sample.measured:
        raise NoValue
    return (len(sample.measured) - len(sample.answered)) / len(sample.measured)


def _goodput(sample: Sample) -> float:
    if sample.is_good is None:
        raise NoValue
    answered = [record for record in sample.records if record.ok]
    return sample.rate(sum(sample.within(record.ended_s) and sample.is_good(record) for record in answered))


ERROR_SHARE = Single(
    key="error_share",
    label="errors",
    unit="share",
    meaning="The share of requests without a complete answer: 0.01 is 1 %.",
    formula="measured requests that failed / measured requests",
    better="lower",
    slo_name="errors",
    of=_error_share,
)
GOODPUT = Single(
    key="goodput_per_s",
    label="goodput",
    unit="requests/s",
    meaning="The rate of answers that met every limit of the SLO.",
    formula="requests of the pass that were answered in the window and met every limit / its length",
    better="higher",
    of=_goodput,
)
# Lengths --------------------------------------------------------------------------------------------

_tokens = partial(PerRequest, unit="tokens")

INPUT_TOKENS = _tokens(
    key="input_tokens",
    label="input tokens per request",
    meaning="The length of a prompt.",
    formula="input tokens of an answered request, if known",
    values=lambda record: [] if record.input_tokens is None else [record.input_tokens],
)
OUTPUT_TOKENS = _tokens(
    key="output_tokens",
    label="output tokens per request",
    meaning="The length of an answer.",
    formula="output tokens of an answered request, if known",
    values=lambda record: [] if record.output_tokens is None else [record.output_tokens],
)

REASONING_TOKENS = _tokens(
    key="reasoning_tokens",
    label="reasoning tokens per request",
    meaning="The length of a reasoning model's thoughts before the answer; included in output tokens.",
    formula="by the server's usage or the chunks; only if any answer of the pass has reasoning",
    values=lambda record: [] if record.reasoning_tokens is None else [record.reasoning_tokens],
)


def _cached_share(sample: Sample) -> float:
    known = [
        record
        for record in sample.answered
        if record.cached_tokens is not None and record.input_tokens is not None
    ]
    if total := sum(record.input_tokens or 0 for record in known):
        return sum(record.cached_tokens or 0 for record in known) / total
    raise NoValue


CACHED_SHARE = Single(
    key="cached_prompt_share",
    label="cached prompt tokens",
    unit="share",
    meaning="The share of the prompts that the server found in its KV cache: 0.9 is 90 %.",
    formula="cached tokens / input tokens, of answered requests whose usage has both",
    better="higher",
    of=_cached_share,
)

# Energy ---------------------------------------------------------------------------------------------


def _joules(sample: Sample, over: float = 1.0) -> float:
    if sample.energy is None or over <= 0:
        raise NoValue
    return sample.energy.joules / over


ENERGY_PER_TOKEN = Single(
    key="energy_per_output_token_j",
    label="energy per output token",
    unit="J",
    meaning="Energy of all GPUs of the server per output token, including idle times and prompts.",
    formula="energy of the GPUs in the window / output tokens that arrived in it",
    better="lower",
    of=lambda sample: _joules(sample, over=_output_tokens_in_window(sample)),
)
ENERGY_PER_REQUEST = Single(
    key="energy_per_request_j",
    label="energy per request",
    unit="J",
    meaning="Energy of all GPUs of the server per complete answer, including idle times.",
    formula="energy of the GPUs in the window / requests answered in it",
    better="lower",
    of=lambda sample: _joules(sample, over=FINISHED_RATE.of(sample) * sample.window.length_s),
)
MEAN_POWER = Single(
    key="power_mean_w",
    label="mean power",
    unit="W",
    meaning="The mean power of all GPUs of the server together.",
    formula="energy of the GPUs in the window / its length",
    of=lambda sample: sample.rate(_joules(sample)),
)

METRICS: tuple[Single | PerRequest, ...] = (
    *(SCHEDULED_RATE, SENT_RATE, FINISHED_RATE, OUTPUT_TOKEN_RATE, TOTAL_TOKEN_RATE),
    *(TTFT, TTFT_FROM_SEND, TTFA, TPOT, ITL, LATENCY, LATENCY_FROM_SEND, CLIENT_LATENESS),
    *(ERROR_SHARE, GOODPUT, INPUT_TOKENS, OUTPUT_TOKENS, REASONING_TOKENS, CACHED_SHARE),
    *(ENERGY_PER_TOKEN, ENERGY_PER_REQUEST, MEAN_POWER),
)
"""All metrics, in the order of tables."""

BY_KEY: dict[str, Single | PerRequest] = {metric.key: metric for metric in METRICS}


def figures(sample: Sample, metrics: Sequence[Single | PerRequest] = METRICS) -> dict[str, Figure]:
    """Return the figure of every metric that has a value, by key."""
    by_key: dict[str, Figure] = {}
    for metric in metrics:
        try:
            by_key[metric.key] = metric.of(sample)
        except NoValue:
            continue
    return by_key
