"""The server's own metrics as a table."""

from __future__ import annotations

from collections.abc import Mapping

from trtllm_hpc.bench.server_metrics.series import Series, describe
from trtllm_hpc.report.formatting import NONE, format_bytes
from trtllm_hpc.report.tables import Table, as_text


def server_text(values: Mapping[str, float]) -> str:
    """Return the figures of the engine and the host, and below them a row for each of Triton's models."""
    series = {key: describe(key) for key in values}
    others = [key for key in values if series[key].of != "model"]
    parts = []
    if not any(series[key].of == "engine" for key in others):
        parts.append("This server shows nothing of its engine: its backend has no metrics.\n")
    if others:
        table = Table("server", "now", right=("now",))
        for key in others:
            model = f" ({series[key].model})" if series[key].model else ""
            table.add_row(series[key].label + model, in_unit(values[key], series[key].unit))
        parts.append(as_text(table))
    if len(others) < len(values):
        parts.append(as_text(_models({series[key]: values[key] for key in values if key not in others})))
    return "\n".join(parts)


def _models(values: Mapping[Series, float]) -> Table:
    """Return a table with a row for each model and a column for each figure, in the order of ``values``."""
    columns = {series.key: _HEADERS.get(series.key, series.key) for series in values}
    table = Table("model", *columns.values(), right=(*columns.values(),))
    for model in dict.fromkeys(series.model for series in values):
        cells = {
            series.key: in_unit(value, series.unit)
            for series, value in values.items()
            if series.model == model
        }
        table.add_row(model or "", *(cells.get(key, NONE) for key in columns))
    return table


_HEADERS = {
    "finished_per_s": "finished",
    "failed_per_s": "failed",
    "queue_ms": "queue",
    "compute_ms": "compute",
    "duration_ms": "in all",
}


def in_unit(value: float, unit: str) -> str:
    """Return a figure as people read it, e.g. ``62 %``, ``1.5 GiB``, ``4.1 ms``, ``12``."""
    if unit == "share":
        return f"{value:.0%}".replace("%", " %")
    if unit == "bytes":
        return format_bytes(value)
    if unit == "ms":
        return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"
    if unit == "1/s":
        return f"{value:.1f}/s"
    number = f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    return f"{number} {unit}" if unit in ("tokens", "tokens/s", "W") else number
