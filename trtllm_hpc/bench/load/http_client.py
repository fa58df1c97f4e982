"""Client of Triton's HTTP ``generate`` and ``generate_stream``, and of OpenAI's completions and chat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from trtllm_hpc.bench.load.messages import CHAT, LoadReply, Target, session_headers
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.errors import NotReady
from trtllm_hpc.wire import openai, triton_response
from trtllm_hpc.wire.response import error_message
from trtllm_hpc.wire.triton_request import generate_url

_CONNECT_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
"""Before a request that found no server fails: a closed loop would otherwise send as fast as it can."""


class HttpClient:
    """Sends requests to one server, each on a connection of its own, which is reused afterwards.

    ``on_end`` is called with each reply when it is complete or has failed.
    """

    def __init__(self, target: Target, clock: Clock, on_end: Callable[[LoadReply], None]) -> None:
        self._target = target
        self._clock = clock
        self._on_end = on_end
        endpoint = target.endpoint
        if target.is_openai:
            path = openai.CHAT_PATH if target.protocol == CHAT else openai.COMPLETIONS_PATH
            self._url = f"{endpoint.openai_url}/{path}"
            self._live_url = f"{endpoint.openai_url}/models"
        else:
            self._url = generate_url(endpoint, target.model, stream=target.streaming)
            self._live_url = f"{endpoint.scheme}://{endpoint.http}/v2/health/live"
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

    def send(self, reply: LoadReply, payload: bytes) -> None:
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

    async def _request(self, reply: LoadReply, payload: bytes) -> None:
        reply.sent_s = self._clock.now()
        try:
            headers = session_headers(reply.session)
            async with self._session.post(self._url, data=payload, headers=headers) as response:
                await self._receive(reply, response)
        except asyncio.TimeoutError:
            message = f"no whole answer in {self._target.timeout_s:g} s"
            reply.status, reply.error = "DEADLINE_EXCEEDED", message
        except (aiohttp.ClientError, OSError) as error:
            reply.status, reply.error = "UNAVAILABLE", str(error) or type(error).__name__
            await asyncio.sleep(_PAUSE_S)
        # What the client does with a whole answer is not part of its latency.
        reply.ended_s = reply.chunks[-1][0] if reply.ok and reply.chunks else self._clock.now()
        self._on_end(reply)

    async def _receive(self, reply: LoadReply, response: aiohttp.ClientResponse) -> None:
        """Receive an answer; a stream is kept in pieces, to be parsed after the pass."""
        keep = reply.chunks.append
        if response.status != 200:
            reply.status = f"HTTP {response.status}"
            reply.error = error_message(await response.read()) or "no error message"
            return
        if self._target.streaming:
            async for piece in response.content.iter_any():
                keep((self._clock.now(), piece))
        else:
            keep((self._clock.now(), await response.read()))
        error, answer = None, b"".join(piece for _, piece in reply.chunks)
        if not self._target.is_openai:
            error = triton_response.generate_error(answer)
        elif self._target.streaming:
            error = openai.stream_error(answer)
        if error is not None:
            reply.status, reply.error = "HTTP 200", error
