"""The measured requests by LoRA adapter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from trtllm_hpc.bench.metrics import LATENCY, TPOT, TTFT, PerRequest, distribution
from trtllm_hpc.bench.records import NoValue, RequestRecord
from trtllm_hpc.bench.results import MeasurementSummary
from trtllm_hpc.report.formatting import NONE, quantity

TITLE = "By LoRA adapter"
HEADER = ("LoRA adapter", "requests", "failed", "sent again", "TTFT p50", "TPOT p50", "latency p50", "p99")
"""The last four in milliseconds."""


def adapter_rows(
    measurement: MeasurementSummary, records: Sequence[RequestRecord], level: int
) -> list[list[str]]:
    """Return a row of text for each adapter, and one for the requests without; nothing if none has any."""
    by_adapter: dict[int | None, list[RequestRecord]] = {}
    for record in records:
        if record.measured and record.level == level:
            by_adapter.setdefault(record.lora_task_id, []).append(record)
    if not by_adapter.keys() - {None}:
        return []
    names = _names(measurement)
    in_order = [None, *sorted(task_id for task_id in by_adapter if task_id is not None)]
    return [
        [names.get(task_id, f"{task_id}"), *_cells(by_adapter[task_id])]
        for task_id in in_order
        if task_id in by_adapter
    ]


def _names(measurement: MeasurementSummary) -> dict[int | None, str]:
    """Return the number and the folder's name of each adapter, by its number."""
    names: dict[int | None, str] = {None: "none"}
    for place, one in enumerate(measurement.settings.get("workload", {}).get("lora", ()), 1):
        task_id = place if one["task_id"] is None else one["task_id"]
        names[task_id] = f"{task_id}: {one['adapter'] or PurePosixPath(one['directory']).name}"
    return names


def _cells(records: Sequence[RequestRecord]) -> list[str]:
    answered = [record for record in records if record.ok]
    return [
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
