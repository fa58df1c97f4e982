"""The loading method of upstream's ``benchmark_core_model.py`` (v0.16.0), reimplemented.

Each request is built when it is its turn, sent with tritonclient's
``async_infer``, and then the sender sleeps for the gap. Latency counts from
the real send.
"""

from __future__ import annotations

import time
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from benchmarks.load.figures import Figures, percentile
from benchmarks.load.server import INSTANT

_Answer = tuple[float, Any]


def flood(port: int, level: int, seconds: float) -> Figures:
    """Send as fast as possible; upstream has no closed loop over gRPC, so ``level`` is ignored."""
    return _run(port, 0.0, seconds)


def open_(port: int, level: int, seconds: float) -> Figures:
    """``level`` requests per second, if building and sending a request took no time."""
    return _run(port, 1 / level, seconds)


def _run(port: int, gap_s: float, seconds: float) -> Figures:
    from tritonclient.grpc import InferenceServerClient

    answers: SimpleQueue[_Answer] = SimpleQueue()
    client = InferenceServerClient(f"127.0.0.1:{port}")
    client.infer(INSTANT, _inputs())
    began, cpu_began = time.monotonic(), time.process_time()
    sent = 0
    while time.monotonic() - began < seconds:
        inputs = _inputs()
        client.async_infer(
            INSTANT, inputs, partial(_answered, answers, time.monotonic()), request_id=str(sent)
        )
        sent += 1
        time.sleep(gap_s)
    sending_s = time.monotonic() - began
    latencies = [_latency(answers.get(timeout=60)) for _ in range(sent)]
    wall_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_began
    client.close()
    return Figures(
        rate_per_s=sent / (sending_s if gap_s else wall_s),
        cpu_us_per_request=cpu_s / sent * 1e6,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        cores=cpu_s / wall_s,
    )


def _inputs() -> list[Any]:
    from tritonclient.grpc import InferInput

    values = np.zeros((1, 1), dtype=np.int32)
    return [InferInput("INPUT", values.shape, "INT32").set_data_from_numpy(values)]


def _answered(answers: SimpleQueue[_Answer], sent: float, result: Any, error: Any) -> None:
    answers.put((time.monotonic() - sent, error))


def _latency(answer: _Answer) -> float:
    latency_s, error = answer
    if error is not None:
        raise error
    return latency_s
