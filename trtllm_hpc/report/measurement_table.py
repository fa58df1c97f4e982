"""Measurements as text: one with its levels, latencies and remarks, or two side by side."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from trtllm_hpc.bench.analysis.compare import ComparedFigure, Comparison
from trtllm_hpc.bench.analysis.slo import BadSlo, parse_slo
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary
from trtllm_hpc.report.formatting import NONE, cut, plus_minus, quantity, share
from trtllm_hpc.report.headline import (
    ascending_levels,
    figure_of,
    headline_level,
    is_valid,
    level_labels,
    served,
)
from trtllm_hpc.report.tables import Table, as_text, print_table, terminal_width, wrap

_WIDTH = 100
_LATENCIES = {
    "ttft_ms": "TTFT (ms)",
    "tpot_ms": "TPOT (ms)",
    "itl_ms": "ITL (ms)",
    "latency_ms": "latency (ms)",
    "latency_from_send_ms": "from send (ms)",
    "client_lateness_ms": "client late (ms)",
}
_GOODPUT, _TOKENS = "goodput\n(1/s)", "tokens\n(1/s)"
_LEVEL_FIGURES = {
    "finished\n(1/s)": ("finished_rate_per_s", None),
    _GOODPUT: ("goodput_per_s", None),
    _TOKENS: ("output_tokens_per_s", None),
    "TTFT\np50": ("ttft_ms", "p50"),
    "TTFT\np99": ("ttft_ms", "p99"),
    "TPOT\np50": ("tpot_ms", "p50"),
    "latency\np50": ("latency_ms", "p50"),
    "latency\np99": ("latency_ms", "p99"),
}
_OPTIONAL = (_GOODPUT, "latency\np99", _TOKENS, "TTFT\np99", "TPOT\np50", "TTFT\np50", "latency\np50")
"""Columns that a narrow terminal leaves out, the last one first."""


def print_measurement(measurement: MeasurementSummary) -> None:
    """Print the tables with as many columns as fit the terminal."""
    sys.stdout.write(measurement_text(measurement, terminal_width() or _WIDTH))


def measurement_text(measurement: MeasurementSummary, width: int = _WIDTH) -> str:
    """Return the tables and remarks of a measurement in ``width`` columns, at least 60.

    Columns that do not fit are left out.
    """
    tables = [_levels(measurement), energy_table(measurement)]
    level = headline_level(measurement)
    if level is not None:
        tables += [_latencies(measurement, level), turns_table(measurement, level)]
    # Show the table of levels even if it is empty.
    texts = [as_text(table, width) for table in tables if table.rows or table is tables[0]]
    texts = [f"{wrap(title(measurement), width)}\n", *texts, wrap("\n".join(sentences(measurement)), width)]
    return "\n".join(texts) + "\n"


def _levels(measurement: MeasurementSummary) -> Table:
    known = {key for result in measurement.levels for key in result.metrics}
    figures = [
        header
        for header, (key, _) in _LEVEL_FIGURES.items()
        if key in known or (not known and header != _GOODPUT)
    ]
    fixed = ("level", "failed")
    right = ("failed", *figures)
    table = Table(*fixed, *figures, right=right, one_line=fixed, optional=_OPTIONAL)
    for label, result in ascending_levels(measurement):
        table.add_row(
            label if is_valid(result) else f"{label} !",
            f"{result.failed:,} of {result.measured:,}",
            *(_figure(result, *_LEVEL_FIGURES[header]) for header in figures),
        )
    return table


def _figure(result: LevelResult, key: str, statistic: str | None = None) -> str:
    figure = figure_of(result, key, statistic)
    return NONE if figure is None else quantity(figure.mean)


_ENERGY = {
    "J/output token": "energy_per_output_token_j",
    "J/request": "energy_per_request_j",
    "mean W": "power_mean_w",
}


def energy_table(measurement: MeasurementSummary) -> Table:
    """Return a table with a row for each level whose energy is known."""
    rows = [
        [label, *(_figure(result, key) for key in _ENERGY.values())]
        for label, result in ascending_levels(measurement)
        if "power_mean_w" in result.metrics
    ]
    return Table("energy at", *_ENERGY, right=_ENERGY, rows=rows)


def _latencies(measurement: MeasurementSummary, level: int) -> Table:
    result = measurement.levels[level]
    margin = ["± of p99"] * (len(result.passes) > 1)
    headers = ["mean", "p50", "p90", "p95", "p99", *margin, "max"]
    name = f"at {level_labels(measurement)[level]}"
    table = Table(name, *headers, right=headers, optional=("p95", "mean", "p90", *margin))
    for key, latency in _LATENCIES.items():
        if key not in result.metrics and result.metrics:
            continue  # without streaming there are no times of tokens
        p99 = figure_of(result, key, "p99")
        cells = {header: _figure(result, key, header) for header in headers}
        cells |= dict.fromkeys(margin, "" if p99 is None else plus_minus(p99))
        table.add_row(latency, *cells.values())
    return table


_PROMPT = ("prompt tokens", "cached share")
_OF_TURN = (
    *(("input_tokens", "p50"), ("cached_prompt_share", "real")),  # a float's attribute ``real`` is the float
    *((f"{name}_ms", statistic) for name in ("ttft", "latency") for statistic in ("p50", "p99")),
)


def turns_table(measurement: MeasurementSummary, level: int | None) -> Table:
    """Return a table with a row for each turn of a level's conversations, with times in milliseconds."""
    headers = ("requests", "failed", *_PROMPT, "TTFT p50", "p99", "latency p50", "p99")
    table = Table("turn", *headers, right=headers, optional=_PROMPT)
    for turn in () if level is None else measurement.levels[level].turns:
        figures = [
            quantity(getattr(turn.metrics[key], statistic)) if key in turn.metrics else NONE
            for key, statistic in _OF_TURN
        ]
        table.add_row(turn.turn, f"{turn.requests:,}", f"{turn.failed:,}", *figures)
    return table


def title(measurement: MeasurementSummary) -> str:
    """Return three lines: name and start, measured server, protocol."""
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(measurement.started_at))
    streaming = "streaming" if measurement.streaming else "not streaming"
    return (
        f"measurement {measurement.name}, started {started}\n"
        f"{', '.join(served(measurement))}\n"
        f"{measurement.protocol}, {streaming}; latencies in ms"
    )


def sentences(measurement: MeasurementSummary) -> Iterator[str]:
    """Yield lines about search, limits, tokens and errors, and the verdict last."""
    if measurement.energy:
        yield f"energy: {measurement.energy}"
    if (search := measurement.search) is not None:
        if search.max_rate_per_s is None:
            outcome = f"No rate that was tried holds {search.slo}."
        else:
            failing = search.first_failing_per_s
            above = "; no rate above it failed" if failing is None else f", and fails at {failing:g}"
            outcome = f"{search.slo} holds at {search.max_rate_per_s:g} requests/s{above}."
        yield f"search: {outcome} {search.stopped or ''}".rstrip()
    yield from _slo_sentences(measurement)
    for kind in ("input", "output"):
        if (tokens := measurement.tokens.get(kind)) is None:
            continue
        counted_by = ", ".join(measurement.tokens.get(f"{kind}_by") or ["no source"])
        hits = measurement.tokens.get("kv_hit_share_by_server") if kind == "input" else None
        reuse = "" if hits is None else f"; the server found {hits:.0%} of their KV blocks"
        yield f"{kind} tokens: {tokens:,}, counted by {counted_by}{reuse}"
    for words, count in sorted(measurement.errors.items(), key=lambda item: -item[1]):
        yield f"failed: {count:,} time{'s' if count != 1 else ''} {cut(words)}"
    if not all(map(is_valid, measurement.levels)):
        yield "!: the figures of this level are not valid"
    yield from (f"note: {warning}" for warning in measurement.verdict.warnings)
    yield from (f"not valid: {finding}" for finding in measurement.verdict.findings)
    if measurement.verdict.valid:
        yield "valid: the figures may be used"


_MAX_FAILED_SHARE = 0.01
"""Largest share of failed requests of a level that can meet an SLO."""


def _slo_sentences(measurement: MeasurementSummary) -> Iterator[str]:
    """Yield the levels at which the limits hold in every pass, and the violations at each other level."""
    slo = measurement.search.slo if measurement.search else measurement.settings.get("slo")
    try:
        limits = parse_slo(slo) if slo else None
    except BadSlo:  # another version wrote it; the figures are still readable
        return
    if limits is None:
        return
    holding, broken = list[str](), list[str]()
    for label, result in ascending_levels(measurement):
        failing = [one for one in result.passes if one.failed > _MAX_FAILED_SHARE * one.measured]
        violating = [one for one in result.passes if limits.violations(one.metrics)]
        missed = sum(one in failing or one in violating for one in result.passes)
        if not missed:
            holding.append(label)
            continue
        reasons = limits.violations(*(one.metrics for one in result.passes))
        if failing:
            failed = sum(one.failed for one in failing)
            reasons.append(f"{failed} of {result.measured} requests failed and so meet no limit.")
        passes = f", in {missed} of {len(result.passes)} passes" if len(result.passes) > 1 else ""
        broken.append(f"slo does not hold at {label}{passes}: {' '.join(reasons)}")
    if holding:
        failed = sum(level.failed for level in measurement.levels)
        limit = f" (for the requests that were answered; {failed} failed)" if failed else ""
        yield f"slo {slo} holds at {', '.join(holding)}{limit}"
    yield from broken


# Two measurements -----------------------------------------------------------------------------------

_INTERVAL = "95 % of B - A"
_NAMES = {"ttft_ms": "TTFT", "ttfa_ms": "TTFA", "tpot_ms": "TPOT", "itl_ms": "ITL"}
_NAMES |= {"finished_rate_per_s": "finished", "output_tokens_per_s": "output", "total_tokens_per_s": "total"}
"""Short names of metrics, so that a figure has one line in 80 columns."""


def print_comparison(comparison: Comparison) -> None:
    """Print the remarks and the table; a narrow terminal leaves out the interval."""
    print(wrap("\n".join(remarks(comparison)), terminal_width()))
    print_table(comparison_table(comparison))


def comparison_table(comparison: Comparison) -> Table:
    """Return a table with a row for each level and figure, with verdicts if the comparison is judged."""
    numbers = ("A", "B", "change", _INTERVAL)
    table = Table(
        *("figure", *numbers, "verdict"),
        right=numbers,
        one_line=("figure", _INTERVAL, "verdict"),
        optional=(_INTERVAL,),
    )
    level = None
    for row in comparison.rows:
        if row.level != level:
            level = row.level
            table.add_row((level, "bold"), *[""] * 5)
        name = f"{_NAMES.get(row.key, row.label)} {row.statistic or ''}".rstrip()
        interval = NONE
        if row.low is not None and row.high is not None:
            interval = f"{_in_unit(row, row.low)} to {_in_unit(row, row.high)}"
        table.add_row(
            f"  {name}" if row.unit == "share" else f"  {name} ({row.unit})",
            _in_unit(row, row.a),
            _in_unit(row, row.b),
            NONE if row.change is None else f"{row.change:+.1%}",
            interval,
            (verdict(row), "bold red" if row.regressed else "") if comparison.judged else NONE,
        )
    return table


def remarks(comparison: Comparison) -> list[str]:
    """Return lines with notes for readers of the table."""
    lines = [f"A: {comparison.a}", f"B: {comparison.b}"]
    for kind, sentences in (
        ("not valid", comparison.invalid),
        ("different workload", comparison.workload),
        ("different setting", comparison.settings),
        ("different environment", comparison.environment),
        ("note", comparison.notes),
    ):
        lines += [f"{kind}: {sentence}" for sentence in sentences]
    return lines


def verdict(row: ComparedFigure) -> str:
    """Return ``same``, ``better`` or ``worse``, with a remark if that may be chance."""
    if row.better is None or not row.beyond:
        return "same"
    direction = "better" if row.better else "worse"
    if row.significant is None:
        return f"{direction}, spread unknown"
    return direction if row.significant else f"{direction}, perhaps by chance"


def _in_unit(row: ComparedFigure, value: float) -> str:
    return share(value) if row.unit == "share" else quantity(value)
