"""Requests to Triton over HTTP: its extension ``generate``, and ``generate_stream`` for text as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote

import numpy as np

from trtllm_hpc.client.http import error_message
from trtllm_hpc.client.reply import IDS_OUTPUT, Outputs
from trtllm_hpc.client.request import Request
from trtllm_hpc.client.served_model import LENGTH_OUTPUT, ServedModel
from trtllm_hpc.errors import AnswerTimedOut, RequestFailed, ServerUnreachable
from trtllm_hpc.runtime.records import Endpoint

_LOST = (502, 503)
"""What the door answers for a server that was lost, and for one that is not ready."""

_EVENT = b"data:"


class HttpServer:
    """Connections to Triton's HTTP service."""

    protocol = "http"

    def __init__(self, endpoint: Endpoint) -> None:
        import aiohttp

        self.endpoint = endpoint
        # Without limit: how many are open at once is the caller's choice.
        connector = aiohttp.TCPConnector(limit=0, ssl=endpoint.tls() or False)
        self._session = aiohttp.ClientSession(connector=connector, headers=endpoint.authorization)

    async def close(self) -> None:
        """End the connections, and with them all open calls."""
        await self._session.close()

    async def responses(
        self, model: ServedModel, inputs: Mapping[str, Any], request: Request
    ) -> AsyncGenerator[Outputs]:
        """Yield the responses to a request; a connection that is left is closed.

        Raises RequestFailed with the server's error message.
        """
        import aiohttp

        # "generate" takes one response only.
        is_stream = request.stream or request.options.get("return_sequences", 1) > 1
        path = "generate_stream" if is_stream else "generate"
        url = f"{self.endpoint.scheme}://{self.endpoint.http}/v2/models/{quote(model.name, safe='')}/{path}"
        body = json.dumps(inputs, ensure_ascii=False).encode("utf-8", errors="replace")
        timeout = aiohttp.ClientTimeout(total=request.timeout_s)
        headers = {"Content-Type": "application/json"}
        count = 0
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as reply:
                if reply.status != 200:
                    raise _refused(url, reply.status, await reply.read())
                if not is_stream:
                    yield _outputs(url, await reply.read())
                    return
                async for event in _events(reply.content):
                    yield _outputs(url, event)
                    count += 1
        except asyncio.TimeoutError:
            raise AnswerTimedOut(
                f"{url} did not answer within {request.timeout_s:g} s.",
                hint="give it longer: --timeout-seconds",
            ) from None
        except aiohttp.ClientError as error:
            if count:
                raise RequestFailed(f"{url} was lost after {count} responses: {error}") from error
            raise ServerUnreachable(f"{url} cannot be reached: {error}") from error


async def _events(content: Any) -> AsyncGenerator[bytes]:
    """Yield the data of server-sent events; a line may be longer than aiohttp's own reader takes."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(_EVENT):
                yield line.removeprefix(_EVENT)
    if rest.strip():
        raise RequestFailed("The answer broke off in the middle of a response.")


def _refused(url: str, status: int, body: bytes) -> RequestFailed:
    kind = ServerUnreachable if status in _LOST else RequestFailed
    return kind(f"{url} answered {status}: {error_message(body[:65536])}")


def _outputs(url: str, body: bytes) -> Outputs:
    """Return the tensors of a JSON response."""
    try:
        reply = json.loads(body.decode("utf-8", errors="replace"))
    except ValueError:
        raise RequestFailed(f"{url} answered what is not JSON: {body[:200]!r}") from None
    if not isinstance(reply, dict):
        raise RequestFailed(f"{url} answered without outputs: {body[:200]!r}")
    if "error" in reply:
        raise RequestFailed(f"{url} failed: {reply['error']}")
    found = {name: _array(value) for name, value in reply.items()}
    ids, lengths = found.get(IDS_OUTPUT), found.get(LENGTH_OUTPUT)
    if ids is not None and lengths is not None and lengths.size and ids.size % lengths.size == 0:
        # JSON has no shape; there is one length for each beam.
        found[IDS_OUTPUT] = ids.reshape(lengths.size, -1)
    return found


def _array(value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    is_plain = all(isinstance(item, (int, float)) for item in items)
    return np.array(items) if is_plain and items else np.array(items, dtype=np.object_)
