"""A served model over one connection, whatever its protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from trtllm_hpc.client.request import Answer, Request
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


class Model:
    """One model of a server, for any number of requests at once.

    ``can_stream`` is whether it answers token by token, ``can_tokenize`` whether a model that takes token
    ids can be asked texts.
    """

    protocol: str
    can_tokenize = False

    def __init__(self, model: ServedModel, *, can_stream: bool) -> None:
        self.model = model
        self.can_stream = can_stream

    async def close(self) -> None:
        """End the connection, and with it all open requests."""
        raise NotImplementedError

    def responses(self, request: Request, ending: Ending | None) -> AsyncGenerator[Response]:
        """Send a request and yield its responses; leaving the generator ends the request on the server.

        Raises InvalidRequest, RequestFailed.
        """
        raise NotImplementedError

    async def stop(self, request_id: str) -> None:
        """End a request that another client has sent, if the protocol has such a call."""

    async def count(self, texts: list[str]) -> list[int] | None:
        """Return the tokens of texts as the server counts them; ``None`` if it has no such call."""
        return None

    async def decoded(self, answer: Answer) -> Answer:
        """Return an answer of token ids with its texts, if the server can decode them."""
        return answer


async def until_ended(items: AsyncGenerator[Item], ending: Ending | None) -> AsyncGenerator[Item]:
    """Yield items until the last, or until the answer is to be ended; close their generator then."""
    ended: asyncio.Future[Any] = asyncio.ensure_future((ending or Ending()).wait())
    following: asyncio.Future[Any] = ended
    try:
        while True:
            following = asyncio.ensure_future(anext(items, None))
            await asyncio.wait({following, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done() and ending is not None:
                ending.has_come = True
                return
            if (item := following.result()) is None:
                return
            yield item
    finally:
        for task in (following, ended):
            task.cancel()
        await asyncio.wait({following, ended})
        await items.aclose()


async def gathered(work: Sequence[Awaitable[Item]]) -> list[Item]:
    """Await all; after an error, or when nobody waits any more, the others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
