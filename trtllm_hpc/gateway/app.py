"""The routes of OpenAI's protocol, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trtllm_hpc import __version__
from trtllm_hpc.client.model import gathered
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.body import read_body
from trtllm_hpc.gateway.errors import ApiError, as_api_error
from trtllm_hpc.gateway.generation import Generation, Prompt
from trtllm_hpc.gateway.metrics import Metrics
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest, parse
from trtllm_hpc.gateway.service import Service, merged
from trtllm_hpc.runtime.records import SESSION_HEADER
from trtllm_hpc.wire.events import write_event
from trtllm_hpc.wire.openai import DONE
from trtllm_hpc.wire.openai_answer import AnswerWriter, Json, model_card, usage

Result = TypeVar("Result")

_GONE = 499
"""Status for a client that went away, which nobody reads; nginx's number."""


_PASSED_ON = (SESSION_HEADER, "traceparent", "tracestate")
"""Headers for Triton: the conversation, and the trace that the request belongs to (W3C Trace Context)."""


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


def make_app(service: Service) -> Starlette:
    """Return the application."""
    routes, metrics = _Routes(service), Metrics()

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/version", routes.version),
            Route("/metrics", metrics.page),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: _failure,
            RequestFailed: _failure,
            HTTPException: _http_error,
            _ClientGone: _gone,
            ClientDisconnect: _gone,
            Exception: _internal_error,
        },
        middleware=[Middleware(metrics.counting)],
        lifespan=lifespan,
    )


class _Routes:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(time.time())

    async def health(self, request: Request) -> Response:
        """200 when Triton is ready, as ``trtllm-serve``."""
        return Response(status_code=200 if await self._service.is_ready() else 503)

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._card())

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, parse(CompletionRequest, await self._body(request)))

    async def chat_completions(self, request: Request) -> Response:
        return await self._answered(request, parse(ChatRequest, await self._body(request)))

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._service.facts.max_request_mib)

    async def _answered(self, request: Request, asked: CompletionRequest | ChatRequest) -> Response:
        self._service.check_model(asked.model)
        prompts = await asyncio.to_thread(self._service.prompts, asked)
        headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
        generation = await _unless_gone(request, self._service.generation(asked, headers))
        is_chat = isinstance(asked, ChatRequest)
        writer = AnswerWriter(asked.model, is_chat=is_chat, usage_follows=asked.wants_usage)
        if asked.stream:
            events = _events(asked, prompts, writer, generation)
            # Before the first part an error has a status of its own.
            first = await _unless_gone(request, anext(events))
            return StreamingResponse(_from_first(first, events), media_type="text/event-stream")
        answers = await _unless_gone(request, gathered([generation.answers(prompt) for prompt in prompts]))
        flat = [part for parts in answers for part in parts]
        choices = [
            writer.choice(index, part.text, generation.tokens(part), part.finish or "stop")
            for index, part in enumerate(flat)
        ]
        used = usage(_tokens(prompts), sum(len(part.ids) for part in flat))
        return JSONResponse(writer.whole(choices, used))

    def _card(self) -> Json:
        facts = self._service.facts
        return model_card(facts.name, self._created, facts.max_seq_len)


async def _events(
    asked: CompletionRequest | ChatRequest,
    prompts: list[Prompt],
    writer: AnswerWriter,
    generation: Generation,
) -> AsyncGenerator[str]:
    """Yield the events of a stream; those that come before the first token together with it."""
    streams = [generation.parts(prompt, choice) for prompt in prompts for choice in range(asked.n)]
    tokens: dict[int, int] = {}
    async with aclosing(merged(streams)) as parts:
        async for index, part in parts:
            chunks: list[Json] = []
            if index not in tokens:
                chunks += writer.begin(index)
            tokens[index] = tokens.get(index, 0) + len(part.ids)
            if part.finish or part.text or asked.wants_log_probs:
                chunks.append(writer.chunk(index, part.text, generation.tokens(part), part.finish))
            if chunks:
                if asked.wants_usage_so_far:
                    so_far = usage(len(prompts[index // asked.n].ids), tokens[index])
                    chunks = [{**chunk, "usage": so_far} for chunk in chunks]
                yield "".join(map(_event, chunks))
    if asked.wants_usage:
        yield _event(writer.last(usage(_tokens(prompts), sum(tokens.values()))))
    yield write_event(DONE.decode())


def _event(chunk: Json) -> str:
    return write_event(json.dumps(chunk, ensure_ascii=False, separators=(",", ":")))


async def _from_first(first: str, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """Yield all events; an error after the first is an event, too, since the status has been sent."""
    async with aclosing(events):  # Starlette ends this stream when the client goes away
        try:
            yield first
            async for event in events:
                yield event
        except (ApiError, RequestFailed) as error:
            yield _event(as_api_error(error).body())


async def _unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Await something; cancel it at once when the client goes away. Raises _ClientGone if it has."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _tokens(prompts: list[Prompt]) -> int:
    return sum(len(prompt.ids) for prompt in prompts)


async def _failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError | RequestFailed)
    found = as_api_error(error)
    return JSONResponse(found.body(), found.status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}."
    answer = await _failure(request, ApiError(message, error.status_code))
    answer.headers.update(error.headers or {})
    return answer


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_GONE)


async def _internal_error(request: Request, error: Exception) -> Response:
    return await _failure(request, ApiError("The gateway failed; its log says why.", 500))
