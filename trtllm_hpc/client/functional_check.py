"""The functional check: the same prompts every way that a server has must give the same answers.

Upstream's ``end_to_end_test.py`` does it for the models called by hand,
``ensemble`` and ``tensorrt_llm_bls`` over one protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import takewhile

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.client.connect import Protocol
from trtllm_hpc.client.request import Request
from trtllm_hpc.errors import InvalidRequest, RequestFailed
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.served_model import CORE_MODEL, TEXT_MODELS

_SAMPLING = {"temperature", "top_k", "top_p", "min_p"}
_PROTOCOLS: tuple[Protocol, ...] = ("grpc", "http")
BY_HAND = f"preprocessing, {CORE_MODEL}, postprocessing"


@dataclass(frozen=True)
class CheckedAnswer:
    """One prompt, asked one way."""

    prompt: str
    way: str
    """The models, and the protocol."""
    text: str
    """The answer without the prompt; empty if there is none."""
    error: str | None
    """Why there is no answer."""
    is_equal: bool
    """Whether it is what the first way answered."""
    same_letters: int
    """How many letters at the beginning are equal to those of the first way."""


@dataclass(frozen=True)
class Check:
    """All answers, prompt by prompt."""

    answers: tuple[CheckedAnswer, ...]
    left_out: tuple[str, ...] = ()
    """Ways that do not have what was asked for, each with the reason."""

    @property
    def differences(self) -> list[CheckedAnswer]:
        """Those that differ from the first way's, or failed."""
        return [answer for answer in self.answers if not answer.is_equal]


@dataclass(frozen=True)
class _Way:
    name: str
    client: AsyncClient
    stream: bool = False

    async def text(self, request: Request, prompt: str) -> tuple[str, str | None] | InvalidRequest:
        """Return the answer without the prompt, or why there is none."""
        asked = replace(request, stream=self.stream, request_id=Request(()).request_id)
        if self.client.is_openai and not _SAMPLING & set(request.options):
            # OpenAI's default is to sample, Triton's is not.
            asked = replace(asked, options={**request.options, "temperature": 0.0})
        try:
            [answer] = await self.client.ask(asked)
        except InvalidRequest as error:
            return error
        except RequestFailed as error:
            return "", error.message
        return answer.text.removeprefix(prompt), None


async def check(endpoint: Endpoint, requests: Sequence[Request], timeout_s: float) -> Check:
    """Ask every prompt every way; raises RequestFailed, also if there are not two ways."""
    async with AsyncExitStack() as clients:

        async def opened(model: str | None, protocol: Protocol) -> AsyncClient:
            client = AsyncClient(endpoint, model, protocol=protocol, timeout_s=timeout_s)
            return await clients.enter_async_context(client)

        ways: list[_Way] = []
        served = endpoint.models if endpoint.is_triton else []
        # The models called by hand are the first way.
        for model in sorted(set(TEXT_MODELS) & set(served), key=[CORE_MODEL, *TEXT_MODELS].index):
            for protocol in _PROTOCOLS:
                client = await opened(model, protocol)
                if client.model.takes_text or (protocol == "grpc" and client.can_tokenize):
                    name = model if client.model.takes_text else BY_HAND
                    ways.append(_Way(f"{name} ({protocol})", client))
        if endpoint.openai_url is not None:
            client = await opened(None, "openai")
            name = client.model.name
            ways += [_Way(f"{name} (openai)", client), _Way(f"{name} (openai, streamed)", client, True)]
        if len(ways) < 2:
            raise InvalidRequest(f"The server has one way to ask only ({ways[0].name}): nothing to compare.")
        answers: list[CheckedAnswer] = []
        left_out: dict[str, None] = {}
        for request in requests:
            compared, lacking = await _compared(request, ways)
            answers += compared
            left_out |= dict.fromkeys(lacking)
        return Check(tuple(answers), tuple(left_out))


async def _compared(request: Request, ways: Sequence[_Way]) -> tuple[list[CheckedAnswer], list[str]]:
    """Return the answers to one prompt, and the ways that do not have what it asks for."""
    [prompt] = request.prompts
    if not isinstance(prompt, str):
        raise InvalidRequest("The check asks texts, not token ids.")
    outcomes = await asyncio.gather(*(way.text(request, prompt) for way in ways))
    answered: list[CheckedAnswer] = []
    lacking: dict[str, InvalidRequest] = {}
    for way, outcome in zip(ways, outcomes, strict=True):
        if isinstance(outcome, InvalidRequest):
            lacking[way.name] = outcome
            continue
        text, error = outcome
        first = answered[0].text if answered else text
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(text, first, strict=False)))
        answered.append(CheckedAnswer(prompt, way.name, text, error, error is None and text == first, same))
    if len(answered) < 2:
        raise next(iter(lacking.values()))
    return answered, [f"{name}: {error.message}" for name, error in lacking.items()]
