"""The gateway's process: the routes of OpenAI's protocol as an ASGI application, and uvicorn to serve it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from trtllm_hpc.backends import backend_of
from trtllm_hpc.client.connect import Target
from trtllm_hpc.config.files import read_spec
from trtllm_hpc.errors import RequestFailed, StartFailed
from trtllm_hpc.gateway.answers import AnswerPart, AnswerWriter, ApiError, Json, as_api_error, usage
from trtllm_hpc.gateway.bodies import AnyBody, ChatBody, CompletionBody, parse
from trtllm_hpc.gateway.service import Facts, ServedByTriton, merged
from trtllm_hpc.paths import RunPaths
from trtllm_hpc.runtime.engine_config import NotAnEngine, read_engine
from trtllm_hpc.runtime.records import SESSION_HEADER

Result = TypeVar("Result")

_GONE = 499
"""Status for a client that went away, which nobody reads; nginx uses the same number."""
_PASSED_ON = (SESSION_HEADER, "traceparent", "tracestate")
"""Headers that are passed on to Triton: the conversation, and the request's trace (W3C Trace Context)."""

_BACKLOG = 2048
_GRACE_S = 5
"""Seconds for open answers once the gateway is asked to end."""
_KEEP_ALIVE_S = 120
"""Seconds that an idle connection stays open: longer than clients keep it (OpenAI's 5 s, aiohttp's 15 s),
because a request on a connection that is just being closed would be lost."""


def make_app(service: ServedByTriton) -> Starlette:
    """Return the application."""
    facts = service.facts
    card = {"id": facts.name, "created": int(time.time()), "object": "model", "owned_by": "trtllm-hpc"}
    card["max_model_len"] = facts.max_seq_len  # vLLM's key

    async def health(_: Request) -> Response:  # as trtllm-serve: 200 if Triton is ready
        return Response(status_code=200 if await service.is_ready() else 503)

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [card]})

    async def model(request: Request) -> Response:
        service.check_model(request.path_params["name"])
        return JSONResponse(card)

    async def completions(request: Request) -> Response:
        return await _answered(service, request, parse(CompletionBody, await _body(service, request)))

    async def chat_completions(request: Request) -> Response:
        return await _answered(service, request, parse(ChatBody, await _body(service, request)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.close()

    failures = (ApiError, RequestFailed, HTTPException, ClientDisconnect, Exception)
    return Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/models", models),
            Route("/v1/models/{name:path}", model),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        ],
        exception_handlers=dict.fromkeys(failures, _failure),
        lifespan=lifespan,
    )


async def _body(service: ServedByTriton, request: Request) -> bytes:
    """Return the body; raise ApiError as soon as it is too large."""
    most, body = service.facts.max_request_mib, bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most << 20:
            raise ApiError(f"The body is larger than serve.max_request_mib, {most} MiB.", 413)
    return bytes(body)


async def _answered(service: ServedByTriton, request: Request, asked: CompletionBody | ChatBody) -> Response:
    service.check_model(asked.model)
    prompts = await asyncio.to_thread(service.prompts, asked)
    headers = {name: value for name in _PASSED_ON if (value := request.headers.get(name)) is not None}
    choices = [(prompt, choice) for prompt in prompts for choice in range(asked.n)]
    parts = merged([service.answer(asked, prompt, choice, headers) for prompt, choice in choices])
    writer = AnswerWriter(asked.model, is_chat=isinstance(asked, ChatBody))
    sent = sum(len(prompt.ids) for prompt in prompts)
    if not asked.stream:
        answers = [AnswerPart()] * len(choices)

        async def join() -> None:
            async with aclosing(parts) as received:
                async for index, part in received:
                    answers[index] += part

        await _unless_gone(request, join())
        return JSONResponse(writer.whole(answers, usage(sent, sum(answer.count for answer in answers))))
    events = _events(asked, parts, writer, sent)
    # Wait for the first part, because an error before it can still be answered with its own status.
    first = await _unless_gone(request, anext(events))
    return StreamingResponse(_from_first(first, events), media_type="text/event-stream")


async def _events(
    asked: AnyBody, parts: AsyncGenerator[tuple[int, AnswerPart]], writer: AnswerWriter, sent: int
) -> AsyncGenerator[str]:
    """Yield the events of a stream; ``sent`` is the number of tokens of the prompts."""
    tokens, with_usage = 0, asked.stream_options.include_usage
    async with aclosing(parts) as received:
        async for index, part in received:
            tokens += part.count
            if not (part.text or part.finish):
                continue  # a token with only a part of a character
            yield _event(writer.chunk(index, part) | ({"usage": None} if with_usage else {}))
    if with_usage:
        yield _event(writer.last(usage(sent, tokens)))
    yield "data: [DONE]\n\n"


def _event(body: Json) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _from_first(first: str, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """Yield all events; an error after the first event becomes an event, because the status has been sent."""
    async with aclosing(events):  # Starlette closes this stream when the client goes away
        try:
            yield first
            async for event in events:
                yield event
        except (ApiError, RequestFailed) as error:
            yield _event(as_api_error(error).body())


async def _unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """Await ``work``; when the client goes away, cancel the work and raise ClientDisconnect."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(left())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _failure(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=_GONE)
    headers = None
    if isinstance(error, ApiError | RequestFailed):
        answer = as_api_error(error)
    elif isinstance(error, HTTPException):
        answer = ApiError(f"{request.method} {request.url.path}: {error.detail}.", error.status_code)
        headers = error.headers
    else:
        answer = ApiError("The gateway failed; its log shows why.", 500)
    return JSONResponse(answer.body(), answer.status, headers)


def facts_of(run: RunPaths) -> Facts:
    """Return the facts of a run with an engine. Raises ConfigError if its ``spec.yaml`` cannot be read."""
    job = read_spec(run.spec)
    folder = Path(job.engine.directory) if job.engine.directory else run.engine
    named = backend_of(job).tokenizer(job)
    max_seq_len = job.engine.max_seq_len
    with suppress(NotAnEngine):
        max_seq_len = read_engine(folder).max_seq_len or max_seq_len
    return Facts(
        name=Path(job.model.path).name if job.model.path else job.model.synthetic or job.name,
        tokenizer=folder / "tokenizer" if named is None else Path(named),
        max_seq_len=max_seq_len,
        add_special_tokens=job.repository.add_special_tokens is not False,
        skip_special_tokens=job.repository.skip_special_tokens is not False,
        max_request_mib=job.serve.max_request_mib,
    )


class _Server(uvicorn.Server):
    """A server that shuts down in an orderly way after a signal; uvicorn's own would die without cleanup."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def serve(sockets: list[socket.socket], target: Target, facts: Facts) -> None:
    """Answer requests until SIGTERM or SIGINT."""

    async def main() -> None:
        config = uvicorn.Config(
            make_app(ServedByTriton(target, facts)),
            # Without access logs, which would fill the log with a line for each request.
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
            timeout_keep_alive=_KEEP_ALIVE_S,
            # Ignore headers with a client's address: the client is always the proxy.
            proxy_headers=False,
            ws="none",
        )
        await _Server(config).serve(sockets)

    asyncio.run(main())


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine only. Raises StartFailed if that fails."""
    try:
        listener = socket.create_server(("127.0.0.1", port), backlog=_BACKLOG)
        # Connections inherit TCP_NODELAY, which asyncio sets only for sockets that it has made.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except OSError as error:
        hint = "name a free port with --port"
        raise StartFailed(f"Port {port} cannot be listened on: {error.strerror}.", hint=hint) from None
