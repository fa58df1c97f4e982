"""How long prompts and answers were."""

from __future__ import annotations

from trtllm_hpc.bench.metrics.base import OneEach
from trtllm_hpc.bench.records import RequestRecord


class InputTokens(OneEach):
    """Of answered requests, where somebody counted."""

    key = "input_tokens"
    label = "input tokens per request"
    unit = "tokens"
    meaning = "Length of a prompt."
    formula = "input tokens of an answered request"

    def value(self, record: RequestRecord) -> float | None:
        """The number, if somebody counted."""
        return record.input_tokens


class OutputTokens(OneEach):
    """Of answered requests, where somebody counted."""

    key = "output_tokens"
    label = "output tokens per request"
    unit = "tokens"
    meaning = "Length of an answer."
    formula = "output tokens of an answered request"

    def value(self, record: RequestRecord) -> float | None:
        """The number, if somebody counted."""
        return record.output_tokens
