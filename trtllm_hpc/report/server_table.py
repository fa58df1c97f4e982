"""The server's own metrics as a table."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from trtllm_hpc.bench.server_metrics.series import describe
from trtllm_hpc.report.formatting import NONE, format_bytes


def server_table(values: Mapping[str, float]) -> Table:
    """What the engine and the host tell, and below it a row for each of Triton's models."""
    whole = Table.grid()
    models = [key for key in values if describe(key).of == "model"]
    others = [key for key in values if key not in models]
    if not any(describe(key).of == "engine" for key in others):
        whole.add_row(Text("This server tells nothing of its engine: its backend has no metrics."))
    if others:
        whole.add_row(_figures({key: values[key] for key in others}))
    if models:
        whole.add_row(_models({key: values[key] for key in models}))
    return whole


def _figures(values: Mapping[str, float]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("server")
    table.add_column("now", justify="right")
    for key, value in values.items():
        series = describe(key)
        of = f" ({series.model})" if series.model else ""
        table.add_row(Text(series.label + of), in_unit(value, series.unit))
    return table


def _models(values: Mapping[str, float]) -> Table:
    """A row a model and a column a figure, in the order in which they come."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("model")
    found = [(describe(key), value) for key, value in values.items()]
    columns = list(dict.fromkeys(series.key for series, _ in found))
    for key in columns:
        table.add_column(_HEADERS.get(key, key), justify="right")
    for model in dict.fromkeys(series.model for series, _ in found):
        cells = {series.key: in_unit(value, series.unit) for series, value in found if series.model == model}
        table.add_row(Text(model or ""), *(cells.get(key, NONE) for key in columns))
    return table


_HEADERS = {
    "finished_per_s": "finished",
    "failed_per_s": "failed",
    "queue_ms": "queue",
    "compute_ms": "compute",
    "duration_ms": "in all",
}


def in_unit(value: float, unit: str) -> str:
    """A figure as people read it, e.g. ``62 %``, ``1.5 GiB``, ``4.1 ms``, ``12``."""
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
