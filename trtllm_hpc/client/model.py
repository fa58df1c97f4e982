"""A served model over one connection, whatever its protocol."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trtllm_hpc.client.request import Answer, Request
from trtllm_hpc.wire.response import Response
from trtllm_hpc.wire.served_model import ServedModel

Item = TypeVar("Item")


@dataclass
class Course:
    """How a request is ended early, and whether it was."""

    ended: asyncio.Event | None = None
    """Ends the request once set; ``None``: only its own time does."""
    is_stopped: bool = field(default=False, init=False)
    """Whether it was ended early."""


class Model(ABC):
    """One model of a server, for any number of requests at once.

    ``can_stream`` is whether it answers token by token, ``can_tokenize`` whether a model that takes token
    ids can be asked texts.
    """

    protocol: str
    can_tokenize = False

    def __init__(self, model: ServedModel, *, can_stream: bool) -> None:
        self.model = model
        self.can_stream = can_stream

    @abstractmethod
    async def close(self) -> None:
        """End the connection, and with it all open requests."""

    @abstractmethod
    def responses(self, request: Request, course: Course) -> AsyncGenerator[Response]:
        """Send a request and yield its responses; leaving the generator ends the request on the server.

        Raises InvalidRequest, RequestFailed.
        """

    async def stop(self, request_id: str) -> None:
        """End a request that another client has sent, if the protocol has such a call."""
        return

    async def count(self, texts: list[str]) -> list[int] | None:
        """Return the tokens of texts as the server counts them; ``None`` if it has no such call."""
        return None

    async def decoded(self, answer: Answer) -> Answer:
        """Return an answer of token ids with its texts, if the server can decode them."""
        return answer


async def until_ended(
    items: AsyncGenerator[Item], course: Course, after_s: float | None
) -> AsyncGenerator[Item]:
    """Yield items until the last, until a time has passed or until the course is ended."""
    event = course.ended or asyncio.Event()
    stop: asyncio.Future[Any] = asyncio.ensure_future(asyncio.wait_for(event.wait(), after_s))
    following: asyncio.Future[Any] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(items, None))
            await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                course.is_stopped = True
                return
            if (item := following.result()) is None:
                return
            yield item
    finally:
        tasks = {stop} if following is None else {stop, following}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
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
