"""The served model as the routes see it: a connection to Triton, a tokenizer, and the prompts of requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Target
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.chat_template import ChatTemplate
from trtllm_hpc.gateway.errors import ApiError, too_long
from trtllm_hpc.gateway.facts import Facts
from trtllm_hpc.gateway.generation import USUAL_MAX_TOKENS, Generation, Part, Prompt
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest, GenerationRequest
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.wire.served_model import CORE_MODEL

_READY_TIMEOUT_S = 5.0


class Service:
    """One served model of Triton at ``target``."""

    def __init__(self, target: Target, facts: Facts) -> None:
        self.facts = facts
        self.tokenizer = ModelTokenizer(facts.tokenizer)
        self._template = ChatTemplate(self.tokenizer)
        self._target = target
        self._client: AsyncClient | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """End the connection to Triton."""
        if self._client is not None:
            await self._client.__aexit__(None, None, None)

    async def is_ready(self) -> bool:
        """Return whether Triton and its models are ready."""
        try:
            return await (await self._opened()).is_ready(_READY_TIMEOUT_S)
        except RequestFailed:
            return False

    async def generation(self, request: GenerationRequest, headers: Mapping[str, str]) -> Generation:
        """Return what answers the prompts of a request, with headers for Triton.

        Raises ApiError if no model is called so, or it lacks what the request asks for; RequestFailed if
        Triton is not there.
        """
        client = await self._opened()
        return Generation(client, self.tokenizer, self.facts, request, headers)

    def check_model(self, name: str) -> None:
        """Refuse another model's name. Raises ApiError with the status 404."""
        if name != self.facts.name:
            raise ApiError(
                f"The model {name!r} does not exist. This server has {self.facts.name!r}.",
                404,
                param="model",
                code="model_not_found",
            )

    def prompts(self, request: CompletionRequest | ChatRequest) -> list[Prompt]:
        """Return the prompts of a request as token ids; long ones take a while, so call it in a thread.

        Raises ApiError if the chat has no template, or a prompt leaves no room for the answer.
        """
        if isinstance(request, ChatRequest):
            key, asked = "messages", request.max_completion_tokens or request.max_tokens
            messages = [each.for_template() for each in request.messages]
            text = self._template.render(
                messages,
                add_generation_prompt=request.add_generation_prompt,
                arguments=request.chat_template_kwargs,
            )
            # The template has written the special tokens: the tokenizer must not add them a second time.
            special = bool(request.add_special_tokens)
            return [self._prompt(self._encoded(text, special, key), asked, key)]
        special = self.facts.add_special_tokens
        if request.add_special_tokens is not None:
            special = request.add_special_tokens
        ids = [
            self._encoded(each, special, "prompt") if isinstance(each, str) else each
            for each in request.prompt
        ]
        return [self._prompt(each, request.max_tokens, "prompt") for each in ids]

    def _encoded(self, text: str, special: bool, key: str) -> list[int]:
        """Return a text as token ids, unless it is far too long: tokenizing it would take minutes."""
        most = self.facts.max_seq_len
        if most is not None and len(text) > most * self.tokenizer.longest_token:
            raise too_long(most, f", but the prompt's {len(text)} letters make more tokens.", key)
        return self.tokenizer.encode(text, add_special_tokens=special)

    def _prompt(self, ids: Sequence[int], max_tokens: int | None, key: str) -> Prompt:
        if not ids:
            raise ApiError("The prompt has no tokens.", param=key)
        most = self.facts.max_seq_len
        if most is None:
            return Prompt(ids, max_tokens or USUAL_MAX_TOKENS)
        wanted = 1 if max_tokens is None else max_tokens
        if len(ids) + wanted > most:
            rest = f", but the prompt has {len(ids)} tokens and the answer may have {wanted}, together more."
            raise too_long(most, rest, key)
        return Prompt(ids, max_tokens or most - len(ids))

    async def _opened(self) -> AsyncClient:
        if self._client is not None:
            return self._client
        async with self._opening:
            if self._client is None:
                client = await AsyncClient(self._target, CORE_MODEL).__aenter__()
                if client.model.takes_text:
                    await client.__aexit__(None, None, None)
                    raise ApiError(
                        "The gateway asks models of token ids, and this server's is that of the LLM API.", 501
                    )
                self._client = client
        return self._client


async def merged(streams: Sequence[AsyncGenerator[Part]]) -> AsyncGenerator[tuple[int, Part]]:
    """Yield the parts of several answers as they come, each with its answer's number; left, all are ended."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for part in only:
                yield 0, part
        return
    queue: asyncio.Queue[tuple[int, Part] | BaseException | None] = asyncio.Queue()

    async def read(index: int, stream: AsyncGenerator[Part]) -> None:
        try:
            async with aclosing(stream) as opened:
                async for part in opened:
                    queue.put_nowait((index, part))
            queue.put_nowait(None)
        # Whatever it is, the reader of the queue raises it.
        except Exception as error:  # noqa: BLE001
            queue.put_nowait(error)

    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(read(index, stream)) for index, stream in enumerate(streams)
    ]
    left = len(tasks)
    try:
        while left:
            found = await queue.get()
            if found is None:
                left -= 1
            elif isinstance(found, BaseException):
                raise found
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
