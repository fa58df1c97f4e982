"""Requests to a server with OpenAI's completions and chats, such as ``trtllm-serve``, vLLM or the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from trtllm_hpc.client.request import BY_NAME, Request
from trtllm_hpc.errors import AnswerTimedOut, InvalidRequest, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire import openai
from trtllm_hpc.wire.events import Event, EventReader
from trtllm_hpc.wire.response import Response, WrongResponse, error_message
from trtllm_hpc.wire.served_model import ServedModel

_LOST = (502, 503)
"""HTTP statuses of the proxy for a lost server and for one that is not ready."""


class OpenAIConnection:
    """Connections to a server with OpenAI's protocol; leaving an answer closes its connection."""

    protocol = "openai"

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        import aiohttp

        self.model, self.can_stream = ServedModel(model, {"text_input": ""}, decoupled=True), True
        self._url = endpoint.openai_url
        self._session = aiohttp.ClientSession(
            # No limit, because the caller limits open requests.
            connector=aiohttp.TCPConnector(limit=0, ssl=endpoint.tls() or True),
            headers={"Content-Type": "application/json", **endpoint.authorization},
            # A proxy in the environment is for the internet, and cannot reach compute nodes.
            trust_env=not endpoint.job_id,
        )

    async def close(self) -> None:
        """Close the connections, which ends all open calls."""
        await self._session.close()

    async def responses(self, request: Request, ended: asyncio.Event) -> AsyncGenerator[Response]:
        """Yield each response; see :meth:`GrpcConnection.responses`."""
        url = f"{self._url}/{openai.CHAT_PATH if request.messages else openai.COMPLETIONS_PATH}"
        is_complete = not request.stream
        events = self._events(url, self._body(request), request)
        async with aclosing(_until_ended(events, ended)) as bounded:
            async for event in bounded:
                if event.data == openai.DONE:
                    is_complete = True
                    continue
                if (error := openai.event_error(event)) is not None:
                    raise RequestFailed(f"{url} failed: {error}")
                try:
                    response = openai.parse_response(event.data)
                except WrongResponse as wrong:
                    raise RequestFailed(f"{url} answered with {wrong}.") from None
                is_complete = is_complete or response.is_last
                yield response
        if not (is_complete or ended.is_set()):
            raise RequestFailed(f"{url}: {openai.INCOMPLETE}.")

    def _body(self, request: Request) -> bytes:
        """Return the request's body. Raises InvalidRequest if the protocol has no key for an option."""
        if request.adapter is not None:
            raise InvalidRequest("OpenAI's protocol cannot send the weights of LoRA adapters.")
        if request.messages and request.options.get("log_probs"):
            raise InvalidRequest("A chat has no --log-probs.", hint="remove --chat or --log-probs")
        options: dict[str, Any] = dict(request.inputs)
        for name, value in request.options.items():
            key = BY_NAME[name].openai
            if name == "exclude_input":
                continue  # answers over this protocol never repeat the prompt
            if not key:
                message = f"OpenAI's protocol has no key for {BY_NAME[name].flag}."
                raise InvalidRequest(message, hint="remove it")
            options[key] = int(value) if key == "logprobs" else value
        prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
        return openai.encode_request(
            self.model.name, prompt, messages=request.messages, stream=request.stream, options=options
        )

    async def _events(self, url: str, body: bytes, request: Request) -> AsyncGenerator[Event]:
        """Yield the events of an answer; an answer that is not streamed is one event.

        Raises RequestFailed with the server's error message.
        """
        import aiohttp

        timeout, count = aiohttp.ClientTimeout(total=request.timeout_s), 0
        headers = {"X-Request-Id": request.request_id, **request.headers}
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as reply:
                if reply.status != 200:
                    kind = ServerUnreachable if reply.status in _LOST else RequestFailed
                    raise kind(f"{url} answered {reply.status}: {error_message(await reply.read())}")
                if not request.stream:
                    yield Event(await reply.read())
                    return
                reader = EventReader()
                async for piece in reply.content.iter_any():
                    for event in reader.add(piece):
                        yield event
                        count += 1
                for event in reader.end():
                    yield event
        except asyncio.TimeoutError:
            raise AnswerTimedOut(
                f"{url} did not answer within {request.timeout_s:g} s.",
                hint="raise --timeout-seconds",
            ) from None
        except aiohttp.ClientError as error:
            if count:
                raise RequestFailed(f"{url} was lost after {count} responses: {error}") from error
            raise ServerUnreachable(f"{url} cannot be reached: {error}") from error


async def _until_ended(events: AsyncGenerator[Event], ended: asyncio.Event) -> AsyncGenerator[Event]:
    """Yield events until the last one or until ``ended`` is set, then close their generator."""
    ending = asyncio.ensure_future(ended.wait())
    following: asyncio.Future[Event | None] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(events, None))
            await asyncio.wait({following, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            if (event := following.result()) is None:
                return
            yield event
    finally:
        tasks = {task for task in (following, ending) if task is not None}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await events.aclose()
