"""From a checked request to requests of ``tensorrt_llm``, one for each answer, and from tokens to text."""

from __future__ import annotations

import asyncio
import math
import secrets
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.options import BY_NAME
from trtllm_hpc.client.request import Request
from trtllm_hpc.gateway.answers import ApiError, Part, Token
from trtllm_hpc.gateway.requests import GenerationRequest
from trtllm_hpc.gateway.service import Prompt, Service
from trtllm_hpc.gateway.tokenizer import TextStream

_ANSWER_TIMEOUT_S = 3600.0
"""For a whole answer; a client that has waited long enough goes away before that."""
_LONGEST_WORD = 64
"""Most tokens of a text to stop at that is sent to the server; only the gateway looks for longer texts."""
_LEAST_LOG_PROB = -9999.0
"""OpenAI's value for a token that is never chosen; JSON has no infinity."""


class Generation:
    """The answers to one request. Raises ApiError if the served model has no input for one of its keys.

    ``headers`` go to Triton with the request of each answer.
    """

    def __init__(
        self, client: AsyncClient, service: Service, asked: GenerationRequest, headers: Mapping[str, str]
    ) -> None:
        self._client, self._asked, self._tokenizer = client, asked, service.tokenizer
        self._max_seq_len = service.facts.max_seq_len
        skips = asked.skip_special_tokens
        self._skips_special_tokens = service.facts.skip_special_tokens if skips is None else skips
        self._ends = set(asked.stop_token_ids)
        if not asked.ignore_eos:
            self._ends |= self._tokenizer.end_ids
        words = [[end] for end in sorted(self._ends - {self._tokenizer.end_id})]
        words += [self._tokenizer.encode(stop, add_special_tokens=False) for stop in asked.stop]
        words = [word for word in words if 0 < len(word) <= _LONGEST_WORD]
        self._request = Request(
            [],
            self._options(),
            inputs={"stop_words_list": _word_list(words)} if words else {},
            # Only a stream can be ended where its text ends, within a token.
            stream=(asked.stream or bool(asked.stop)) and client.model.decoupled,
            timeout_s=_ANSWER_TIMEOUT_S,
            further_headers=headers,
        )

    async def parts(self, prompt: Prompt, choice: int) -> AsyncGenerator[Part]:
        """Yield one answer as it comes; closing the generator ends it on the server.

        ``choice`` is its number among the answers to the prompt. Raises RequestFailed as
        ``AsyncClient.generate`` does.
        """
        text = TextStream(self._tokenizer, self._asked.stop, skip_special_tokens=self._skips_special_tokens)
        ids: list[int] = []
        async with aclosing(self._client.collected(self._request_of(prompt, choice))) as replies:
            async for reply in replies:
                if (answer := reply.first) is None:
                    continue
                received = self._without_prompt(prompt, answer.ids)
                if not (new := received[len(ids) :]):
                    continue
                tokens = self._tokens(new, answer.log_probs[len(ids) : len(received)])
                ids += new
                yield Part(text.add(new), len(new), tokens, "stop" if text.is_stopped else None)
                if text.is_stopped:
                    return
        rest, room = text.end(), prompt.max_tokens
        if self._max_seq_len is not None:
            room = min(room, self._max_seq_len - len(prompt.ids))
        # Some backends send the token that ended the answer, others do not.
        is_full = len(ids) >= room and ids[-1] not in self._ends and not text.is_stopped
        yield Part(rest, finish="length" if is_full else "stop")

    def _request_of(self, prompt: Prompt, choice: int) -> Request:
        options = {**self._request.options, "max_tokens": prompt.max_tokens}
        if "seed" in options:
            # As TensorRT-LLM does with the sequences of one request.
            options["seed"] = (options["seed"] + choice) % 2**64
        request_id = uuid.uuid4().hex
        return replace(self._request, prompt=prompt.ids, options=options, request_id=request_id)

    def _options(self) -> dict[str, Any]:
        """Return the options of all answers by the client's names.

        Tokens are drawn unless the request says otherwise, as in OpenAI's protocol. Triton's models are
        greedy without ``top_k`` and ``top_p``, and draw the same each time without a seed.
        """
        asked, model = self._asked, self._client.model
        options: dict[str, Any] = {
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "repetition_penalty": asked.repetition_penalty,
            "min_tokens": asked.min_tokens,
            "log_probs": asked.wants_log_probs or None,
            "end_id": None if asked.ignore_eos else self._tokenizer.end_id,
            "pad_id": self._tokenizer.pad_id,
        }
        if asked.temperature == 0 or asked.top_k == 1:
            options["top_k"] = 1
        else:
            options |= {"temperature": asked.temperature, "top_p": asked.top_p, "min_p": asked.min_p}
            options["top_k"] = max(asked.top_k, 0)
            options["seed"] = secrets.randbits(63) if asked.seed is None else asked.seed
        options = {name: value for name, value in options.items() if value is not None}
        for name in options:
            if not BY_NAME[name].input_of(model):
                key = BY_NAME[name].openai or name
                raise ApiError(f"The served model has no input for {key}.", param=key)
        if BY_NAME["exclude_input"].input_of(model):
            options["exclude_input"] = True
        return options

    def _without_prompt(self, prompt: Prompt, ids: list[int]) -> list[int]:
        """Return the tokens of an answer: old models repeat the prompt before it, unless they stream."""
        length = len(prompt.ids)
        may_repeat = not (self._request.stream or "exclude_input" in self._request.options)
        return ids[length:] if may_repeat and ids[:length] == list(prompt.ids) else ids

    def _tokens(self, ids: Sequence[int], log_probs: Sequence[float]) -> tuple[Token, ...]:
        if not self._asked.wants_log_probs:
            return ()
        texts = [self._tokenizer.decode([token], skip_special_tokens=False) for token in ids]
        finite = [value if math.isfinite(value) else _LEAST_LOG_PROB for value in log_probs]
        return tuple(Token(*pair) for pair in zip(texts, finite, strict=False))


def _word_list(words: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Return words in upstream's layout: a row with all their tokens, and a row with their ends, then -1."""
    flat = [token for word in words for token in word]
    rows = np.full((2, len(flat)), -1, dtype=np.int32)
    rows[0] = flat
    rows[1, : len(words)] = np.cumsum([len(word) for word in words])
    return rows


async def merged(streams: Sequence[AsyncGenerator[Part]]) -> AsyncGenerator[tuple[int, Part]]:
    """Yield the parts of several answers as they come, each with its answer's index.

    When the generator is closed, or one of the answers fails, all of them are ended.
    """
    queue: asyncio.Queue[tuple[int, Part] | None] = asyncio.Queue()

    async def read(index: int, stream: AsyncGenerator[Part]) -> None:
        async with aclosing(stream) as parts:
            async for part in parts:
                queue.put_nowait((index, part))

    reading = [asyncio.ensure_future(read(index, stream)) for index, stream in enumerate(streams)]
    for task in reading:
        task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        for _ in reading:
            while (received := await queue.get()) is not None:
                yield received
            for task in reading:
                if task.done():
                    task.result()
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
