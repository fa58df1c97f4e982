"""How long requests waited: for the first token, between tokens, for the whole answer.

Times that only a stream shows have no value where nothing was streamed, and are never zero then.
"""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.bench.metrics.base import OneEach, PerRequest
from trtllm_hpc.bench.records import RequestRecord


class TimeToFirstToken(OneEach):
    """From the schedule, so that what a stalled server or a late client held up counts in full."""

    key = "ttft_ms"
    label = "time to first token"
    unit = "ms"
    meaning = "How long a person waits for the first output. Needs streaming."
    formula = "first chunk - scheduled"
    better = "lower"
    streamed = True

    def value(self, record: RequestRecord) -> float | None:
        """The time, if the answer was streamed."""
        first_s = record.first_token_s
        return None if first_s is None else (first_s - record.scheduled_s) * 1e3


class TimeToFirstTokenFromSend(OneEach):
    """What other tools call TTFT."""

    key = "ttft_from_send_ms"
    label = "time to first token, from send"
    unit = "ms"
    meaning = "The same without the client's own delay; other tools mean this by TTFT. Needs streaming."
    formula = "first chunk - sent"
    better = "lower"
    streamed = True

    def value(self, record: RequestRecord) -> float | None:
        """The time, if the answer was streamed."""
        first_s = record.first_token_s
        return None if first_s is None else (first_s - record.sent_s) * 1e3


class TimePerOutputToken(OneEach):
    """One mean a request; stalls within it show in the inter-token latency only.

    An answer in one chunk has no value: its tokens came together, and when
    they were made cannot be told.
    """

    key = "tpot_ms"
    label = "time per output token"
    unit = "ms"
    meaning = "The mean time between tokens of one request. Needs streaming in two chunks or more."
    formula = "(last chunk - first chunk) / (output tokens - 1)"
    better = "lower"
    streamed = True

    def value(self, record: RequestRecord) -> float | None:
        """The mean, if there are two chunks at least."""
        tokens = record.output_tokens
        if len(record.chunks_s) < 2 or tokens is None or tokens < 2:
            return None
        return (record.chunks_s[-1] - record.chunks_s[0]) * 1e3 / (tokens - 1)


class InterTokenLatency(PerRequest):
    """Pooled over all tokens of all requests, so that rare stalls are not smeared into means."""

    key = "itl_ms"
    label = "inter-token latency"
    unit = "ms"
    meaning = (
        "The time from a token to the next, over all tokens of all requests; the wait for the first is not "
        "among them. Needs streaming."
    )
    formula = "each chunk of k tokens after the first: k times (chunk - chunk before) / k"
    better = "lower"
    streamed = True

    def values(self, record: RequestRecord) -> Sequence[float]:
        """One value for each token after the first chunk."""
        if len(record.chunk_tokens) != len(record.chunks_s):
            return ()
        gaps: list[float] = []
        before_s = record.chunks_s[0] if record.chunks_s else 0.0
        for chunk_s, tokens in zip(record.chunks_s[1:], record.chunk_tokens[1:], strict=True):
            # A chunk without a token is no event: the next token's gap spans it.
            if tokens > 0:
                gaps += [(chunk_s - before_s) * 1e3 / tokens] * tokens
                before_s = chunk_s
        return gaps


class LatencyFromSchedule(OneEach):
    """From the schedule: there is no coordinated omission."""

    key = "latency_ms"
    label = "latency"
    unit = "ms"
    meaning = "How long the whole answer took, with all of the wait to be sent."
    formula = "end - scheduled"
    better = "lower"

    def value(self, record: RequestRecord) -> float:
        """The time."""
        return (record.ended_s - record.scheduled_s) * 1e3


class LatencyFromSend(OneEach):
    """What other tools call latency."""

    key = "latency_from_send_ms"
    label = "latency, from send"
    unit = "ms"
    meaning = "How long the whole answer took once the request was on its way."
    formula = "end - sent"
    better = "lower"

    def value(self, record: RequestRecord) -> float:
        """The time."""
        return (record.ended_s - record.sent_s) * 1e3


class ClientLateness(OneEach):
    """The client's own delay, of failed requests too."""

    key = "client_lateness_ms"
    label = "client's lateness"
    unit = "ms"
    meaning = "How much later than scheduled the client sent: its own fault, not the server's."
    formula = "sent - scheduled, of failed requests too"
    of_failed = True

    def value(self, record: RequestRecord) -> float:
        """The time."""
        return (record.sent_s - record.scheduled_s) * 1e3
