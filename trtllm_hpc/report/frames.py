"""Measurements as tables of pandas, which is imported when one is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trtllm_hpc.bench.metrics import ITL, METRICS, PerRequest
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Interval, LevelResult, MeasurementSummary
from trtllm_hpc.errors import TrtllmHpcError
from trtllm_hpc.report.headline import is_valid, level_labels

if TYPE_CHECKING:
    from pandas import DataFrame

_PER_REQUEST = tuple(it for it in METRICS if isinstance(it, PerRequest) and it is not ITL)
"""Metrics with one value for each request; the gaps between tokens are several."""
_FIELDS = (
    *("repeat", "phase", "index", "status", "error", "scheduled_s", "sent_s", "first_token_s", "ended_s"),
    *("session", "turn"),
)


def requests_frame(measurement: MeasurementSummary, records: Sequence[RequestRecord]) -> DataFrame:
    """Return one row for each request, in the order of the file."""
    labels = level_labels(measurement)
    rows = [
        {
            "level": labels[record.level] if record.level < len(labels) else str(record.level),
            **{field: getattr(record, field) for field in _FIELDS},
            **{
                metric.key: next(iter(metric.values(record)), None)
                if record.ok or metric.includes_failed
                else None
                for metric in _PER_REQUEST
            },
        }
        for record in records
    ]
    return imported_pandas().DataFrame(rows)


def levels_frame(measurement: MeasurementSummary) -> DataFrame:
    """Return one row for each level of load, in the order of measurement."""
    labels = level_labels(measurement)
    rows = [
        {
            "level": label,
            "valid": is_valid(result),
            "measured": result.measured,
            "failed": result.failed,
            **level_figures(result),
        }
        for label, result in zip(labels, measurement.levels, strict=True)
    ]
    return imported_pandas().DataFrame(rows)


def level_figures(result: LevelResult) -> dict[str, float]:
    """Return the figures of a level, means over its passes; those of distributions as ``ttft_ms.p99``."""
    figures: dict[str, float] = {}
    for key, value in result.metrics.items():
        if isinstance(value, Interval):
            figures[key] = value.mean
        else:
            figures |= {f"{key}.{statistic}": it.mean for statistic, it in value.items()}
    return figures


def imported_pandas() -> Any:
    """Import and return pandas. Raises TrtllmHpcError if it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise TrtllmHpcError(
            "A table of a measurement needs the Python package 'pandas', which is not installed.",
            hint="pip install 'trtllm-hpc[notebook]'",
        ) from error
    return pandas
