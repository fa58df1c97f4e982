"""Chooses the next tokens of all running requests at once, each by the rules of its request.

A row's token does not depend on the other rows of the step: a rule that only some rows need leaves the scores
of the others unchanged to the last bit. The host knows which rules a step needs, so that a step of greedy
requests costs little more than finding the largest logit.

The rules and their order are TensorRT-LLM's, as of 2024 (``kernels/penaltyKernels.cu``,
``layers/layersFactory.h``): embedding bias, temperature, repetition penalty, presence penalty, frequency
penalty, minimum length, bad words. The prompt's tokens count for all three penalties. Temperature, penalties
and words apply to greedy requests, too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from trtllm_hpc.reference import drawing
from trtllm_hpc.reference.generation import NO_END, GenerationRequest, Sampling
from trtllm_hpc.reference.stop_words import LOWEST, WordMatcher, to_device


class Needs(enum.IntFlag):
    """What a request needs besides the token with the largest logit. A step does no more than is needed."""

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
        """What this request needs."""
        sampling = request.sampling
        penalties = bool(
            sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty
        )
        needed = {
            cls.BIAS: request.embedding_bias is not None,
            # By itself it does not change which logit is largest, but beside a penalty it does.
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
        for need, is_needed in needed.items():
            needs |= need if is_needed else cls.NOTHING
        return needs


class Counts(NamedTuple):
    """Integers of each slot or row, int64."""

    stream: torch.Tensor
    top_k: torch.Tensor
    end_id: torch.Tensor
    min_new_tokens: torch.Tensor
    max_new_tokens: torch.Tensor
    new_tokens: torch.Tensor
    """Number of tokens chosen so far."""


class Factors(NamedTuple):
    """Real numbers of each slot or row, float32."""

    inverse_temperature: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    top_p: torch.Tensor


def to_host(sampled: torch.Tensor) -> tuple[list[int], list[bool], list[float]]:
    """Copy what ``Sampler.sample`` returned to the host in one transfer; waits for the device.

    For each row: the token, whether it is the end token, completes a stop word, or is the last one allowed,
    and the natural logarithm of its probability by the raw logits (zero if no row of the step needs it).
    """
    tokens, finished, bits = sampled.cpu()
    return tokens.tolist(), finished.bool().tolist(), bits.int().view(torch.float32).tolist()


class Sampler:
    """The sampling rules of the requests that run at once, by slot."""

    def __init__(self, *, slots: int, vocab_size: int, device: torch.device) -> None:
        self._slots = slots
        self._vocab_size = vocab_size
        self._device = device
        self._needs = np.zeros(slots, dtype=np.int64)
        self._top_k = np.ones(slots, dtype=np.int64)
        self._counts = torch.zeros(slots, len(Counts._fields), dtype=torch.int64, device=device)
        self._factors = torch.ones(slots, len(Factors._fields), device=device)
        self._words = WordMatcher(slots, device)

    def admit(self, slot: int, request: GenerationRequest) -> None:
        """Put a request into a slot. Does not wait for the device."""
        self.release(slot)
        needs = Needs.of(request)
        self._needs[slot] = needs
        self._top_k[slot] = min(request.sampling.top_k, drawing.TOP_K_MAX)
        self._counts[slot] = to_device(_counts_of(request), self._device)
        self._factors[slot] = to_device(_factors_of(request.sampling, needs), self._device)
        if request.embedding_bias is not None:
            bias = torch.tensor(request.embedding_bias, dtype=torch.float32)
            self._bias[slot] = to_device(bias, self._device)
        if needs & Needs.PENALTIES:
            prompt = to_device(torch.tensor(request.prompt), self._device)
            row = self._occurrences[slot].zero_()
            row.scatter_add_(0, prompt, torch.ones_like(prompt, dtype=row.dtype))
        if needs & Needs.WORDS:
            self._words.admit(slot, request.prompt, request.bad_words, request.stop_words)

    def release(self, slot: int) -> None:
        """Forget the slot's request. Does not wait for the device."""
        needs = Needs(int(self._needs[slot]))
        if needs & Needs.BIAS:
            self._bias[slot] = 0
        if needs & Needs.WORDS:
            self._words.release(slot)
        # Bias and words apply to every row of a step, so nothing may be left for a later request.
        self._needs[slot] = Needs.NOTHING
        self._top_k[slot] = 1

    def sample(self, logits: torch.Tensor, slots: torch.Tensor, host_slots: Sequence[int]) -> torch.Tensor:
        """Choose a token for each row and count it as part of the answer, without waiting for the device.

        Returns int64 [3, rows] for ``to_host``.
        ``logits`` are [rows, vocabulary], of any float type, and not changed; ``slots`` are int64 [rows] on
        the device, no slot twice, and ``host_slots`` the same on the host.
        """
        host = np.asarray(host_slots)
        needs = Needs(int(np.bitwise_or.reduce(self._needs[host], initial=0)))
        counts = Counts(*self._counts[slots].unbind(1))
        factors = Factors(*self._factors[slots].unbind(1))
        scores = logits
        if needs & Needs.CHANGED_SCORES:
            scores = self._scores(logits, slots, needs, counts, factors)
        tokens = scores.argmax(dim=1)
        if needs & Needs.BOUNDED_DRAW:
            self._draw(tokens, scores, host, Needs.BOUNDED_DRAW, counts, factors)
        if needs & Needs.UNBOUNDED_DRAW:
            self._draw(tokens, scores, host, Needs.UNBOUNDED_DRAW, counts, factors)
        finished = self._count(tokens, slots, needs, counts)
        bits = _log_probs(logits, tokens, needs).view(torch.int32)
        return torch.stack((tokens, finished.long(), bits.long()))

    def _scores(
        self, logits: torch.Tensor, slots: torch.Tensor, needs: Needs, counts: Counts, factors: Factors
    ) -> torch.Tensor:
        scores = logits.to(torch.float32, copy=True)
        if needs & Needs.BIAS:
            scores += self._bias[slots]
        if needs & Needs.TEMPERATURE:
            scores *= factors.inverse_temperature[:, None]
        if needs & Needs.PENALTIES:
            scores = _penalised(scores, self._occurrences[slots], factors)
        if needs & Needs.MIN_LENGTH:
            end = counts.end_id.clamp(min=0)[:, None]
            too_early = (counts.new_tokens < counts.min_new_tokens)[:, None]
            scores.scatter_(1, end, scores.gather(1, end).masked_fill_(too_early, LOWEST))
        if needs & Needs.BAD_WORDS:
            self._words.ban(scores, slots)
        return scores

    def _draw(
        self,
        tokens: torch.Tensor,
        scores: torch.Tensor,
        host_slots: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        kind: Needs,
        counts: Counts,
        factors: Factors,
    ) -> None:
        """Replace the tokens of the rows that need this kind of draw."""
        places = np.flatnonzero(self._needs[host_slots] & kind)
        rows = to_device(torch.from_numpy(places), self._device)
        chances = drawing.uniform(counts.stream[rows], counts.new_tokens[rows])
        drawable, top_p = scores[rows].float(), factors.top_p[rows]
        if kind is Needs.BOUNDED_DRAW:
            largest = int(self._top_k[host_slots].max())
            drawn = drawing.bounded(drawable, chances, counts.top_k[rows], top_p, largest)
        else:
            drawn = drawing.unbounded(drawable, chances, top_p)
        tokens.index_copy_(0, rows, drawn)

    def _count(self, tokens: torch.Tensor, slots: torch.Tensor, needs: Needs, counts: Counts) -> torch.Tensor:
        """Count the new tokens; return whether each is the last of its answer."""
        new_tokens = counts.new_tokens + 1
        Counts(*self._counts.unbind(1)).new_tokens.index_copy_(0, slots, new_tokens)
        finished = (tokens == counts.end_id) | (new_tokens >= counts.max_new_tokens)
        if needs & Needs.PENALTIES:
            places = slots * self._vocab_size + tokens
            ones = torch.ones_like(places, dtype=self._occurrences.dtype)
            self._occurrences.view(-1).scatter_add_(0, places, ones)
        if needs & Needs.WORDS:
            finished |= self._words.append(slots, tokens)
        return finished

    # [slots, vocabulary] each, made when they are first needed; most servers never need them.
    @cached_property
    def _bias(self) -> torch.Tensor:
        return torch.zeros(self._slots, self._vocab_size, device=self._device)

    @cached_property
    def _occurrences(self) -> torch.Tensor:
        """How often each token occurs in prompt and answer, for slots with penalties."""
        return torch.zeros(self._slots, self._vocab_size, dtype=torch.int32, device=self._device)


def _counts_of(request: GenerationRequest) -> torch.Tensor:
    sampling = request.sampling
    counts = {
        "stream": drawing.stream(sampling.seed),
        "top_k": min(sampling.top_k, drawing.TOP_K_MAX),
        "end_id": request.end_id,
        "min_new_tokens": 0 if request.end_id == NO_END else sampling.min_new_tokens,
        "max_new_tokens": request.max_new_tokens,
        "new_tokens": 0,
    }
    return torch.tensor([counts[name] for name in Counts._fields])


def _factors_of(sampling: Sampling, needs: Needs) -> torch.Tensor:
    # The millionth keeps a temperature of 0 finite; TensorRT-LLM adds the same.
    inverse = 1 / (sampling.temperature + 1e-6) if needs & Needs.TEMPERATURE else 1.0
    factors = {
        "inverse_temperature": inverse,
        "repetition": sampling.repetition_penalty,
        "presence": sampling.presence_penalty,
        "frequency": sampling.frequency_penalty,
        "top_p": sampling.top_p,
    }
    return torch.tensor([factors[name] for name in Factors._fields])


def _penalised(scores: torch.Tensor, occurrences: torch.Tensor, factors: Factors) -> torch.Tensor:
    seen = occurrences > 0
    repetition = factors.repetition[:, None]
    repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
    scores = torch.where(seen, repeated, scores)
    scores -= seen * factors.presence[:, None]
    scores -= occurrences * factors.frequency[:, None]
    return scores


def _log_probs(logits: torch.Tensor, tokens: torch.Tensor, needs: Needs) -> torch.Tensor:
    if not needs & Needs.LOG_PROBS:
        return torch.zeros_like(tokens, dtype=torch.float32)
    raw = logits.float()
    return raw.gather(1, tokens[:, None]).squeeze(1) - raw.logsumexp(dim=1)
