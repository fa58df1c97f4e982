"""Sending requests at their scheduled times, whatever the server does (open loop)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtllm_hpc.bench.progress import Progress
from trtllm_hpc.bench.records import OK, RequestRecord
from trtllm_hpc.bench.wire import INFER_METHOD
from trtllm_hpc.client.ask import GRPC_OPTIONS
from trtllm_hpc.errors import NotReady
from trtllm_hpc.runtime.records import Endpoint

_SPIN_S = 0.0015
"""The event loop wakes up to a millisecond late: the last stretch is spent awake."""
_LEAD_S = 0.05
"""From the start of the loop to the first request."""
_CONNECT_TIMEOUT_S = 10.0

_Finished = tuple[RequestRecord, bytes | None]


@dataclass(frozen=True)
class Load:
    """What was measured: a record a request, and each reply as it came (``None`` for an error)."""

    started_at: float
    """Seconds since the epoch; the zero of the records' times."""
    records: list[RequestRecord]
    replies: list[bytes | None]


def run_load(
    endpoint: Endpoint,
    requests: Sequence[bytes],
    times_s: Sequence[float],
    *,
    warmup: Sequence[bytes] = (),
    timeout_s: float,
    progress: Progress,
) -> Load:
    """Send serialised requests at ``times_s`` seconds after the start, and wait for every answer.

    A request that is late is sent at once and its record says so; none is
    dropped. The warm-up requests go before, one after the other, unrecorded.

    Args:
        timeout_s: for each request, from its send.

    Raises:
        NotReady: no connection to the endpoint.
    """
    return asyncio.run(_run(endpoint, requests, times_s, warmup, timeout_s, progress))


async def _run(
    endpoint: Endpoint,
    requests: Sequence[bytes],
    times_s: Sequence[float],
    warmup: Sequence[bytes],
    timeout_s: float,
    progress: Progress,
) -> Load:
    from grpc import aio  # type: ignore[import-untyped]

    def count(done: asyncio.Future[_Finished]) -> None:
        if not done.cancelled():
            progress.count(done.result()[0].ok)

    async with aio.insecure_channel(endpoint.grpc, options=list(GRPC_OPTIONS)) as channel:
        await _connect(channel, endpoint)
        infer = channel.unary_unary(INFER_METHOD)
        clock = _Clock()
        for request in warmup:
            await _finish(infer(request, timeout=timeout_s), 0, 0.0, 0.0, clock)
        clock = _Clock(_LEAD_S)
        waiting = []
        for index, (request, due_s) in enumerate(zip(requests, times_s, strict=True)):
            await clock.until(due_s)
            sent_s = clock.now()
            call = infer(request, timeout=timeout_s)
            finish = asyncio.ensure_future(_finish(call, index, due_s, sent_s, clock))
            finish.add_done_callback(count)
            waiting.append(finish)
        finished = await asyncio.gather(*waiting)
    return Load(clock.started_at, [record for record, _ in finished], [reply for _, reply in finished])


class _Clock:
    """Seconds since a start that lies ``lead_s`` ahead, on the monotonic clock."""

    def __init__(self, lead_s: float = 0.0) -> None:
        self._zero = time.monotonic() + lead_s
        self.started_at = time.time() + lead_s

    def now(self) -> float:
        return time.monotonic() - self._zero

    async def until(self, due_s: float) -> None:
        """Return at ``due_s``, at once if that has passed, but let answers in first."""
        await asyncio.sleep(max(0.0, due_s - self.now() - _SPIN_S))
        while self.now() < due_s:
            await asyncio.sleep(0)


async def _connect(channel: Any, endpoint: Endpoint) -> None:
    try:
        await asyncio.wait_for(channel.channel_ready(), _CONNECT_TIMEOUT_S)
    except asyncio.TimeoutError:
        raise NotReady(
            f"No gRPC connection to {endpoint.grpc} (host {endpoint.host}) within {_CONNECT_TIMEOUT_S:g} s."
        ) from None


async def _finish(call: Any, index: int, due_s: float, sent_s: float, clock: _Clock) -> _Finished:
    """Wait for one answer or error and note when it came."""
    from grpc.aio import AioRpcError  # type: ignore[import-untyped]

    try:
        reply: bytes = await call
    except AioRpcError as error:
        failed = RequestRecord(index, due_s, sent_s, clock.now(), error.code().name, error.details())
        return failed, None
    return RequestRecord(index, due_s, sent_s, clock.now(), OK), reply
