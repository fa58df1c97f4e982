"""The levels of a measurement: labels, figures, the headline level, and pandas tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from trtllm_hpc.bench.metrics import ITL, METRICS, PerRequest
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import ClosedLoop, Interval, LevelResult, MeasurementSummary
from trtllm_hpc.errors import TrtllmHpcError

if TYPE_CHECKING:
    from pandas import DataFrame

KEPT_UP = 0.9
"""Fewest finished requests per second of a server that keeps up, as a share of the sent ones."""
_PER_REQUEST = tuple(metric for metric in METRICS if isinstance(metric, PerRequest) and metric is not ITL)
"""Metrics with one value per request; inter-token latency has several."""
_FIELDS = (
    *("repeat", "phase", "index", "status", "error", "scheduled_s", "sent_s", "first_token_s", "ended_s"),
    *("session", "turn"),
)


def served(measurement: MeasurementSummary) -> list[str]:
    """Return words for the measured model, its nodes, GPUs and parallelism."""
    server, engine = (measurement.provenance.get(part) or {} for part in ("server", "engine"))
    nodes = server.get("nodes") or list(filter(None, [server.get("host")]))
    gpus = {gpu.partition(",")[0] for rank in server.get("ranks", ()) for gpu in rank.get("gpu_models", ())}
    sizes = {kind: engine.get(f"{kind}_parallel") or 1 for kind in ("tensor", "pipeline", "context")}
    more = f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    return [
        f"model {PurePath(engine.get('model') or measurement.model).name}",
        *([f"node{'s' * (len(nodes) > 1)} {', '.join(nodes[:4])}{more}"] if nodes else []),
        *([f"{server['gpus']} {' and '.join(sorted(gpus)) or 'GPUs'}"] if server.get("gpus") else []),
        *(f"{kind} parallel {size}" for kind, size in sizes.items() if size > 1),
        *([f"{server['instances']} instances"] if server.get("instances") else []),
    ]


def level_labels(measurement: MeasurementSummary) -> list[str]:
    """Return the labels of levels; equal labels are numbered."""
    names = [result.level.label for result in measurement.levels]
    twice = {name for name, count in Counter(names).items() if count > 1}
    return [
        f"{name} ({names[: place + 1].count(name)})" if name in twice else name
        for place, name in enumerate(names)
    ]


def ascending_levels(measurement: MeasurementSummary) -> list[tuple[str, LevelResult]]:
    """Return each level with its label, sorted by load, because a search tries rates in another order."""
    labelled = zip(level_labels(measurement), measurement.levels, strict=True)
    return sorted(labelled, key=lambda level: load_of(level[1]))


def headline_level(measurement: MeasurementSummary) -> int | None:
    """Return the index of the level whose figures represent the measurement; ``None`` without levels.

    It is the result of a search, else the highest load with which the server kept up, else the level with the
    most finished requests per second. Invalid levels count only if no level is valid.
    """
    levels = measurement.levels
    search = measurement.search
    if search is not None and search.max_rate_per_s is not None:
        for tried in search.tried:
            if tried.rate_per_s == search.max_rate_per_s and tried.holds:
                return tried.level
    usable = [place for place, result in enumerate(levels) if is_valid(result)] or list(range(len(levels)))
    kept_up = [place for place in usable if keeps_up(levels[place])]
    return max(kept_up or usable, key=lambda place: finished_rate(levels[place]), default=None)


def figure_of(result: LevelResult, key: str, statistic: str | None = None) -> Interval | None:
    """Return a figure of a level, or a statistic of a distribution; ``None`` if it is missing."""
    figure = result.metrics.get(key)
    return figure.get(statistic or "") if isinstance(figure, dict) else figure


def level_figures(result: LevelResult) -> dict[str, float]:
    """Return the figures of a level, as means over passes; statistics have keys like ``ttft_ms.p99``."""
    figures: dict[str, float] = {}
    for key, value in result.metrics.items():
        if isinstance(value, Interval):
            figures[key] = value.mean
        else:
            figures |= {f"{key}.{statistic}": interval.mean for statistic, interval in value.items()}
    return figures


def is_valid(result: LevelResult) -> bool:
    """Return whether the figures of all passes over the level are valid."""
    return all(finished.verdict.valid for finished in result.passes)


def keeps_up(result: LevelResult) -> bool:
    """Return whether latency was steady and nearly as many requests per second finished as were sent."""
    if any(finished.verdict.unsteady for finished in result.passes):
        return False
    sent = figure_of(result, "sent_rate_per_s")
    return sent is not None and finished_rate(result) >= KEPT_UP * sent.mean


def finished_rate(result: LevelResult) -> float:
    """Return the mean finished requests per second of all passes; 0 if none finished."""
    rate = figure_of(result, "finished_rate_per_s")
    return 0.0 if rate is None else rate.mean


def load_of(result: LevelResult) -> float:
    """Return the load: requests per second, or requests in flight."""
    level = result.level
    return float(level.concurrency) if isinstance(level, ClosedLoop) else level.rate_per_s


# Tables of pandas, which is imported late ----------------------------------------------------------


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


def imported_pandas() -> Any:
    """Import and return pandas. Raises TrtllmHpcError if it is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise TrtllmHpcError(
            "Tables of measurements need the Python package 'pandas', which is not installed.",
            hint="pip install 'trtllm-hpc[notebook]'",
        ) from error
    return pandas
