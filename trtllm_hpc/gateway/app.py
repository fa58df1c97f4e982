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
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trtllm_hpc import __version__
from trtllm_hpc.errors import RequestFailed
from trtllm_hpc.gateway.answers import Chats, Completions, as_json, model_card, usage
from trtllm_hpc.gateway.errors import ApiError, from_failure
from trtllm_hpc.gateway.generation import Generation, Prompt, together
from trtllm_hpc.gateway.requests import ChatRequest, CompletionRequest, parse
from trtllm_hpc.gateway.service import Service, merged

Result = TypeVar("Result")

_GONE = 499
"""Status for a client that went away, which nobody reads; nginx's number."""


class _ClientGone(Exception):
    """Nobody waits for the answer any more."""


def make_app(service: Service) -> Starlette:
    """Return the application."""
    routes = _Routes(service)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    return Starlette(
        routes=[
            Route("/health", routes.health),
            Route("/version", routes.version),
            Route("/v1/models", routes.models),
            Route("/v1/models/{name:path}", routes.model),
            Route("/v1/completions", routes.completions, methods=["POST"]),
            Route("/v1/chat/completions", routes.chat_completions, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: _api_error,
            RequestFailed: _failure,
            HTTPException: _http_error,
            _ClientGone: _gone,
            Exception: _internal_error,
        },
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
        """The version of this toolkit."""
        return JSONResponse({"version": __version__})

    async def models(self, request: Request) -> Response:
        """The one model."""
        return _raw(f'{{"object":"list","data":[{self._card()}]}}')

    async def model(self, request: Request) -> Response:
        """The model of a name."""
        self._service.check_model(request.path_params["name"])
        return _raw(self._card())

    async def completions(self, request: Request) -> Response:
        """Continue texts."""
        asked = parse(CompletionRequest, await request.body())
        self._service.check_model(asked.model)
        prompts = await asyncio.to_thread(self._service.prompts, asked)
        shape = Completions(asked, self._service.tokenizer)
        return await self._answered(request, asked, prompts, shape, self._service.echoes(asked))

    async def chat_completions(self, request: Request) -> Response:
        """Answer a chat."""
        asked = parse(ChatRequest, await request.body())
        self._service.check_model(asked.model)
        prompts = await asyncio.to_thread(self._service.prompts, asked)
        return await self._answered(request, asked, prompts, Chats(asked, self._service.tokenizer), [""])

    async def _answered(
        self,
        request: Request,
        asked: CompletionRequest | ChatRequest,
        prompts: list[Prompt],
        shape: Completions | Chats,
        texts: list[str],
    ) -> Response:
        """Answer all prompts, whole or as a stream; ``texts`` are what each answer begins with."""
        generation = await _unless_gone(request, self._service.generation(asked))
        if asked.stream:
            events = _events(asked, prompts, shape, texts, generation)
            # Before the first part an error has a status of its own.
            first = await _unless_gone(request, anext(events))
            return StreamingResponse(_from_first(first, events), media_type="text/event-stream")
        answers = [generation.answers(prompt) for prompt in prompts]
        found = await _unless_gone(request, together(answers))
        for text, each in zip(texts, found, strict=True):
            for answer in each:
                answer.text = text + answer.text
        flat = [answer for each in found for answer in each]
        used = usage(_tokens(prompts), sum(len(answer.ids) for answer in flat))
        return _raw(as_json(shape.whole(flat, used)))

    def _card(self) -> str:
        facts = self._service.facts
        return as_json(model_card(facts.name, self._created, facts.max_seq_len))


async def _events(
    asked: CompletionRequest | ChatRequest,
    prompts: list[Prompt],
    shape: Completions | Chats,
    texts: list[str],
    generation: Generation,
) -> AsyncGenerator[str]:
    """Yield the events of a stream; those that come before the first token together with it."""
    streams = [generation.parts(prompt, choice) for prompt in prompts for choice in range(asked.n)]
    begun = [False] * len(streams)
    tokens = 0
    async with aclosing(merged(streams)) as parts:
        async for index, part in parts:
            tokens += len(part.ids)
            event = ""
            if not begun[index]:
                begun[index] = True
                event = "".join(_event(as_json(each)) for each in shape.begin(index))
                if text := texts[index // asked.n]:
                    event += _event(shape.text_chunk(index, text))
            if part.finish or asked.wants_log_probs:
                event += _event(as_json(shape.chunk(index, part)))
            elif part.text:
                event += _event(shape.text_chunk(index, part.text))
            if event:
                yield event
    if asked.wants_usage:
        yield _event(as_json(shape.last(usage(_tokens(prompts), tokens))))
    yield "data: [DONE]\n\n"


def _event(data: str) -> str:
    return f"data: {data}\n\n"


async def _from_first(first: str, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """Yield all events; an error after the first is an event, too, since the status has been sent."""
    async with aclosing(events):
        try:
            yield first
            async for event in events:
                yield event
        except (ApiError, RequestFailed) as error:
            yield _event(json.dumps(_as_api_error(error).body()))


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


def _raw(text: str) -> Response:
    return Response(text, media_type="application/json")


def _as_api_error(error: Exception) -> ApiError:
    return error if isinstance(error, ApiError) else from_failure(error)  # type: ignore[arg-type]


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status)


async def _failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestFailed)
    return await _api_error(request, from_failure(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}."
    answer = await _api_error(request, ApiError(message, error.status_code))
    answer.headers.update(error.headers or {})
    return answer


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=_GONE)


async def _internal_error(request: Request, error: Exception) -> Response:
    return await _api_error(request, ApiError("The gateway failed; its log says why.", 500))
