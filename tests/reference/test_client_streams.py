"""Many streams of one client: none is lost, and those that are left take no place on the server."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import Any

import pytest

from trtllm_hpc.client.async_client import AsyncClient
from trtllm_hpc.runtime.records import Endpoint

from .clients import steps, wait_idle, wait_until
from .servers import MAX_BATCH_SIZE, World

pytestmark = pytest.mark.triton

STREAMS = {"ensemble": 200, "tensorrt_llm_bls": 40}
"""At once. BLS answers two at a time; Triton 2.51 takes a stub for dead that waits long for a processor."""
LONG = 400
OPTIONS: dict[str, Any] = {"end_id": -1, "exclude_input": True}


@pytest.mark.parametrize("model", STREAMS)
def test_no_stream_is_lost_and_none_that_is_left_goes_on(
    endpoint: Endpoint, alone: World, model: str
) -> None:
    streams = STREAMS[model]

    async def read(client: AsyncClient, number: int, parts: int | None) -> str:
        """The text of a stream; one with a number of parts is left after them."""
        count, text = (8, "") if parts is None else (LONG, "")
        stream = client.stream(f"Number {number % 10} is", max_tokens=count, **OPTIONS)
        async with aclosing(stream):
            async for part in stream:
                text += part
                parts = None if parts is None else parts - 1
                if parts == 0:
                    break
        return text

    async def many() -> tuple[list[str], list[str]]:
        async with AsyncClient(endpoint, model) as client:
            whole = await asyncio.gather(*(read(client, number, None) for number in range(streams)))
            one_by_one = [
                (await client.generate(f"Number {number} is", max_tokens=8, **OPTIONS)).text
                for number in range(10)
            ]
            half = [read(client, number, 3 if number % 2 else None) for number in range(streams)]
            await asyncio.to_thread(wait_idle, alone)
            before = steps(alone)
            found = await asyncio.gather(*half)
            await asyncio.to_thread(wait_until, lambda: steps(alone) > before)
            await asyncio.to_thread(wait_idle, alone)
            assert found[::2] == whole[::2]
            # So many steps of eight requests each make all tokens that were asked for.
            assert steps(alone) - before < streams / 2 * LONG / MAX_BATCH_SIZE / 2
            return list(whole), one_by_one

    whole, one_by_one = asyncio.run(many())
    assert [plain(text) for text in whole] == [plain(one_by_one[number % 10]) for number in range(streams)]


def plain(text: str) -> str:
    """A text without letters of several tokens, which a stream of the ensemble does not put together."""
    return re.sub(r"[^ -~]", "", text)
