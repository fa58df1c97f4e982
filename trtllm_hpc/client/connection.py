"""A served model over one connection, whatever its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import TypeVar

from trtllm_hpc.client.request import Request
from trtllm_hpc.wire.response import Response
from trtllm_hpc.wire.served_model import ServedModel

Item = TypeVar("Item")


class Connection:
    """A connection to one model of a server, for any number of requests at once.

    ``can_stream`` is whether the model answers token by token.
    """

    protocol: str

    def __init__(self, model: ServedModel, *, can_stream: bool) -> None:
        self.model = model
        self.can_stream = can_stream

    async def close(self) -> None:
        """End the connection, and with it all open requests."""
        raise NotImplementedError

    def responses(self, request: Request, ended: asyncio.Event) -> AsyncGenerator[Response]:
        """Send a request and yield its responses; leaving the generator ends the request on the server.

        ``ended`` ends the answer early, once set. Raises InvalidRequest, RequestFailed.
        """
        raise NotImplementedError

    async def is_ready(self, timeout_s: float) -> bool:
        """Return whether Triton says within this time that it and its models are ready."""
        return False


async def gathered(work: Sequence[Awaitable[Item]]) -> list[Item]:
    """Await all; after an error, or when nobody waits any more, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
