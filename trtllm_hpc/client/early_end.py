"""The early end of an answer that comes over a connection of its own: leaving it ends it on the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass
class Course:
    """How a request is ended early, and whether it was."""

    ended: asyncio.Event | None = None
    """Ends the request once set; ``None``: only its own time does."""
    is_stopped: bool = field(default=False, init=False)
    """Whether it was ended early."""


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
