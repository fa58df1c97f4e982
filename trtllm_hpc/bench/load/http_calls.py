"""Triton's HTTP ``generate`` and ``generate_stream``: one request, one JSON answer or a stream of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from trtllm_hpc.bench.load.clock import Clock
from trtllm_hpc.bench.load.replies import Reply
from trtllm_hpc.bench.load.target import Target
from trtllm_hpc.errors import NotReady

if TYPE_CHECKING:
    import aiohttp

_CONNECT_TIMEOUT_S = 10.0
_PAUSE_S = 0.05
"""Before a request fails that found no server, lest a closed loop runs wild."""
_EVENT_END = b"\n\n"
_EVENT = b"data: "
_ERROR = b'{"error"'
"""How Triton begins an answer that is an error; with ``generate`` its status may yet be 200."""


class HttpCalls:
    """Sends requests to one server, each on a connection of its own that is used again afterwards.

    Args:
        ended: called with each reply when it is whole or has failed.
    """

    def __init__(self, target: Target, clock: Clock, ended: Callable[[Reply], None]) -> None:
        self._target = target
        self._clock = clock
        self._ended = ended
        how = "generate_stream" if target.streaming else "generate"
        self._url = f"http://{target.endpoint.http}/v2/models/{quote(target.model, safe='')}/{how}"
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Ask whether the server is there.

        Raises:
            NotReady: it is not.
        """
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self._target.timeout_s),
            headers={"Content-Type": "application/json"},
            trust_env=False,
        )
        endpoint = self._target.endpoint
        limit = aiohttp.ClientTimeout(total=_CONNECT_TIMEOUT_S)
        try:
            async with self._session.get(f"http://{endpoint.http}/v2/health/live", timeout=limit):
                return
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise NotReady(
                f"No HTTP connection to {endpoint.http} (host {endpoint.host}) "
                f"within {_CONNECT_TIMEOUT_S:g} s: {error or 'it does not answer'}."
            ) from None

    def send(self, reply: Reply, payload: bytes) -> None:
        """Begin a request."""
        task = asyncio.get_running_loop().create_task(self._ask(reply, payload))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def flush(self) -> None:
        """Nothing waits here."""

    async def close(self) -> None:
        """Hang up, whatever is in flight."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if hasattr(self, "_session"):
            await self._session.close()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            told = {"message": "a request broke", "exception": error}
            asyncio.get_running_loop().call_exception_handler(told)

    async def _ask(self, reply: Reply, payload: bytes) -> None:
        import aiohttp

        reply.sent_s = self._clock.now()
        try:
            async with self._session.post(self._url, data=payload) as response:
                await self._receive(reply, response)
        except asyncio.TimeoutError:
            words = f"no whole answer in {self._target.timeout_s:g} s"
            reply.status, reply.error = "DEADLINE_EXCEEDED", words
        except (aiohttp.ClientError, OSError) as error:
            reply.status, reply.error = "UNAVAILABLE", str(error) or type(error).__name__
            await asyncio.sleep(_PAUSE_S)
        reply.ended_s = self._clock.now()
        self._ended(reply)

    async def _receive(self, reply: Reply, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            reply.status, reply.error = f"HTTP {response.status}", _words(await response.read())
        elif self._target.streaming:
            await self._receive_events(reply, response)
        else:
            body = await response.read()
            self._take(reply, body)

    async def _receive_events(self, reply: Reply, response: aiohttp.ClientResponse) -> None:
        """Server-sent events, each a line ``data: {...}`` and an empty one."""
        rest = b""
        async for piece in response.content.iter_any():
            *events, rest = (rest + piece).split(_EVENT_END)
            for event in events:
                self._take(reply, event.removeprefix(_EVENT))

    def _take(self, reply: Reply, answer: bytes) -> None:
        if answer.startswith(_ERROR):
            reply.status, reply.error = "HTTP 200", _words(answer)
        else:
            reply.chunks.append((self._clock.now(), answer))


def _words(body: bytes) -> str:
    """What the server says went wrong: Triton's ``{"error": ...}``, else the body as it is."""
    text = body.decode("utf-8", errors="replace").strip().removeprefix(_EVENT.decode())
    try:
        answer: Any = json.loads(text)
        return str(answer["error"])
    except (ValueError, KeyError, TypeError):
        return text[:65536] or "no words"
