"""The load generator of this package."""

from __future__ import annotations

from benchmarks.load import messages
from benchmarks.load.figures import Figures, percentile
from benchmarks.load.server import INSTANT, TOKENS
from trtllm_hpc.bench.load.loops import ClosedPlan, LoadResult, OpenPlan
from trtllm_hpc.bench.load.messages import Target
from trtllm_hpc.bench.load.run import run_load
from trtllm_hpc.bench.load.timing import Clock
from trtllm_hpc.runtime.records import Endpoint

_WARMUP_S = 0.5
"""As for all contenders, the first moments do not count."""


def endpoint_at(port: int) -> Endpoint:
    """A server on this machine that listens for gRPC at a port."""
    return Endpoint("0", "localhost", "127.0.0.1", 0, port, 0, [], 0.0)


def _target(endpoint: Endpoint, model: str, *, streaming: bool = False) -> Target:
    return Target(endpoint, model, streaming=streaming, decoupled=streaming)


def closed(endpoint: Endpoint, level: int, seconds: float) -> Figures:
    """A closed loop with ``level`` requests outstanding."""
    target = _target(endpoint, INSTANT)
    run_load(ClosedPlan(target, [messages.instant()], Clock(), level, until_s=_WARMUP_S))
    load = _checked(run_load(ClosedPlan(target, [messages.instant()], Clock(), level, until_s=seconds)))
    latencies = [reply.ended_s - reply.sent_s for reply in load.replies]
    return Figures(
        rate_per_s=len(load.replies) / (max(reply.ended_s for reply in load.replies) - load.start_s),
        cpu_us_per_request=load.client.cpu_s / len(load.replies) * 1e6,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        cores=load.client.cpu_s / load.client.wall_s,
    )


def open_(endpoint: Endpoint, level: int, seconds: float) -> Figures:
    """An open loop: ``level`` requests per second at equal intervals."""
    due_s = [number / level for number in range(int((seconds + _WARMUP_S) * level))]
    load = _checked(
        run_load(OpenPlan(_target(endpoint, INSTANT), [messages.instant()] * len(due_s), Clock(), due_s))
    )
    replies = [reply for reply in load.replies if reply.due_s - load.start_s >= _WARMUP_S]
    latencies = [reply.ended_s - reply.sent_s for reply in replies]
    return Figures(
        rate_per_s=(len(replies) - 1) / (replies[-1].sent_s - replies[0].sent_s),
        cpu_us_per_request=load.client.cpu_s / len(load.replies) * 1e6,
        p50_ms=percentile(latencies, 0.5) * 1e3,
        p99_ms=percentile(latencies, 0.99) * 1e3,
        schedule_p99_ms=percentile([reply.ended_s - reply.due_s for reply in replies], 0.99) * 1e3,
        late_p99_ms=percentile([reply.sent_s - reply.due_s for reply in replies], 0.99) * 1e3,
        cores=load.client.cpu_s / load.client.wall_s,
    )


def streams(endpoint: Endpoint, level: int, seconds: float) -> Figures:
    """``level`` concurrent streams; their starts are spread evenly over one inter-token time."""
    payload = messages.tokens(int(seconds * messages.TOKENS_PER_S))
    due_s = [number / level / messages.TOKENS_PER_S for number in range(level)]
    load = _checked(
        run_load(OpenPlan(_target(endpoint, TOKENS, streaming=True), [payload] * level, Clock(), due_s))
    )
    return Figures(
        rate_per_s=sum(len(reply.chunks) for reply in load.replies) / load.client.wall_s,
        cores=load.client.cpu_s / load.client.wall_s,
        gap_error_p99_ms=messages.gap_error_p99_ms(reply.chunks for reply in load.replies),
    )


def _checked(load: LoadResult) -> LoadResult:
    failed = [reply for reply in load.replies if not reply.ok]
    if failed or load.interrupted:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[:1]}")
    return load
