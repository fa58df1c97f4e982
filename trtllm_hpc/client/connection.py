"""A served model over one connection, whatever its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from typing import TypeVar

from trtllm_hpc.client.request import Request
from trtllm_hpc.wire.response import Response
from trtllm_hpc.wire.served_model import ServedModel

Item = TypeVar("Item")


class Ending:
    """When an answer is to be ended early: once ``event`` is set, or after a time."""

    def __init__(self, event: asyncio.Event | None = None, after_s: float | None = None) -> None:
        self.event = event or asyncio.Event()
        self._after_s = after_s
        self.has_come = False
        """Whether the answer was ended early."""

    async def wait(self) -> None:
        """Wait until the answer is to be ended."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.event.wait(), self._after_s)


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

    def responses(self, request: Request, ending: Ending) -> AsyncGenerator[Response]:
        """Send a request and yield its responses; leaving the generator ends the request on the server.

        Raises InvalidRequest, RequestFailed.
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
