"""The early end of an answer that comes over a connection of its own: leaving it tells the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, TypeVar

Response = TypeVar("Response")


@dataclass
class Course:
    """What becomes of a request while it is answered."""

    is_stopped: bool = False
    """Whether it was ended early."""


async def until_ended(
    responses: AsyncGenerator[Response], course: Course, after_s: float | None, ended: asyncio.Event | None
) -> AsyncGenerator[Response]:
    """Yield responses until the last, until a time has passed or until ``ended`` is set."""
    event = ended if ended is not None else asyncio.Event()
    stop: asyncio.Future[Any] = asyncio.ensure_future(asyncio.wait_for(event.wait(), after_s))
    following: asyncio.Future[Any] | None = None
    try:
        while True:
            following = asyncio.ensure_future(anext(responses, None))
            await asyncio.wait({following, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                course.is_stopped = True
                return
            if (response := following.result()) is None:
                return
            yield response
    finally:
        tasks = {stop} if following is None else {stop, following}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await responses.aclose()
