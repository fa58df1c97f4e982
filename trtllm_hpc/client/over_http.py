"""Requests over HTTP: bodies of JSON, and server-sent events where an answer is streamed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Mapping

from trtllm_hpc.client.request import Request
from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.events import Event, EventReader
from trtllm_hpc.wire.openai import DONE
from trtllm_hpc.wire.response import error_message

_LOST = (502, 503)
"""What the proxy answers for a server that was lost, and for one that is not ready."""
_NO_TEMPLATE = re.compile("no chat template|provide a chat template")
"""In the words of the gateway here, and of transformers, which vLLM and trtllm-serve pass on."""


class HttpServer:
    """Connections to a server; leaving an answer closes its connection.

    ``trust_env`` takes the proxy that the environment names: it is for the outside world, and cannot reach
    compute nodes.
    """

    def __init__(self, endpoint: Endpoint, *, trust_env: bool = False) -> None:
        import aiohttp

        self.endpoint = endpoint
        self._session = aiohttp.ClientSession(
            # Without limit: how many are open at once is the caller's choice.
            connector=aiohttp.TCPConnector(limit=0, ssl=endpoint.tls() or True),
            headers={"Content-Type": "application/json", **endpoint.authorization},
            trust_env=trust_env,
        )

    async def close(self) -> None:
        """End the connections, and with them all open calls."""
        await self._session.close()

    async def events(
        self,
        url: str,
        body: bytes,
        request: Request,
        *,
        stream: bool,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Event]:
        """Yield the events of an answer; an answer as a whole is one event.

        Raises RequestFailed with the server's error message.
        """
        import aiohttp

        timeout, count = aiohttp.ClientTimeout(total=request.timeout_s), 0
        headers = {**(headers or {}), **request.headers}
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as reply:
                if reply.status != 200:
                    kind = ServerUnreachable if reply.status in _LOST else RequestFailed
                    message = error_message(await reply.read())
                    hint = "leave out --chat" if request.messages and _NO_TEMPLATE.search(message) else None
                    raise kind(f"{url} answered {reply.status}: {message}", hint=hint)
                if not stream:
                    yield Event(await reply.read())
                    return
                reader = EventReader()
                async for piece in reply.content.iter_any():
                    for event in reader.add(piece):
                        yield event
                        count += 1
                for event in reader.end():
                    if not _is_whole(event.data):
                        raise RequestFailed("The answer broke off in the middle of a response.")
                    yield event
        except asyncio.TimeoutError:
            raise AnswerTimedOut(
                f"{url} did not answer within {request.timeout_s:g} s.",
                hint="give it longer: --timeout-seconds",
            ) from None
        except aiohttp.ClientError as error:
            if count:
                raise RequestFailed(f"{url} was lost after {count} responses: {error}") from error
            raise ServerUnreachable(f"{url} cannot be reached: {error}") from error


def _is_whole(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return data == DONE
    return True
