"""From a checked request to requests of Triton's model ``tensorrt_llm``, and from its tokens to text.

Each answer is one request of token ids, also where several are asked for: so
``n`` works with models that send one answer only, and each is ended by itself.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.request import Request
from trtllm_hpc.gateway.errors import ApiError
from trtllm_hpc.gateway.facts import Facts
from trtllm_hpc.gateway.requests import GenerationRequest
from trtllm_hpc.gateway.tokenizer import ModelTokenizer, TextStream

ANSWER_TIMEOUT_S = 3600.0
"""For the whole answer; a client that has waited long enough goes away before that."""
USUAL_MAX_TOKENS = 1024
"""Of a chat's answer where the engine's ``max_seq_len`` is not known."""
_LONGEST_WORD = 64
"""Tokens of a text to stop at that the server is told; longer ones only the gateway looks for."""

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Part:
    """What is new of one answer."""

    text: str = ""
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Of each of ``ids``, if asked for."""
    finish: Finish | None = None
    """Why the answer has ended; ``None``: it goes on."""


@dataclass
class Answer:
    """The whole of one answer."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    finish: Finish = "stop"

    def add(self, part: Part) -> None:
        """Take in a part."""
        self.text += part.text
        self.ids.extend(part.ids)
        self.log_probs.extend(part.log_probs)
        self.finish = part.finish or self.finish


@dataclass(frozen=True)
class Prompt:
    """The token ids of one prompt, and the most tokens of an answer to it."""

    ids: Sequence[int]
    max_tokens: int


class Generation:
    """Answers the prompts of one request.

    Raises ApiError if the served model lacks what the request asks for.
    """

    def __init__(
        self, client: AsyncClient, tokenizer: ModelTokenizer, facts: Facts, request: GenerationRequest
    ) -> None:
        self._client, self._tokenizer, self._facts, self._request = client, tokenizer, facts, request
        self._ends = _end_ids(tokenizer, request)
        skip = request.skip_special_tokens
        self.skips_special_tokens = facts.skip_special_tokens if skip is None else skip
        self._seed = secrets.randbits(63) if request.seed is None else request.seed
        self._options = self._model_options()
        self._inputs = self._model_inputs()

    async def parts(self, prompt: Prompt, choice: int) -> AsyncGenerator[Part]:
        """Yield one answer as it comes; closing the generator ends it on the server.

        Raises RequestFailed; see ``AsyncClient.generate``.
        """
        ids, log_probs = 0, 0
        text = TextStream(self._tokenizer, self._request.stop, skip_special_tokens=self.skips_special_tokens)
        last: Sequence[int] = ()
        async with aclosing(self._client.replies(self._asked(prompt, choice, stream=True))) as replies:
            async for reply in replies:
                beams = reply.beams
                if not beams or len(beams[0].ids) == ids:
                    continue
                last = self._without_prompt(prompt, beams[0].ids)
                new = tuple(last[ids:])
                probabilities = tuple(beams[0].log_probs[log_probs : len(last)])
                ids, log_probs = len(last), log_probs + len(probabilities)
                part = text.add(new)
                if text.is_stopped:
                    yield Part(part, new, probabilities, "stop")
                    return
                yield Part(part, new, probabilities)
        rest = text.end()
        yield Part(rest, finish="stop" if text.is_stopped else self._finish(prompt, last))

    async def answers(self, prompt: Prompt) -> list[Answer]:
        """Return the answers to a prompt. Raises RequestFailed; see ``AsyncClient.generate``."""
        if self._request.beam_width > 1:
            return (await self._whole(prompt, 0))[: self._request.n]
        return await together([self._answer(prompt, choice) for choice in range(self._request.n)])

    async def _answer(self, prompt: Prompt, choice: int) -> Answer:
        if not (self._request.stop and self._client.model.decoupled):
            return (await self._whole(prompt, choice))[0]
        # Only who reads along can end it where the text does, within a token.
        answer = Answer()
        async with aclosing(self.parts(prompt, choice)) as parts:
            async for part in parts:
                answer.add(part)
        return answer

    async def _whole(self, prompt: Prompt, choice: int) -> list[Answer]:
        found: list[Answer] = []
        async with aclosing(self._client.replies(self._asked(prompt, choice, stream=False))) as replies:
            async for reply in replies:
                found = [self._read(prompt, beam.ids, beam.log_probs) for beam in reply.beams]
        # A model that ends an answer at once may send no tokens.
        return found or [Answer()]

    def _read(self, prompt: Prompt, ids: Sequence[int], log_probs: Sequence[float]) -> Answer:
        ids = self._without_prompt(prompt, ids)
        text = TextStream(self._tokenizer, self._request.stop, skip_special_tokens=self.skips_special_tokens)
        whole = text.add(ids)
        whole += text.end()
        finish: Finish = "stop" if text.is_stopped else self._finish(prompt, ids)
        return Answer(whole, list(ids), list(log_probs[: len(ids)]), finish)

    def _finish(self, prompt: Prompt, ids: Sequence[int]) -> Finish:
        """Why an answer has ended: some backends send the token that ended it, others do not."""
        if ids and ids[-1] in self._ends:
            return "stop"
        room = self._facts.max_seq_len
        is_full = room is not None and len(prompt.ids) + len(ids) >= room
        return "length" if is_full or len(ids) >= prompt.max_tokens else "stop"

    def _without_prompt(self, prompt: Prompt, ids: Sequence[int]) -> Sequence[int]:
        """Old models cannot be told to leave the prompt out; a stream never has it."""
        if "exclude_input_in_output" in self._client.model.inputs:
            return ids
        count = len(prompt.ids)
        return ids[count:] if list(ids[:count]) == list(prompt.ids) else ids

    def _asked(self, prompt: Prompt, choice: int, *, stream: bool) -> Request:
        options = {**self._options, "max_tokens": prompt.max_tokens}
        if "seed" in options:
            # As TensorRT-LLM does with the sequences of one request.
            options["seed"] = (self._seed + choice) % 2**64
        return Request(
            (prompt.ids,),
            options,
            inputs=self._inputs,
            stream=stream and self._client.model.decoupled,
            timeout_s=ANSWER_TIMEOUT_S,
        )

    def _model_options(self) -> dict[str, Any]:
        """Return the options of all requests by the client's names."""
        request = self._request
        options: dict[str, Any] = {
            **_sampling(request),
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "repetition_penalty": request.repetition_penalty,
            "length_penalty": request.length_penalty,
            "min_tokens": request.min_tokens,
            "log_probs": request.wants_log_probs or None,
            "end_id": None if request.ignore_eos else self._tokenizer.end_id,
            "pad_id": self._tokenizer.pad_id,
        }
        options = {name: value for name, value in options.items() if value is not None}
        for name in options:
            self._refuse_missing(name)
        if "exclude_input_in_output" in self._client.model.inputs:
            options["exclude_input"] = True
        return options

    def _refuse_missing(self, name: str) -> None:
        option = BY_NAME[name]
        if not set(option.inputs) & set(self._client.model.inputs):
            key = option.openai or name
            raise ApiError(f"The served model has no input for {key}.", param=key)

    def _model_inputs(self) -> Mapping[str, Any]:
        """Return the inputs that the client has as texts, as the tensors of ids that the model takes."""
        request, found = self._request, {}
        words = [[end] for end in sorted(self._ends - {self._tokenizer.end_id})]
        encoded = [self._tokenizer.encode(stop, add_special_tokens=False) for stop in request.stop]
        words += [ids for ids in encoded if 0 < len(ids) <= _LONGEST_WORD]
        if words:
            found["stop_words_list"] = _word_list(words)
        if request.logit_bias:
            found["embedding_bias"] = self._bias(request.logit_bias)
        return found

    def _bias(self, biases: Mapping[str, float]) -> np.ndarray[Any, Any]:
        size = self._tokenizer.vocab_size
        array = np.zeros(size, dtype=np.float32)
        for token, bias in biases.items():
            if not (token.isascii() and token.isdigit() and int(token) < size):
                raise ApiError(f"{token!r} is not a token id below {size}.", param="logit_bias")
            array[int(token)] = bias
        return array


async def together(coroutines: Sequence[Any]) -> list[Any]:
    """Await all; after an error, or when nobody waits any more, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    """Return how tokens are chosen: at random unless the request says otherwise, as OpenAI's protocol has it.

    Triton's models are greedy without ``top_k`` and ``top_p``, and draw the same each time without a seed.
    """
    if request.beam_width > 1:
        return {"beam_width": request.beam_width}
    if request.temperature == 0 or request.top_k == 1:
        return {"top_k": 1}
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": max(request.top_k, 0),
        "min_p": request.min_p,
        "seed": 0,  # each answer has its own
    }


def _end_ids(tokenizer: ModelTokenizer, request: GenerationRequest) -> frozenset[int]:
    """Return the tokens that end an answer."""
    own = () if request.ignore_eos else (tokenizer.end_id, *tokenizer.further_end_ids)
    return frozenset({*request.stop_token_ids, *(each for each in own if each is not None)})


def _word_list(words: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Return words in upstream's layout: a row with all their tokens, and a row with their ends, then -1."""
    flat = [token for word in words for token in word]
    rows = np.full((2, len(flat)), -1, dtype=np.int32)
    rows[0] = flat
    rows[1, : len(words)] = np.cumsum([len(word) for word in words])
    return rows
