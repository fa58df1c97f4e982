"""The served model as the routes see it: its limits, its connection, and prompts as token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Target
from trtllm_hpc.config.job import Serve
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.answers import ApiError, too_long
from trtllm_hpc.gateway.chat_template import ChatTemplate
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest
from trtllm_hpc.gateway.tokenizer import ModelTokenizer
from trtllm_hpc.wire.served_model import CORE_MODEL

_READY_TIMEOUT_S = 5.0
_USUAL_MAX_TOKENS = 1024
"""Of a chat's answer where the engine's ``max_seq_len`` is not known."""


@dataclass(frozen=True)
class Facts:
    """What the gateway must know of the served model."""

    name: str
    """Name of the model in requests."""
    tokenizer: Path | None = None
    """Folder with ``tokenizer.json``."""
    max_seq_len: int | None = None
    """Most tokens of prompt and answer together."""
    add_special_tokens: bool = True
    """Whether texts of ``/v1/completions`` get the tokenizer's special tokens, as ``ensemble`` adds them."""
    skip_special_tokens: bool = True
    """Whether answers leave special tokens out."""
    max_request_mib: int = Serve.model_fields["max_request_mib"].default
    """Largest body of a request."""


@dataclass(frozen=True)
class Prompt:
    """The token ids of one prompt, and the most tokens of an answer to it."""

    ids: Sequence[int]
    max_tokens: int


class Service:
    """The model that Triton serves at ``target``. The first request opens the connection."""

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
            return await (await self.client()).is_ready(_READY_TIMEOUT_S)
        except RequestFailed:
            return False

    async def client(self) -> AsyncClient:
        """Return the open client. Raises RequestFailed if Triton is away, ApiError for a model of texts."""
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

    def check_model(self, name: str) -> None:
        """Refuse another model's name. Raises ApiError with the status 404."""
        if name != self.facts.name:
            message = f"The model {name!r} does not exist. This server has {self.facts.name!r}."
            raise ApiError(message, 404, param="model", code="model_not_found")

    def prompts(self, asked: CompletionRequest | ChatRequest) -> list[Prompt]:
        """Return the prompts of a request as token ids; long ones take a while, so call it in a thread.

        Raises ApiError if the chat has no template, or a prompt leaves no room for the answer.
        """
        special = asked.add_special_tokens
        if isinstance(asked, ChatRequest):
            chat = self._template.render(
                [message.for_template() for message in asked.messages],
                add_generation_prompt=asked.add_generation_prompt,
                arguments=asked.chat_template_kwargs,
            )
            # The template has written the special tokens: the tokenizer must not add them a second time.
            limit = asked.max_completion_tokens or asked.max_tokens
            return [self._prompt(chat, "messages", limit, special=bool(special))]
        special = self.facts.add_special_tokens if special is None else special
        return [self._prompt(prompt, "prompt", asked.max_tokens, special=special) for prompt in asked.prompt]

    def _prompt(self, text: str | list[int], key: str, max_tokens: int | None, *, special: bool) -> Prompt:
        most, ids = self.facts.max_seq_len, text
        if isinstance(ids, str):
            # Tokenizing a text that is far too long would take minutes.
            if most is not None and len(ids) > most * self.tokenizer.longest_token:
                raise too_long(most, f", but the prompt's {len(ids)} letters make more tokens.", key)
            ids = self.tokenizer.encode(ids, add_special_tokens=special)
        if not ids:
            raise ApiError("The prompt has no tokens.", param=key)
        if most is None:
            return Prompt(ids, max_tokens or _USUAL_MAX_TOKENS)
        wanted = max_tokens or 1
        if len(ids) + wanted > most:
            rest = f", but the prompt has {len(ids)} tokens and the answer may have {wanted}, together more."
            raise too_long(most, rest, key)
        return Prompt(ids, max_tokens or most - len(ids))
