"""Run our load generator in its own process, and print its figures as one line of JSON.

``python -m benchmarks.load.contend SCENARIO LEVEL SECONDS PORT``
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.load.figures import CLOSED, OPEN, STREAMS, Figures, of_client, percentile
from benchmarks.load.server import INSTANT, TOKENS
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.runtime.records import Endpoint
from trtllm_hpc.wire.triton import infer_request

_TOKENS_PER_S = 50
_WARMUP_S = 0.5
"""Seconds at the beginning that are not measured."""
_ZERO = np.zeros((1, 1), dtype=np.int32)


def _instant() -> bytes:
    return bytes(infer_request(INSTANT, {"INPUT": _ZERO}, "1").SerializeToString())


def _tokens(seconds: float) -> bytes:
    count = _ZERO + int(seconds * _TOKENS_PER_S)
    return bytes(infer_request(TOKENS, {"COUNT": count}, "1").SerializeToString())


def gap_error_p99_ms(streams: Iterable[Sequence[tuple[float, bytes]]]) -> float:
    """Return the p99 of the difference between client's and server's inter-token times of all streams, in ms.

    Args:
        streams: for each stream, its responses with their arrival times in seconds.
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
    """Measure a closed loop with ``level`` outstanding requests."""
    for length_s in (_WARMUP_S, seconds):
        load = _loaded(ClosedPlan(_target(port, INSTANT), [_instant()], Clock(), level, until_s=length_s))
    replies, client = load.replies, load.client
    latencies = [reply.ended_s - reply.sent_s for reply in replies]
    rate = len(replies) / (max(reply.ended_s for reply in replies) - load.start_s)
    return {"rate_per_s": rate, **of_client(latencies, client.cpu_s, client.wall_s, len(replies))}


def _our_open(port: int, level: int, seconds: float) -> Figures:
    """Measure an open loop: ``level`` requests per second at equal intervals."""
    due_s = [number / level for number in range(int((seconds + _WARMUP_S) * level))]
    load = _loaded(OpenPlan(_target(port, INSTANT), [_instant()] * len(due_s), Clock(), due_s))
    replies = [reply for reply in load.replies if reply.due_s - load.start_s >= _WARMUP_S]
    latencies = [reply.ended_s - reply.sent_s for reply in replies]
    return {
        "rate_per_s": (len(replies) - 1) / (replies[-1].sent_s - replies[0].sent_s),
        "late_p99_ms": percentile([reply.sent_s - reply.due_s for reply in replies], 0.99) * 1e3,
        **of_client(latencies, load.client.cpu_s, load.client.wall_s, len(load.replies)),
    }


def _our_streams(port: int, level: int, seconds: float) -> Figures:
    """Measure ``level`` concurrent streams, whose starts are spread evenly over one inter-token time."""
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


SCENARIOS: dict[str, Callable[[int, int, float], Figures]] = {
    CLOSED: _our_closed,
    OPEN: _our_open,
    STREAMS: _our_streams,
}
"""Functions with three arguments: the gRPC port, the level of ``LEVELS`` and the duration in seconds."""


if __name__ == "__main__":
    scenario, level, seconds, port = sys.argv[1:]
    print(json.dumps(SCENARIOS[scenario](int(port), int(level), float(seconds))))
