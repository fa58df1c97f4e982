"""Records in milliseconds, so that figures can be added in the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtllm_hpc.bench.analysis.slo import Slo
from trtllm_hpc.bench.records import MEASURED, OK, RequestRecord, Sample
from trtllm_hpc.bench.results import ClientUse, Energy, Level, OpenLoop, Window
from trtllm_hpc.bench.workload.request import BY_SERVER

IDLE = ClientUse(cpu_s=0.1, wall_s=1.0, busiest_share=0.1)
"""A client that had next to nothing to do."""


def request(
    scheduled_ms: float,
    sent_ms: float,
    ended_ms: float,
    *,
    chunks_ms: Sequence[float] = (),
    chunk_tokens: Sequence[int] | None = None,
    tokens_in: int | None = 3,
    tokens_out: int | None = 10,
    asked: int | None = 10,
    status: str = OK,
    output_by: str | None = BY_SERVER,
    phase: str = MEASURED,
    index: int = 0,
    **more: Any,
) -> RequestRecord:
    """One request; each chunk is one token unless ``chunk_tokens`` says otherwise."""
    return RequestRecord(
        index=index,
        level=0,
        repeat=0,
        phase=phase,
        scheduled_s=scheduled_ms / 1e3,
        sent_s=sent_ms / 1e3,
        ended_s=ended_ms / 1e3,
        status=status,
        error=None if status == OK else "it broke",
        requested_tokens=asked,
        chunks_s=tuple(chunk_ms / 1e3 for chunk_ms in chunks_ms),
        chunk_tokens=tuple([1] * len(chunks_ms) if chunk_tokens is None else chunk_tokens),
        input_tokens=tokens_in,
        input_by=BY_SERVER if tokens_in is not None else None,
        output_tokens=tokens_out,
        output_by=output_by if tokens_out is not None else None,
        **more,
    )


def sample(
    records: Sequence[RequestRecord],
    start_ms: float = 0,
    end_ms: float = 1000,
    *,
    level: Level | None = None,
    slo: Slo | None = None,
    energy: Energy | None = None,
) -> Sample:
    """One pass over a window of a second, unless told otherwise."""
    is_good = None if slo is None else slo.judge(records)
    return Sample(records, Window(start_ms / 1e3, end_ms / 1e3), level or OpenLoop(10), is_good, energy)
