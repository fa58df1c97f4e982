"""Each request's own figures, in milliseconds, for distributions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from trtllm_hpc.bench.records import RequestRecord


def latency_ms(record: RequestRecord) -> list[float]:
    """From when the request was due to its end."""
    return [1e3 * (record.ended_s - record.scheduled_s)]


def ttft_ms(record: RequestRecord) -> list[float]:
    """From when the request was due to its first output."""
    first = record.first_token_s
    return [] if first is None else [1e3 * (first - record.scheduled_s)]


def tpot_ms(record: RequestRecord) -> list[float]:
    """Time of each output token after the first response, on average over the request."""
    after = sum(record.chunk_tokens[1:])
    return [1e3 * (record.chunks_s[-1] - record.chunks_s[0]) / after] if after else []


def itl_ms(record: RequestRecord) -> list[float]:
    """Gaps between one response of the stream and the next."""
    return [1e3 * (late - early) for early, late in pairwise(record.chunks_s)]


VALUES: dict[str, Callable[[RequestRecord], list[float]]] = {
    "ttft_ms": ttft_ms,
    "tpot_ms": tpot_ms,
    "itl_ms": itl_ms,
    "latency_ms": latency_ms,
}
"""By the key of the metric whose distribution they make."""


def values_of(key: str, records: Iterable[RequestRecord]) -> list[float]:
    """All values of one metric over the answered requests among the records."""
    return [value for record in records if record.ok for value in VALUES[key](record)]
