"""The contenders; one in a process of its own prints its figures as one line of JSON.

``python -m benchmarks.load.contend NAME SCENARIO LEVEL SECONDS PORT``

- ours: the load generator of this package.
- grpcio: gRPC's asyncio client; the load generator would be simpler if it used it.
- upstream: the loading method of upstream's ``benchmark_core_model.py`` (v0.16.0), reimplemented. Each
  request is built when it is its turn, sent with tritonclient's ``async_infer``, and then the sender sleeps
  for the gap. Latency counts from the real send.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.load.figures import CLOSED, OPEN, OURS, STREAMS, Figures, of_client, percentile
from benchmarks.load.server import INSTANT, TOKENS
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.triton_request import infer_request

_TOKENS_PER_S = 50
_WARMUP_S = 0.5
"""The first moments do not count."""
_ZERO = np.zeros((1, 1), dtype=np.int32)


def _instant() -> bytes:
    return bytes(infer_request(INSTANT, {"INPUT": _ZERO}, "1").SerializeToString())


def _tokens(seconds: float) -> bytes:
    count = _ZERO + int(seconds * _TOKENS_PER_S)
    return bytes(infer_request(TOKENS, {"COUNT": count}, "1").SerializeToString())


def gap_error_p99_ms(streams: Iterable[Sequence[tuple[float, bytes]]]) -> float:
    """The p99 difference between the client's and the server's inter-token times, over all streams, in ms.

    Args:
        streams: for each stream its responses with their arrival times in seconds.
    """
    errors_ms = []
    for chunks in streams:
        seen = ((arrived_s, _stamp_s(raw)) for arrived_s, raw in chunks)
        for before, after in pairwise(seen):
            errors_ms.append(abs((after[0] - before[0]) - (after[1] - before[1])) * 1e3)
    return percentile(errors_ms, 0.99)


def _stamp_s(raw: bytes) -> float:
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelStreamInferResponse.FromString(raw)
    if response.error_message:
        raise RuntimeError(response.error_message)
    return int(np.frombuffer(response.infer_response.raw_output_contents[0], dtype="<i8")[0]) / 1e9


# Ours -----------------------------------------------------------------------------------


def _target(port: int, model: str, *, streaming: bool = False) -> Target:
    endpoint = Endpoint("0", "localhost", "127.0.0.1", 0, port, 0, [], 0.0)
    return Target(endpoint, model, streaming=streaming, decoupled=streaming)


def _loaded(plan: ClosedPlan | OpenPlan) -> LoadResult:
    load = run_load(plan)
    failed = [reply for reply in load.replies if not reply.ok]
    if failed or load.interrupted:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[:1]}")
    return load


def _our_closed(port: int, level: int, seconds: float) -> Figures:
    """A closed loop with ``level`` requests outstanding."""
    for length_s in (_WARMUP_S, seconds):
        load = _loaded(ClosedPlan(_target(port, INSTANT), [_instant()], Clock(), level, until_s=length_s))
    replies, client = load.replies, load.client
    latencies = [reply.ended_s - reply.sent_s for reply in replies]
    rate = len(replies) / (max(reply.ended_s for reply in replies) - load.start_s)
    return {"rate_per_s": rate, **of_client(latencies, client.cpu_s, client.wall_s, len(replies))}


def _our_open(port: int, level: int, seconds: float) -> Figures:
    """An open loop: ``level`` requests per second at equal intervals."""
    due_s = [number / level for number in range(int((seconds + _WARMUP_S) * level))]
    load = _loaded(OpenPlan(_target(port, INSTANT), [_instant()] * len(due_s), Clock(), due_s))
    replies = [reply for reply in load.replies if reply.due_s - load.start_s >= _WARMUP_S]
    latencies = [reply.ended_s - reply.sent_s for reply in replies]
    return {
        "rate_per_s": (len(replies) - 1) / (replies[-1].sent_s - replies[0].sent_s),
        "schedule_p99_ms": percentile([reply.ended_s - reply.due_s for reply in replies], 0.99) * 1e3,
        "late_p99_ms": percentile([reply.sent_s - reply.due_s for reply in replies], 0.99) * 1e3,
        **of_client(latencies, load.client.cpu_s, load.client.wall_s, len(load.replies)),
    }


def _our_streams(port: int, level: int, seconds: float) -> Figures:
    """``level`` concurrent streams; their starts are spread evenly over one inter-token time."""
    due_s = [number / level / _TOKENS_PER_S for number in range(level)]
    target = _target(port, TOKENS, streaming=True)
    load = _loaded(OpenPlan(target, [_tokens(seconds)] * level, Clock(), due_s))
    return _of_streams([reply.chunks for reply in load.replies], load.client.cpu_s, load.client.wall_s)


def _of_streams(streams: Sequence[Sequence[tuple[float, bytes]]], cpu_s: float, wall_s: float) -> Figures:
    return {
        "rate_per_s": sum(map(len, streams)) / wall_s,
        "cores": cpu_s / wall_s,
        "gap_error_p99_ms": gap_error_p99_ms(streams),
    }


# gRPC's own library ---------------------------------------------------------------------

_SERVICE = "/inference.GRPCInferenceService/"


async def _grpcio_closed(port: int, level: int, seconds: float) -> Figures:
    """Run ``level`` coroutines, each sending one pre-serialised request after the other."""
    from grpc import aio  # type: ignore[import-untyped]

    payload, latencies = _instant(), list[float]()

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
    return {"rate_per_s": len(latencies) / wall_s, **of_client(latencies, cpu_s, wall_s, len(latencies))}


async def _grpcio_streams(port: int, level: int, seconds: float) -> Figures:
    """Open one call for each stream."""
    from grpc import aio

    payload = _tokens(seconds)
    began, cpu_began = time.monotonic(), time.process_time()

    async def stream(call: Any, number: int) -> list[tuple[float, bytes]]:
        await asyncio.sleep(number / level / _TOKENS_PER_S)
        return [(time.monotonic(), raw) async for raw in call(iter([payload]), timeout=60)]

    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.stream_stream(f"{_SERVICE}ModelStreamInfer")
        chunks = await asyncio.gather(*(stream(call, number) for number in range(level)))
        wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    return _of_streams(chunks, cpu_s, wall_s)


# Upstream -------------------------------------------------------------------------------


def _upstream(port: int, gap_s: float, seconds: float) -> Figures:
    from tritonclient.grpc import InferenceServerClient, InferInput

    def inputs() -> list[Any]:
        return [InferInput("INPUT", _ZERO.shape, "INT32").set_data_from_numpy(_ZERO)]

    answers: SimpleQueue[tuple[float, Any]] = SimpleQueue()

    def send(sent_s: float) -> None:
        def answered(result: Any, error: Any) -> None:
            answers.put((time.monotonic() - sent_s, error))

        client.async_infer(INSTANT, inputs(), answered, request_id=str(sent))

    client = InferenceServerClient(f"127.0.0.1:{port}")
    client.infer(INSTANT, inputs())
    began, cpu_began = time.monotonic(), time.process_time()
    sent = 0
    while time.monotonic() - began < seconds:
        send(time.monotonic())
        sent += 1
        time.sleep(gap_s)
    sending_s = time.monotonic() - began
    ended = [answers.get(timeout=60) for _ in range(sent)]
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    client.close()
    if errors := [error for _, error in ended if error is not None]:
        raise errors[0]
    rate = sent / (sending_s if gap_s else wall_s)
    return {"rate_per_s": rate, **of_client([latency_s for latency_s, _ in ended], cpu_s, wall_s, sent)}


CONTENDERS: dict[tuple[str, str], Callable[[int, int, float], Figures]] = {
    (OURS, CLOSED): _our_closed,
    (OURS, OPEN): _our_open,
    (OURS, STREAMS): _our_streams,
    ("grpcio", CLOSED): lambda *given: asyncio.run(_grpcio_closed(*given)),
    ("grpcio", STREAMS): lambda *given: asyncio.run(_grpcio_streams(*given)),
    # It has no closed loop over gRPC: it sends as fast as it can.
    ("upstream", CLOSED): lambda port, _, seconds: _upstream(port, 0.0, seconds),
    ("upstream", OPEN): lambda port, level, seconds: _upstream(port, 1 / level, seconds),
}
"""Each takes the gRPC port, the level (requests at once, or a second, or streams) and the seconds."""


if __name__ == "__main__":
    name, scenario, level, seconds, port = sys.argv[1:]
    print(json.dumps(CONTENDERS[name, scenario](int(port), int(level), float(seconds))))
