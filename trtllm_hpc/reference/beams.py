"""Beam search beside the batch: transformers' own ``generate``, one forward pass at a time.

The search runs in a greenlet. It is suspended before each pass but the first and resumed in the engine's next
step, so that other requests never wait longer for a search than for one pass.

In beam search, TensorRT-LLM and transformers differ a little in the meaning of some settings. Here they have
transformers' meaning: penalties, bias and bad words change the log-probabilities, not the logits before the
softmax. A search ends, as TensorRT-LLM's does by default (``getEarlyStopping`` in
``layers/defaultDecodingParams.h``, read as of 2024), when it has as many finished sequences as beams.
"""

from __future__ import annotations

from typing import Any

import torch
from greenlet import getcurrent, greenlet
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.cache_utils import Cache

from trtllm_hpc.reference.attention import PagedCache
from trtllm_hpc.reference.generation import NO_END, GenerationRequest, Progress, Words
from trtllm_hpc.reference.scheduler import Admission


class BeamSearch:
    """One search, on every rank; all ranks get the same result, since their logits are the same."""

    def __init__(self, model: Any, cache: PagedCache, admission: Admission) -> None:
        self._model = model
        self._request = admission.request
        self._record = Record(self._request)
        self._cache = BeamCache(cache, admission.blocks, self._record, model.device)
        self._greenlet = greenlet(self._search)

    @torch.no_grad()
    def advance(self) -> Progress | None:
        """Run one forward pass; return the answer if the search has ended. Collective."""
        result: Progress | None = self._greenlet.switch()
        return result

    @torch.no_grad()
    def close(self) -> None:
        """Abort the search if it has not ended."""
        if self._greenlet:
            self._greenlet.throw()

    def _search(self) -> Progress:
        prompt = torch.tensor([self._request.prompt], device=self._model.device)
        found = self._model.generate(
            prompt,
            # Otherwise tokens of the prompt that equal the padding token would be masked.
            attention_mask=torch.ones_like(prompt),
            past_key_values=self._cache,
            logits_to_keep=0 if self._request.return_context_logits else 1,
            **arguments(self._request, self._record),
        )
        return self._record.result(found.sequences[:, prompt.shape[1] :], found.beam_indices)


def attach(model: Any) -> None:
    """Let searches suspend the model's passes; to be called once for each model.

    One pair of hooks serves all searches: torch does not expect a hook to be removed while another one waits.
    """
    model.register_forward_pre_hook(_before_pass, with_kwargs=True)
    model.register_forward_hook(_after_pass, with_kwargs=True)


def _before_pass(_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Suspend a search and let the engine go on with its step; the next step resumes here."""
    cache = kwargs.get("past_key_values")
    if isinstance(cache, BeamCache) and cache.get_seq_length() > 0:
        engine = getcurrent().parent
        assert engine is not None
        engine.switch(None)


def _after_pass(_model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    cache = kwargs.get("past_key_values")
    if isinstance(cache, BeamCache):
        cache.end_pass(output.logits)


def arguments(request: GenerationRequest, *stopping: StoppingCriteria) -> dict[str, Any]:
    """The arguments of ``generate``; ``stopping`` are criteria besides the request's own."""
    sampling = request.sampling
    has_penalty = bool(sampling.presence_penalty or sampling.frequency_penalty)
    changes_scores = has_penalty or request.embedding_bias is not None
    words = [_StopWords(request.stop_words)] if request.stop_words else []
    # transformers does not ban a bad word that is the end token; so leave the end token out.
    end = None if request.end_id == NO_END or (request.end_id,) in request.bad_words else request.end_id
    config = GenerationConfig(
        max_new_tokens=request.max_new_tokens,
        num_beams=request.beam_width,
        num_return_sequences=request.beam_width,
        do_sample=False,
        early_stopping=True,
        length_penalty=request.length_penalty,
        eos_token_id=end,
        pad_token_id=request.pad_id,
        min_new_tokens=min(sampling.min_new_tokens, request.max_new_tokens) or None,
        repetition_penalty=sampling.repetition_penalty,
        bad_words_ids=[list(word) for word in request.bad_words] or None,
        return_dict_in_generate=True,
        output_logits=False,
        use_cache=True,
    )
    return {
        "generation_config": config,
        "logits_processor": [_ScoreChanges(request)] if changes_scores else [],
        "stopping_criteria": [*words, *stopping],
    }


class BeamCache(Cache):  # type: ignore[misc]
    """Keys and values of one search's beams, in the pool's blocks.

    Each beam writes into its own blocks, but reads by a table of indices, one for each earlier token. A beam
    that continues another one copies its row of the table, not the keys and values: they are never
    overwritten, because an index belongs to one position. TensorRT-LLM's ``cache_indirection`` is such a
    table.
    """

    def __init__(
        self, pool: PagedCache, blocks: tuple[tuple[int, ...], ...], record: Record, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        self._pool = pool
        self._record = record
        size = pool.tokens_per_block
        firsts = torch.tensor(blocks, device=device) * size
        self._own = (firsts[:, :, None] + torch.arange(size, device=device)).flatten(1)
        self._past = self._own[:, :0]
        self._pass_tokens = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the pass's keys and values; return each beam's past with them (transformers' interface)."""
        start, self._pass_tokens = self.get_seq_length(), key_states.shape[2]
        places = self._own[:, start : start + self._pass_tokens]
        reads = torch.cat((self._past, places), dim=1) if start else None
        self._pool.aim(places.flatten(), reads, by_token=True)
        return self._pool.update(key_states, value_states, layer_idx)

    def end_pass(self, logits: torch.Tensor) -> None:
        """Append what the pass has written to the past."""
        self._record.note_pass(logits)
        start = self.get_seq_length()
        self._past = torch.cat((self._past, self._own[:, start : start + self._pass_tokens]), dim=1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of tokens before the current pass."""
        length: int = self._past.shape[1]
        return length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let each beam continue the beam with that index (transformers' interface)."""
        self._past = self._past.index_select(0, beam_idx.to(self._past.device))


class Record(StoppingCriteria):  # type: ignore[misc]
    """Records what a search's result needs of each pass; as a criterion it never stops a search.

    ``generate`` can keep the logits of all passes, but those of a long answer would fill a GPU. A stopping
    criterion sees the candidates of each pass, so this one keeps only the log-probabilities of their tokens.
    """

    def __init__(self, request: GenerationRequest) -> None:
        self._wants_context = request.return_context_logits
        self._wants_logits = request.return_generation_logits
        self._logits: torch.Tensor | None = None
        self._context: torch.Tensor | None = None
        self._tokens: list[torch.Tensor] = []
        """By pass, [candidates]."""
        self._log_probs: list[torch.Tensor] = []
        """By pass, [beams, candidates]: of a candidate's token in each beam, whichever it continues."""
        self._all_logits: list[torch.Tensor] = []
        """By pass, [beams, vocabulary], on the CPU."""

    def note_pass(self, logits: torch.Tensor) -> None:
        """Take what a forward pass gave, [beams, tokens, vocabulary]."""
        if self._wants_context and self._context is None:
            self._context = logits[0].float().cpu()
        self._logits = logits[:, -1].float()
        if self._wants_logits:
            self._all_logits.append(self._logits.cpu())

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """See all candidates, [candidates, tokens]; stop none."""
        assert self._logits is not None
        tokens = input_ids[:, -1]
        self._tokens.append(tokens)
        self._log_probs.append(self._logits.log_softmax(-1).index_select(1, tokens))
        return torch.zeros_like(tokens, dtype=torch.bool)

    def result(self, sequences: torch.Tensor, parents: torch.Tensor) -> Progress:
        """The only answer to the request, the best beam first; a beam without a sequence is empty.

        ``sequences`` are the padded new tokens, [beams, tokens], and ``parents`` the beam of the pass that
        each continued, -1 for padding. Tokens end with the end token or stop word, and the logits of a
        shorter beam with zeros.
        """
        passes = torch.arange(sequences.shape[1], device=sequences.device)
        candidates = torch.stack(self._tokens)[passes]
        columns = (candidates == sequences[:, :, None]).long().argmax(-1)
        log_probs = torch.stack(self._log_probs)[passes, parents.clamp(min=0), columns].tolist()
        lengths = (parents >= 0).sum(1).tolist()
        logits = None
        if self._wants_logits:
            parents = parents.cpu()
            logits = torch.stack(self._all_logits)[passes.cpu(), parents.clamp(min=0)]
            logits.masked_fill_((parents < 0)[:, :, None], 0.0)
        return Progress(
            tokens=tuple(tuple(row[:n]) for row, n in zip(sequences.tolist(), lengths, strict=True)),
            log_probs=tuple(tuple(row[:n]) for row, n in zip(log_probs, lengths, strict=True)),
            is_final=True,
            context_logits=None if self._context is None else self._context.float().numpy(),
            generation_logits=None if logits is None else logits.float().numpy(),
        )


class _StopWords(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, words: Words) -> None:
        self._words = words

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """Which of the sequences [rows, tokens] end with a word."""
        hits = torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)
        for word in self._words:
            if len(word) <= input_ids.shape[1]:
                hits |= (input_ids[:, -len(word) :] == input_ids.new_tensor(word)).all(1)
        return hits


class _ScoreChanges(LogitsProcessor):  # type: ignore[misc]
    """Embedding bias, presence and frequency penalty, which ``generate`` does not have."""

    def __init__(self, request: GenerationRequest) -> None:
        self._sampling = request.sampling
        self._bias = None if request.embedding_bias is None else torch.tensor(request.embedding_bias)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [rows, vocabulary] of the tokens after these [rows, tokens]; the prompt's count too."""
        counts = torch.zeros_like(scores).scatter_add_(
            1, input_ids, torch.ones_like(input_ids, dtype=scores.dtype)
        )
        penalty = self._sampling.presence_penalty * (counts > 0) + self._sampling.frequency_penalty * counts
        if self._bias is not None:
            self._bias = self._bias.to(scores.device)
            scores = scores + self._bias
        return scores - penalty
