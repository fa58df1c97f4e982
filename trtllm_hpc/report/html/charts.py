"""The charts of a measurement's report, and the files of the run folder that the report needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from trtllm_hpc.bench.metrics import ITL, LATENCY, TPOT, TTFT, PerRequest
from trtllm_hpc.bench.records import RequestRecord, read_records
from trtllm_hpc.bench.results import MeasurementSummary, read_measurement
from trtllm_hpc.bench.server_metrics import ServerSample, read_samples
from trtllm_hpc.evaluation.scores import EvaluationSummary, read_evaluation
from trtllm_hpc.paths import COMPANION_MEASUREMENT, RunPaths
from trtllm_hpc.report.headline import (
    ascending_levels,
    figure_of,
    is_valid,
    level_labels,
    load_of,
)
from trtllm_hpc.report.html.chart import (
    ASIDE,
    BAND,
    CATEGORIES,
    FAILED,
    Chart,
    ChartSection,
    NoChart,
    Row,
    Spec,
    axis,
    layer,
    layers_over,
    number,
    word,
)

_MOST_LEVELS = 8
"""Most curves that can be distinguished in one chart."""
_MOST_POINTS = 120
"""Most points of a curve; a longer curve is thinned evenly by share."""
_MOST_DOTS = 1500
"""Most requests in the chart of latencies."""
_MOST_SAMPLES = 400
"""Most points of a line; of more samples, only the largest of each interval is drawn."""
MOST = {"levels": _MOST_LEVELS, "points": _MOST_POINTS, "dots": _MOST_DOTS, "samples": _MOST_SAMPLES}
"""Sentence on the page about these limits."""


@dataclass(frozen=True)
class ReportData:
    """A measurement with all its records."""

    run: str
    """ID of the run."""
    measurement: MeasurementSummary
    records: list[RequestRecord]
    samples: list[ServerSample]
    evaluation: EvaluationSummary | None = None
    """Evaluation of the companion, only in the report of the companion's measurement."""


def read_report_data(paths: RunPaths, name: str) -> ReportData:
    """Read a measurement and its records. Records of a level without a summary are left out.

    Raises RunNotFound if the measurement is missing or of another version.
    """
    files = paths.measurement(name)
    measurement = read_measurement(files.summary)
    records = read_records(files.requests) if files.requests.exists() else []
    known = [record for record in records if record.level < len(measurement.levels)]
    return ReportData(
        paths.run_id,
        measurement,
        known,
        read_samples(files.samples),
        read_evaluation(paths.evaluation()) if name == COMPANION_MEASUREMENT else None,
    )


def sections_of(data: ReportData) -> Iterator[ChartSection]:
    """Yield the sections of the page in order."""
    curves: list[Chart | NoChart] = [_curve(data, *kind) for kind in _LATENCIES]
    if len(data.measurement.levels) < 2:
        reason = "One level of load was measured; a curve needs two or more."
        curves = [NoChart("Latency against throughput", reason)]
    yield ChartSection("curve", "Throughput and latency", curves)
    spreads = [_distribution(data, *kind) for kind in _DISTRIBUTED]
    yield ChartSection("distributions", "Distributions", spreads)
    yield ChartSection("timeline", "Timeline of requests", [_timeline(data)], wide=True)
    yield ChartSection("server", "Server metrics", list(_server(data)), wide=True)


def _steps(*tooltip: Spec) -> list[Spec]:
    """Return a line in steps, with an invisible mark for the tooltip of each point."""
    line = layer({"type": "line", "interpolate": "step-after", "clip": True})
    return [line, layer({"type": "point", "opacity": 0, "size": 80}, tooltip=list(tooltip))]


def _evenly(count: int, most: int) -> list[int]:
    """Return the indices of all of ``count`` items, or of both ends and evenly spaced items between."""
    kept = min(count, most)
    return [round(place * (count - 1) / max(kept - 1, 1)) for place in range(kept)]


def _no_figure(data: ReportData, key: str) -> str:
    if not data.measurement.streaming and key in ("ttft_ms", "tpot_ms", "itl_ms"):
        return "Answers were not streamed, so the times of their tokens are unknown."
    return "No successful request has this figure."


# Latency against throughput ---------------------------------------------------------------

_LATENCIES = (("latency_ms", "End-to-end latency"), ("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"))
_STATISTICS = ["p50", "p90", "p99"]


def _curve(data: ReportData, key: str, name: str) -> Chart | NoChart:
    title = f"{name} against throughput"
    by, x_title = "output_tokens_per_s", "output tokens/s"
    ascending = ascending_levels(data.measurement)
    if not all(by in result.metrics for _, result in ascending):
        by, x_title = "finished_rate_per_s", "requests finished/s"
    rows: list[Row] = [
        {
            **{"load": load_of(result), "x": throughput.mean, "statistic": statistic, "ms": latency.mean},
            **{"level": label, "valid": "yes" if is_valid(result) else "no"},
        }
        for label, result in ascending
        for statistic in _STATISTICS
        if (latency := figure_of(result, key, statistic)) and (throughput := figure_of(result, by))
    ]
    if not rows:
        return NoChart(title, _no_figure(data, key))
    tooltip = [*map(word, ("level", "statistic", "valid"))]
    tooltip += [number("ms", title="latency", format=".4~r"), number("x", title=x_title, format=".4~r")]
    text = {"type": "text", "align": "right", "dx": -6, "dy": -8}
    shared = layers_over(
        "rows",
        [
            layer({"type": "line"}, order=number("load")),
            layer({"type": "point", "size": 50, "opacity": 1}, tooltip=tooltip),
            layer(text, "datum.statistic === 'p99'", text=word("level")),
        ],
        x=number("x", title=x_title, scale={"zero": True, "nice": True}),
        y=number("ms", **axis("ms", [row["ms"] for row in rows])),
        color=word("statistic", scale={"domain": _STATISTICS}),
    )
    return Chart(f"curve-{key[:-3]}", title, [shared], {"rows": rows}, 260)


# Distributions of the measured requests ---------------------------------------------------

_SHARES = [0, 0.25, 0.5, 0.75, 0.9, 0.99]
_DISTRIBUTED: tuple[tuple[PerRequest, str], ...] = (
    (TTFT, "Time to first token (TTFT)"),
    (TPOT, "Time per output token (TPOT), mean of each request"),
    (ITL, "Inter-token latency (ITL), all gaps pooled"),
    (LATENCY, "End-to-end latency, from schedule"),
)


def _distribution(data: ReportData, metric: PerRequest, title: str) -> Chart | NoChart:
    labels, ascending = level_labels(data.measurement), ascending_levels(data.measurement)
    levels = _evenly(len(ascending), _MOST_LEVELS)
    curves: dict[str, list[float]] = {ascending[place][0]: [] for place in levels}
    for record in data.records:
        if record.measured and record.ok and (label := labels[record.level]) in curves:
            curves[label] += metric.values(record)
    rows: list[Row] = [
        {"level": label, "ms": ordered[place], "share": (place + 1) / len(ordered)}
        for label, ordered in ((label, sorted(values)) for label, values in curves.items())
        for place in _evenly(len(ordered), _MOST_POINTS)
    ]
    if not rows:
        return NoChart(title, _no_figure(data, metric.key))
    marks = {"format": ".0%", "values": _SHARES, "tickCount": len(_SHARES), "labelOverlap": False}
    legend: Spec = {} if len(curves) > 1 else {"legend": None}
    shared = layers_over(
        "rows",
        _steps(word("level"), number("share", format=".1%"), number("ms", format=".4~r")),
        x=number("ms", **axis("ms", [row["ms"] for row in rows], zero=False)),
        y=number("share", title=None, axis=marks, scale={"domain": [0, 1]}),
        color=word("level", type="ordinal", scale={"domain": [*curves]}, **legend),
    )
    return Chart(f"spread-{metric.key[:-3]}", title, [shared], {"rows": rows}, 240)


# Over time --------------------------------------------------------------------------------

_NOT_MEASURED = "answered, not measured"
_STATES = {"answered": CATEGORIES[0], _NOT_MEASURED: ASIDE, "failed": FAILED}

_SHADED = layers_over(
    "bands",
    [layer({"type": "rect", "style": BAND}, tooltip=word("what", title="shaded"))],
    x=number("begin", title="seconds"),
    x2={"field": "end"},
)


def _bands(data: ReportData) -> list[Row]:
    """Return the time spans outside the measured windows."""
    rows = []
    for label, result in zip(level_labels(data.measurement), data.measurement.levels, strict=True):
        for one in result.passes:
            window = one.window
            intervals = (("warm-up", one.started_s, window.start_s), ("drain", window.end_s, one.ended_s))
            rows += [
                {"begin": begin, "end": end, "what": f"{what} of {label}, pass {one.repeat + 1}"}
                for what, begin, end in intervals
                if end > begin
            ]
    return rows


def _seconds(field: str, end_s: float) -> Spec:
    """Return the time axis that all charts share."""
    return number(field, title="seconds", scale={"domain": [0, end_s], "nice": False})


def _end_s(data: ReportData) -> float:
    """Return the end of the last pass, in seconds since the measurement began."""
    ends = [one.ended_s for result in data.measurement.levels for one in result.passes]
    return max([*ends, *(record.ended_s for record in data.records)], default=1.0)


def _timeline(data: ReportData) -> Chart | NoChart:
    title = "Latency of each request"
    labels = level_labels(data.measurement)
    if not data.records:
        return NoChart(title, "No request was recorded.")
    # The failed and the slowest stand last and so on top; of the others an even choice is drawn.
    in_order = sorted(data.records, key=lambda record: (not record.ok, LATENCY.values(record)))
    half = max(len(in_order) - _MOST_DOTS // 2, 0)
    chosen = [in_order[place] for place in _evenly(half, _MOST_DOTS - _MOST_DOTS // 2)] + in_order[half:]
    rows: list[Row] = [
        {
            **{"due": record.scheduled_s, "ms": LATENCY.values(record)[0], "request": record.index},
            "state": "failed" if not record.ok else "answered" if record.measured else _NOT_MEASURED,
            **{"level": labels[record.level], "status": record.status},
            "error": (record.error or "")[:120],
        }
        for record in chosen
    ]
    states = {state: color for state, color in _STATES.items() if any(row["state"] == state for row in rows)}
    tooltip = [*map(word, ("request", "level", "status", "error")), number("ms", format=".4~r")]
    dots = layers_over(
        "rows",
        [layer({"type": "point", "size": 22, "opacity": 0.75}, tooltip=tooltip)],
        x=_seconds("due", _end_s(data)),
        y=number("ms", **axis("latency (ms)", [row["ms"] for row in rows])),
        color=word("state", scale={"domain": [*states], "range": [*states.values()]}),
    )
    datasets = {"rows": rows, "bands": _bands(data)}
    return Chart("time-latency", title, [_SHADED, dots], datasets, 240)


# The server's own metrics -----------------------------------------------------------------


def _server(data: ReportData) -> Iterator[Chart | NoChart]:
    changes: Counter[float] = Counter()
    for record in data.records:
        changes[record.sent_s] += 1
        changes[record.ended_s] -= 1
    moments = sorted(changes)
    in_flight: list[Row] = [
        {"time": moment, "value": float(count), "line": "client: outstanding"}
        for moment, count in zip(moments, accumulate(map(changes.__getitem__, moments)), strict=True)
    ]
    in_flight += _sampled(data.samples, "requests_active", "server: active")
    in_flight += _sampled(data.samples, "requests_waiting", "server: waiting")
    yield _lines(data, "server-in-flight", "Requests in flight", "requests", in_flight)
    cache = _sampled(data.samples, "kv_used_share", "KV cache in use", factor=100.0)
    yield _lines(data, "server-kv", "KV cache in use", "% of blocks", cache)
    queue = _sampled(data.samples, "queue_ms", "")
    yield _lines(data, "server-queue", "Time in the server's queue", "ms", queue)


def _sampled(samples: Sequence[ServerSample], key: str, label: str, factor: float = 1.0) -> list[Row]:
    """Return a chart of one series of the samples, with a line for each model (``queue_ms[ensemble]``)."""
    return [
        {"time": sample.time_s, "value": factor * value, "line": f"{label} {model.strip('[]')}".strip()}
        for sample in samples
        for name, value in sample.values.items()
        for found, bracket, model in [name.partition("[")]
        if found == key
    ]


def _lines(data: ReportData, key: str, title: str, unit: str, rows: list[Row]) -> Chart | NoChart:
    if not rows:
        return NoChart(title, "The server has no such metric.")
    # Sampling goes on a little longer than the load; later points would compress the chart.
    end = _end_s(data)
    by_line: dict[str, list[Row]] = {}
    for row in rows:
        if 0 <= row["time"] <= end:
            by_line.setdefault(row["line"], []).append(row)
    kept: list[Row] = []
    for line in by_line.values():
        step = -(-len(line) // _MOST_SAMPLES)
        starts = range(0, len(line), step)
        kept += [max(line[start : start + step], key=lambda row: row["value"]) for start in starts]
    if not kept:
        return NoChart(title, "No sample was taken while the load ran.")
    # Model names go into the domain, which is data; a sort order would become an expression.
    legend = {"columns": 2} if len(by_line) > 1 else None
    shared = layers_over(
        "rows",
        _steps(word("line"), number("time", title="s"), number("value", format=".4~r")),
        x=_seconds("time", end),
        y=number("value", title=unit, scale={"zero": True}),
        color=word("line", scale={"domain": [*by_line]}, legend=legend),
    )
    datasets = {"rows": kept, "bands": _bands(data)}
    return Chart(key, title, [_SHADED, shared], datasets, 150)
