"""What the server got done in the window, for whichever request it was.

Requests of the warm-up that end in the window count, and measured ones that
end after it do not: so the rate is neither too low at the window's start nor
too high while the load drains.
"""

from __future__ import annotations

from trtllm_hpc.bench.metrics.base import Metric, NoValue, Sample
from trtllm_hpc.bench.records import RequestRecord


class FinishedRate(Metric):
    """By the ends of whole answers."""

    key = "finished_rate_per_s"
    label = "finished rate"
    unit = "requests/s"
    meaning = "The rate at which whole answers came."
    formula = "requests of the pass that were answered in the window / its length"
    better = "higher"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue if nothing was answered in the whole pass."""
        answered = _answered(sample)
        return sample.rate(sum(sample.within(record.ended_s) for record in answered))


class OutputTokenRate(Metric):
    """By the times of chunks; an answer that was not streamed counts at its end."""

    key = "output_tokens_per_s"
    label = "output tokens"
    unit = "tokens/s"
    meaning = "The rate at which tokens of answers came, whatever request they are of."
    formula = (
        "output tokens that came in the window / its length: by the times of chunks, or all at the end "
        "where nothing was streamed; of requests that were answered in whole"
    )
    better = "higher"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue if the tokens of an answer were not counted."""
        return sample.rate(_output_tokens(sample))


class TotalTokenRate(Metric):
    """Tokens of a prompt are taken as done when its first output comes."""

    key = "total_tokens_per_s"
    label = "input and output tokens"
    unit = "tokens/s"
    meaning = "The rate at which prompts and answers were worked off, in tokens."
    formula = (
        "(output tokens that came in the window + input tokens of requests whose first output came in it) "
        "/ its length"
    )
    better = "higher"

    def of(self, sample: Sample) -> float:
        """The figure; raises NoValue if the tokens of a prompt or of an answer were not counted."""
        prompts = 0
        for record in _answered(sample):
            if record.input_tokens is None:
                raise NoValue
            first_s = record.ended_s if record.first_token_s is None else record.first_token_s
            prompts += record.input_tokens if sample.within(first_s) else 0
        return sample.rate(prompts + _output_tokens(sample))


def _answered(sample: Sample) -> list[RequestRecord]:
    answered = [record for record in sample.records if record.ok]
    if not answered:
        raise NoValue
    return answered


def _output_tokens(sample: Sample) -> float:
    return sum(_arrived(record, sample) for record in _answered(sample))


def _arrived(record: RequestRecord, sample: Sample) -> float:
    """Output tokens of one answer that came in the window."""
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
    # Where chunks were counted by a poorer source, the answer's own count is the one that holds.
    return record.output_tokens * inside / counted
