"""What a request asks of the choice of its tokens, so that a step does no more than its requests ask for."""

from __future__ import annotations

import enum

from trtllm_hpc.reference.generation import GenerationRequest


class Needs(enum.IntFlag):
    """What a request asks for besides the largest logit."""

    NOTHING = 0
    BIAS = enum.auto()
    TEMPERATURE = enum.auto()
    PENALTIES = enum.auto()
    MIN_LENGTH = enum.auto()
    BAD_WORDS = enum.auto()
    STOP_WORDS = enum.auto()
    BOUNDED_DRAW = enum.auto()
    """A draw among the likeliest k tokens."""
    UNBOUNDED_DRAW = enum.auto()
    """A draw from the whole vocabulary."""
    LOG_PROBS = enum.auto()

    WORDS = BAD_WORDS | STOP_WORDS
    CHANGED_SCORES = BIAS | TEMPERATURE | PENALTIES | MIN_LENGTH | BAD_WORDS

    @classmethod
    def of(cls, request: GenerationRequest) -> Needs:
        """What this request asks for."""
        sampling = request.sampling
        penalties = bool(
            sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
        )
        asked = {
            cls.BIAS: request.embedding_bias is not None,
            # Alone it changes no order, but what a penalty subtracts weighs more or less beside it.
            cls.TEMPERATURE: sampling.temperature != 1 and (penalties or not sampling.is_greedy),
            cls.PENALTIES: penalties,
            cls.MIN_LENGTH: sampling.min_new_tokens > 0,
            cls.BAD_WORDS: bool(request.bad_words),
            cls.STOP_WORDS: bool(request.stop_words),
            cls.BOUNDED_DRAW: sampling.top_k > 1,
            cls.UNBOUNDED_DRAW: sampling.top_k == 0,
            cls.LOG_PROBS: request.return_log_probs,
        }
        needs = cls.NOTHING
        for need, is_asked in asked.items():
            needs |= need if is_asked else cls.NOTHING
        return needs
