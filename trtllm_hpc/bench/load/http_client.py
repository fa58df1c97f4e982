"""Client of Triton's HTTP ``generate`` and ``generate_stream``, and of OpenAI's completions and chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import aiohttp

from trtllm_hpc.bench.load import openai
from trtllm_hpc.bench.load.messages import Reply, Target
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.client.http import error_message
from trtllm_hpc.errors import NotReady

_CONNECT_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
"""Before a request that found no server fails: a closed loop would otherwise send as fast as it can."""
_EVENT_END = b"\n\n"
_EVENT_PREFIX = b"data: "
_ERROR_PREFIX = b'{"error"'
"""How Triton's errors begin; with ``generate`` their HTTP status may be 200."""


class HttpClient:
    """Sends requests to one server, each on a connection of its own, which is reused afterwards.

    ``on_end`` is called with each reply when it is complete or has failed.
    """

    def __init__(self, target: Target, clock: Clock, on_end: Callable[[Reply], None]) -> None:
        self._target = target
        self._clock = clock
        self._on_end = on_end
        endpoint = target.endpoint
        if target.is_openai:
            self._url = f"{endpoint.openai_url}/{openai.PATHS[target.protocol]}"
            self._live_url = f"{endpoint.openai_url}/models"
        else:
            method = "generate_stream" if target.streaming else "generate"
            server = f"{endpoint.scheme}://{endpoint.http}"
            self._url = f"{server}/v2/models/{quote(target.model, safe='')}/{method}"
            self._live_url = f"{server}/v2/health/live"
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Check that the server answers. Raises NotReady if it does not."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._target.endpoint.tls() or True),
            timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            headers={"Content-Type": "application/json", **self._target.endpoint.authorization},
            trust_env=False,
        )
        endpoint = self._target.endpoint
        timeout = aiohttp.ClientTimeout(total=_CONNECT_TIMEOUT_S)
        try:
            async with self._session.get(self._live_url, timeout=timeout):
                return
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise NotReady(
                f"No HTTP connection to {endpoint.place} (host {endpoint.host}) "
                f"within {_CONNECT_TIMEOUT_S:g} s: {error or 'it does not answer'}."
            ) from None

    def send(self, reply: Reply, payload: bytes) -> None:
        """Start a request."""
        task = asyncio.get_running_loop().create_task(self._request(reply, payload))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def flush(self) -> None:
        """Do nothing: requests are not queued here."""

    async def close(self) -> None:
        """Cancel all requests in flight."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if hasattr(self, "_session"):
            await self._session.close()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "a request failed unexpectedly", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    async def _request(self, reply: Reply, payload: bytes) -> None:
        reply.sent_s = self._clock.now()
        try:
            async with self._session.post(self._url, data=payload) as response:
                await self._receive(reply, response)
        except asyncio.TimeoutError:
            message = f"no whole answer in {self._target.timeout_s:g} s"
            reply.status, reply.error = "DEADLINE_EXCEEDED", message
        except (aiohttp.ClientError, OSError) as error:
            reply.status, reply.error = "UNAVAILABLE", str(error) or type(error).__name__
            await asyncio.sleep(_PAUSE_S)
        reply.ended_s = self._clock.now()
        self._on_end(reply)

    async def _receive(self, reply: Reply, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            reply.status, reply.error = f"HTTP {response.status}", _error_message(await response.read())
        elif self._target.is_openai:
            await self._receive_openai(reply, response)
        elif self._target.streaming:
            await self._receive_events(reply, response)
        else:
            self._add_chunk(reply, await response.read())

    async def _receive_openai(self, reply: Reply, response: aiohttp.ClientResponse) -> None:
        """Receive a stream piece by piece, to be read after the pass; at its end look whether it is whole."""
        if not self._target.streaming:
            body = await response.read()
            reply.chunks.append((self._clock.now(), body))
            return
        now, keep = self._clock.now, reply.chunks.append
        async for piece in response.content.iter_any():
            keep((now(), piece))
        error = openai.stream_error(b"".join(piece for _, piece in reply.chunks))
        if error is not None:
            reply.status, reply.error = "HTTP 200", error

    async def _receive_events(self, reply: Reply, response: aiohttp.ClientResponse) -> None:
        """Receive server-sent events, each a line ``data: {...}`` and an empty one."""
        rest = b""
        async for piece in response.content.iter_any():
            *events, rest = (rest + piece).split(_EVENT_END)
            for event in events:
                self._add_chunk(reply, event.removeprefix(_EVENT_PREFIX))

    def _add_chunk(self, reply: Reply, answer: bytes) -> None:
        if answer.startswith(_ERROR_PREFIX):
            reply.status, reply.error = "HTTP 200", _error_message(answer)
        else:
            reply.chunks.append((self._clock.now(), answer))


def _error_message(body: bytes) -> str:
    return error_message(body[:65536].removeprefix(_EVENT_PREFIX)) or "no error message"
