"""Records in milliseconds, so that figures can be added in the head."""

from __future__ import annotations

from trtllm_hpc.bench.records import OK, RequestRecord
from trtllm_hpc.bench.tokens import BY_MODEL


def request(
    scheduled_ms: float,
    sent_ms: float,
    ended_ms: float,
    *,
    tokens_in: int | None = 3,
    tokens_out: int | None = 10,
    status: str = OK,
    counted_by: str | None = BY_MODEL,
) -> RequestRecord:
    error = None if status == OK else "it broke"
    times = (scheduled_ms / 1e3, sent_ms / 1e3, ended_ms / 1e3)
    return RequestRecord(0, *times, status, error, tokens_in, tokens_out, counted_by)
