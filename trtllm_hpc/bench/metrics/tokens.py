"""How long prompts and answers were."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.bench.metrics.base import PerRequest
from trtllm_hpc.bench.records import RequestRecord


class InputTokens(PerRequest):
    """Of answered requests, where somebody counted."""

    key = "input_tokens"
    label = "input tokens per request"
    unit = "tokens"
    meaning = "Length of a prompt."
    formula = "input tokens of an answered request"

    def values(self, record: RequestRecord) -> Sequence[float]:
        """One value, if somebody counted."""
        return () if record.input_tokens is None else (record.input_tokens,)


class OutputTokens(PerRequest):
    """Of answered requests, where somebody counted."""

    key = "output_tokens"
    label = "output tokens per request"
    unit = "tokens"
    meaning = "Length of an answer."
    formula = "output tokens of an answered request"

    def values(self, record: RequestRecord) -> Sequence[float]:
        """One value, if somebody counted."""
        return () if record.output_tokens is None else (record.output_tokens,)
