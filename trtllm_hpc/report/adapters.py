"""The measured requests by LoRA adapter."""

from __future__ import annotations

from collections.abc import Sequence

from trtllm_hpc.bench.metrics import LATENCY, TPOT, TTFT, PerRequest, distribution
from trtllm_hpc.bench.records import NoValue, RequestRecord
from trtllm_hpc.report.formatting import NONE, quantity

TITLE = "By LoRA adapter"
HEADER = ("LoRA task id", "requests", "failed", "sent again", "TTFT p50", "TPOT p50", "latency p50", "p99")
"""The last four in milliseconds."""


def adapter_rows(records: Sequence[RequestRecord]) -> list[list[str]]:
    """Return a row of text for each adapter, and one for the requests without; nothing if none has any.

    Args:
        records: of one level.
    """
    by_adapter: dict[int | None, list[RequestRecord]] = {}
    for record in records:
        if record.measured:
            by_adapter.setdefault(record.lora_task_id, []).append(record)
    if not by_adapter.keys() - {None}:
        return []
    in_order = sorted(by_adapter, key=lambda task_id: -1 if task_id is None else task_id)
    return [_row(task_id, by_adapter[task_id]) for task_id in in_order]


def _row(task_id: int | None, records: Sequence[RequestRecord]) -> list[str]:
    answered = [record for record in records if record.ok]
    return [
        "none" if task_id is None else str(task_id),
        f"{len(records):,}",
        f"{len(records) - len(answered):,}",
        f"{sum(record.resent for record in records):,}",
        _percentile(TTFT, answered, "p50"),
        _percentile(TPOT, answered, "p50"),
        _percentile(LATENCY, answered, "p50"),
        _percentile(LATENCY, answered, "p99"),
    ]


def _percentile(metric: PerRequest, answered: Sequence[RequestRecord], name: str) -> str:
    try:
        figures = distribution(value for record in answered for value in metric.values(record))
    except NoValue:
        return NONE
    return quantity(getattr(figures, name))
