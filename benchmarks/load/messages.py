"""The benchmark's two requests, and the time stamps in an answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from benchmarks.load.figures import percentile
from benchmarks.load.server import INSTANT, TOKENS
from trtllm_hpc.wire.triton_request import infer_request

TOKENS_PER_S = 50


def instant() -> bytes:
    return bytes(infer_request(INSTANT, {"INPUT": np.zeros((1, 1), dtype=np.int32)}, "1").SerializeToString())


def tokens(count: int) -> bytes:
    return bytes(
        infer_request(TOKENS, {"COUNT": np.full((1, 1), count, dtype=np.int32)}, "1").SerializeToString()
    )


def gap_error_p99_ms(streams: Iterable[Sequence[tuple[float, bytes]]]) -> float:
    """The p99 difference between the client's and the server's inter-token times, over all streams, in ms.

    Args:
        streams: for each stream its responses with their arrival times in seconds.
    """
    errors = []
    for chunks in streams:
        stamps = [_stamp_s(raw) for _, raw in chunks]
        for (before, after), (first, second) in zip(pairwise(chunks), pairwise(stamps), strict=True):
            errors.append(abs((after[0] - before[0]) - (second - first)) * 1e3)
    return percentile(errors, 0.99)


def _stamp_s(raw: bytes) -> float:
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelStreamInferResponse.FromString(raw)
    if response.error_message:
        raise RuntimeError(response.error_message)
    stamp_ns: int = np.frombuffer(response.infer_response.raw_output_contents[0], dtype="<i8")[0]
    return int(stamp_ns) / 1e9
