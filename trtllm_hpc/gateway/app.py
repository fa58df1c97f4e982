"""The routes of OpenAI's protocol, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.answers import AnswerPart, AnswerWriter, ApiError, Json, as_api_error, usage
from trtllm_hpc.gateway.bodies import AnyBody, ChatBody, CompletionBody, parse
from trtllm_hpc.gateway.service import ServedByTriton, merged
from trtllm_hpc.runtime.records import SESSION_HEADER

Result = TypeVar("Result")

_GONE = 499
"""Status for a client that went away, which nobody reads; nginx's number."""
_PASSED_ON = (SESSION_HEADER, "traceparent", "tracestate")
"""Headers for Triton: the conversation, and the trace that the request belongs to (W3C Trace Context)."""


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


def make_app(service: ServedByTriton) -> Starlette:
    """Return the application."""
    routes = _Routes(service)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
        ],
        exception_handlers={
            kind: _failure
            for kind in (ApiError, RequestFailed, HTTPException, _ClientGone, ClientDisconnect, Exception)
        },
        lifespan=lifespan,
    )


class _Routes:
    def __init__(self, service: ServedByTriton) -> None:
        self._service = service
        self._created = int(time.time())

    async def health(self, request: Request) -> Response:
        """200 when Triton is ready, as ``trtllm-serve``."""
        return Response(status_code=200 if await self._service.is_ready() else 503)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card()]})

    async def model(self, request: Request) -> Response:
        self._service.check_model(request.path_params["name"])
        return JSONResponse(self._card())

    def _card(self) -> Json:
        facts = self._service.facts
        card = {"id": facts.name, "created": self._created, "object": "model", "owned_by": "trtllm-hpc"}
        return {**card, "max_model_len": facts.max_seq_len}  # vLLM's key

    async def completions(self, request: Request) -> Response:
        return await self._answered(request, parse(CompletionBody, await self._body(request)))

    async def chat_completions(self, request: Request) -> Response:
        return await self._answered(request, parse(ChatBody, await self._body(request)))

    async def _body(self, request: Request) -> bytes:
        """Return the body, bounded while it is read. Raises ApiError if it is too large."""
        most, body = self._service.facts.max_request_mib, bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > most << 20:
                raise ApiError(f"The body is larger than serve.max_request_mib, {most} MiB.", 413)
        return bytes(body)

    async def _answered(self, request: Request, asked: CompletionBody | ChatBody) -> Response:
        service = self._service
        service.check_model(asked.model)
        prompts = await asyncio.to_thread(service.prompts, asked)
        headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
        choices = [(prompt, choice) for prompt in prompts for choice in range(asked.n)]
        parts = merged([service.answer(asked, prompt, choice, headers) for prompt, choice in choices])
        writer = AnswerWriter(asked.model, is_chat=isinstance(asked, ChatBody))
        sent = sum(len(prompt.ids) for prompt in prompts)
        if not asked.stream:
            answers = await _unless_gone(request, _joined(parts, len(choices)))
            return JSONResponse(writer.whole(answers, usage(sent, sum(answer.count for answer in answers))))
        events = _events(asked, parts, writer, sent)
        # Before the first part an error has a status of its own.
        first = await _unless_gone(request, anext(events))
        return StreamingResponse(_from_first(first, events), media_type="text/event-stream")


async def _joined(parts: AsyncGenerator[tuple[int, AnswerPart]], count: int) -> list[AnswerPart]:
    """Return so many whole answers."""
    answers = [AnswerPart()] * count
    async with aclosing(parts) as received:
        async for index, part in received:
            answers[index] += part
    return answers


async def _events(
    asked: AnyBody, parts: AsyncGenerator[tuple[int, AnswerPart]], writer: AnswerWriter, sent: int
) -> AsyncGenerator[str]:
    """Yield the events of a stream; ``sent`` is the number of tokens of the prompts."""
    tokens, with_usage = 0, asked.stream_options.include_usage
    async with aclosing(parts) as received:
        async for index, part in received:
            tokens += part.count
            if not (part.text or part.finish):
                continue  # the beginning of a letter
            yield _event(writer.chunk(index, part) | ({"usage": None} if with_usage else {}))
    if with_usage:
        yield _event(writer.last(usage(sent, tokens)))
    yield "data: [DONE]\n\n"


def _event(body: Json) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


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
    """Await work; cancel it at once when the client goes away. Raises _ClientGone if it has."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _failure(request: Request, error: Exception) -> Response:
    if isinstance(error, _ClientGone | ClientDisconnect):
        return Response(status_code=_GONE)
    headers = None
    if isinstance(error, ApiError | RequestFailed):
        found = as_api_error(error)
    elif isinstance(error, HTTPException):
        found = ApiError(f"{request.method} {request.url.path}: {error.detail}.", error.status_code)
        headers = error.headers
    else:
        found = ApiError("The gateway failed; its log says why.", 500)
    return JSONResponse(found.body(), found.status, headers)
