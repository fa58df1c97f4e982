"""grpcio's asyncio client: the load generator would be simpler if it used it."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

from benchmarks.load import messages
from benchmarks.load.figures import Figures, percentile

_WARMUP_S = 0.5
_SERVICE = "/inference.GRPCInferenceService/"


def closed(port: int, level: int, seconds: float) -> Figures:
    """Run ``level`` coroutines, each sending one pre-serialised request after the other."""
    return asyncio.run(_closed(port, level, seconds))


async def _closed(port: int, level: int, seconds: float) -> Figures:
    from grpc import aio  # type: ignore[import-untyped]

    payload = messages.instant()
    latencies: list[float] = []

    async def slot(infer: Any, end: float) -> None:
        while (sent := time.monotonic()) < end:
            await infer(payload, timeout=60)
            latencies.append(time.monotonic() - sent)

    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        infer = channel.unary_unary(f"{_SERVICE}ModelInfer")
        for length_s in (_WARMUP_S, seconds):
            latencies.clear()
            gc.collect()
            gc.disable()
            began, cpu_began = time.monotonic(), time.process_time()
            await asyncio.gather(*(slot(infer, began + length_s) for _ in range(level)))
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    return Figures(
        rate_per_s=len(latencies) / wall_s,
        cpu_us_per_request=cpu_s / len(latencies) * 1e6,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        cores=cpu_s / wall_s,
    )


def streams(port: int, level: int, seconds: float) -> Figures:
    """Open one call for each stream."""
    return asyncio.run(_streams(port, level, seconds))


async def _streams(port: int, level: int, seconds: float) -> Figures:
    from grpc import aio

    payload = messages.tokens(int(seconds * messages.TOKENS_PER_S))
    began, cpu_began = time.monotonic(), time.process_time()

    async def stream(call: Any, number: int) -> list[tuple[float, bytes]]:
        await asyncio.sleep(number / level / messages.TOKENS_PER_S)
        return [(time.monotonic(), raw) async for raw in call(iter([payload]), timeout=60)]

    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(f"{_SERVICE}ModelStreamInfer")
        chunks = await asyncio.gather(*(stream(call, number) for number in range(level)))
        wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    return Figures(
        rate_per_s=sum(map(len, chunks)) / wall_s,
        cores=cpu_s / wall_s,
        gap_error_p99_ms=messages.gap_error_p99_ms(chunks),
    )
