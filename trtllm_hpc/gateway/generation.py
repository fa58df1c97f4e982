"""From a checked request to requests of ``tensorrt_llm``, one for each answer, and from tokens to text."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import numpy as np

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.model import gathered
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.reply import Text
from trtllm_hpc.client.request import Request
from trtllm_hpc.gateway.errors import ApiError
from trtllm_hpc.gateway.facts import Facts
from trtllm_hpc.gateway.requests import GenerationRequest
from trtllm_hpc.gateway.tokenizer import ModelTokenizer, TextStream
from trtllm_hpc.wire.openai_answer import Finish, Token

_LEAST_LOG_PROB = -9999.0
"""OpenAI's value for a token that is never chosen; JSON has no infinity."""
ANSWER_TIMEOUT_S = 3600.0
"""For the whole answer; a client that has waited long enough goes away before that."""
USUAL_MAX_TOKENS = 1024
"""Of a chat's answer where the engine's ``max_seq_len`` is not known."""
_LONGEST_WORD = 64
"""Most tokens of a text to stop at that is sent to the server; only the gateway looks for longer texts."""


@dataclass(frozen=True)
class Part:
    """What is new of one answer."""

    text: str = ""
    ids: tuple[int, ...] = ()
    log_probs: tuple[float, ...] = ()
    """Of each of ``ids``, if asked for."""
    finish: Finish | None = None
    """Why the answer has ended; ``None``: it goes on."""


@dataclass(frozen=True)
class Prompt:
    """The token ids of one prompt, and the most tokens of an answer to it."""

    ids: Sequence[int]
    max_tokens: int


class Generation:
    """Answers the prompts of a request. Raises ApiError if the served model lacks what it asks for."""

    def __init__(
        self,
        client: AsyncClient,
        tokenizer: ModelTokenizer,
        facts: Facts,
        request: GenerationRequest,
        headers: Mapping[str, str],
    ) -> None:
        self._client, self._tokenizer, self._facts, self._request = client, tokenizer, facts, request
        self._headers = headers
        own = () if request.ignore_eos else (tokenizer.end_id, *tokenizer.further_end_ids)
        self._ends = {*request.stop_token_ids, *(each for each in own if each is not None)}
        skip = request.skip_special_tokens
        self.skips_special_tokens = facts.skip_special_tokens if skip is None else skip
        self._seed = secrets.randbits(63) if request.seed is None else request.seed
        self._options = self._model_options()
        self._inputs = self._model_inputs()

    async def parts(self, prompt: Prompt, choice: int, *, stream: bool = True) -> AsyncGenerator[Part]:
        """Yield one answer as it comes; closing the generator ends it on the server.

        Raises RequestFailed; see ``AsyncClient.generate``.
        """
        answer = _Growing(self, prompt)
        async with aclosing(self._client.replies(self._asked(prompt, choice, stream=stream))) as replies:
            async for reply in replies:
                if (part := answer.add(reply.beams)) is not None:
                    yield part
                    if part.finish:
                        return
        yield answer.end()

    async def answers(self, prompt: Prompt) -> list[Part]:
        """Return the whole answers to a prompt. Raises RequestFailed; see ``AsyncClient.generate``."""
        return await gathered([self._answer(prompt, choice) for choice in range(self._request.n)])

    async def _answer(self, prompt: Prompt, choice: int) -> Part:
        # Only who reads along can end an answer where its text ends, within a token.
        async with aclosing(self.parts(prompt, choice, stream=bool(self._request.stop))) as parts:
            return joined([part async for part in parts])

    def text_stream(self) -> TextStream:
        """Return the text of one answer, without tokens yet."""
        return TextStream(self._tokenizer, self._request.stop, skip_special_tokens=self.skips_special_tokens)

    def tokens(self, part: Part) -> list[Token] | None:
        """Return the tokens of a part with their probabilities; ``None`` if they are not asked for."""
        if not self._request.wants_log_probs or not part.ids:
            return None
        texts = [self._tokenizer.decode([each], skip_special_tokens=False) for each in part.ids]
        log_probs = [value if math.isfinite(value) else _LEAST_LOG_PROB for value in part.log_probs]
        return [Token(*pair) for pair in zip(texts, log_probs, strict=False)]

    def finish(self, prompt: Prompt, ids: Sequence[int]) -> Finish:
        """Return why an answer has ended: some backends send the token that ended it, others do not."""
        if ids and ids[-1] in self._ends:
            return "stop"
        room = self._facts.max_seq_len
        is_full = room is not None and len(prompt.ids) + len(ids) >= room
        return "length" if is_full or len(ids) >= prompt.max_tokens else "stop"

    def without_prompt(self, prompt: Prompt, ids: Sequence[int]) -> Sequence[int]:
        """Return the tokens of an answer: old models repeat the prompt before it, unless they stream."""
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
            further_headers=self._headers,
        )

    def _model_options(self) -> dict[str, Any]:
        """Return the options of all requests by the client's names."""
        request = self._request
        options: dict[str, Any] = {
            **_sampling(request),
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "repetition_penalty": request.repetition_penalty,
            "min_tokens": request.min_tokens,
            "log_probs": request.wants_log_probs or None,
            "end_id": None if request.ignore_eos else self._tokenizer.end_id,
            "pad_id": self._tokenizer.pad_id,
        }
        options = {name: value for name, value in options.items() if value is not None}
        for name in options:
            option = BY_NAME[name]
            if not option.input_of(self._client.model):
                key = option.openai or name
                raise ApiError(f"The served model has no input for {key}.", param=key)
        if "exclude_input_in_output" in self._client.model.inputs:
            options["exclude_input"] = True
        return options

    def _model_inputs(self) -> Mapping[str, Any]:
        """Return the inputs that the client has as texts, as the tensors of ids that the model takes."""
        request, found = self._request, {}
        words = [[end] for end in sorted(self._ends - {self._tokenizer.end_id})]
        encoded = [self._tokenizer.encode(stop, add_special_tokens=False) for stop in request.stop]
        words += [ids for ids in encoded if 0 < len(ids) <= _LONGEST_WORD]
        if words:
            found["stop_words_list"] = _word_list(words)
        return found


class _Growing:
    def __init__(self, generation: Generation, prompt: Prompt) -> None:
        self._generation, self._prompt = generation, prompt
        self._text = generation.text_stream()
        self._ids: Sequence[int] = ()
        self._count = self._log_probs = 0

    def add(self, beams: Sequence[Text]) -> Part | None:
        """Return what the first beam has more than before; ``None`` if nothing."""
        if not beams:
            return None
        self._ids = self._generation.without_prompt(self._prompt, beams[0].ids)
        new = tuple(self._ids[self._count :])
        if not new:
            return None
        self._count += len(new)
        log_probs = tuple(beams[0].log_probs[self._log_probs : len(self._ids)])
        self._log_probs += len(log_probs)
        text = self._text.add(new)
        return Part(text, new, log_probs, "stop" if self._text.is_stopped else None)

    def end(self) -> Part:
        rest = self._text.end()
        stopped = self._text.is_stopped
        return Part(rest, finish="stop" if stopped else self._generation.finish(self._prompt, self._ids))


def joined(parts: Sequence[Part]) -> Part:
    """Return the parts of an answer as one."""
    return Part(
        "".join(part.text for part in parts),
        tuple(token for part in parts for token in part.ids),
        tuple(value for part in parts for value in part.log_probs),
        parts[-1].finish,
    )


def _sampling(request: GenerationRequest) -> dict[str, Any]:
    """Return how tokens are chosen: at random unless the request says otherwise, as OpenAI's protocol has it.

    Triton's models are greedy without ``top_k`` and ``top_p``, and draw the same each time without a seed.
    """
    if request.temperature == 0 or request.top_k == 1:
        return {"top_k": 1}
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": max(request.top_k, 0),
        "min_p": request.min_p,
        "seed": 0,  # each answer has its own
    }


def _word_list(words: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Return words in upstream's layout: a row with all their tokens, and a row with their ends, then -1."""
    flat = [token for word in words for token in word]
    rows = np.full((2, len(flat)), -1, dtype=np.int32)
    rows[0] = flat
    rows[1, : len(words)] = np.cumsum([len(word) for word in words])
    return rows
