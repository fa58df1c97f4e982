"""The table of upstream's ``benchmark_core_model.py``, by upstream's formulas.

The source is ``extract_print_stats`` in ``tools/utils/utils.py`` of tensorrtllm_backend v0.16.0, and
``check_performance`` in ``tools/inflight_batcher_llm/benchmark_core_model.py`` of the same release.
docs/metrics.md explains how these differ from the benchmark's own figures.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trtllm_hpc.bench.analysis.compare import Tolerance
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import Measurement
from trtllm_hpc.errors import InvalidMeasurement, RunNotFound

IN_FLIGHT = "Avg. InFlight requests"
"""Always 0 upstream: a column of the file, but not a real figure."""

FIELDS = (
    "Requests/Sec",
    "OP tokens/sec",
    "Avg. latency (ms)",
    "P99 latency (ms)",
    "P90 latency (ms)",
    "Avg. Input tokens per request",
    "Avg. Output tokens per request",
    IN_FLIGHT,
    "Total latency (ms)",
    "Total requests",
)
"""The header of ``--op-stats-csv``, and the keys of ``--check-perf-json``."""

_IN_TABLE = {
    "Avg. Input tokens per request": "Avg. IP tokens per request",
    "Avg. Output tokens per request": "Avg. OP tokens per request",
}
"""Upstream's names for them in its table."""


def upstream_passes(
    measurement: Measurement, records: Iterable[RequestRecord]
) -> list[tuple[str, dict[str, float]]]:
    """Return the name of each pass with upstream's fields for it.

    Raises InvalidMeasurement if a pass lacks what the fields need.
    """
    passes: dict[tuple[int, int], list[RequestRecord]] = {}
    for record in records:
        passes.setdefault((record.level, record.repeat), []).append(record)
    return [
        (f"{result.level.label}, pass {one.repeat + 1}", upstream_fields(passes.get((level, one.repeat), [])))
        for level, result in enumerate(measurement.levels)
        for one in result.passes
    ]


def upstream_fields(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Return upstream's fields for the measured and answered requests of one pass.

    Latency starts at the send; rates divide by the time from the first send to the last end; percentiles are
    nearest rank. Upstream stops at the first error; here failed requests are left out. Raises
    InvalidMeasurement if no request was answered, or tokens were not counted.
    """
    answered = [record for record in records if record.measured and record.ok]
    if not answered:
        raise InvalidMeasurement("No request was answered, so upstream's table has no figures.")
    inputs = _tokens([record.input_tokens for record in answered], "input")
    outputs = _tokens([record.output_tokens for record in answered], "output")
    latencies_ms = sorted((record.ended_s - record.sent_s) * 1e3 for record in answered)
    span_s = max(record.ended_s for record in answered) - min(record.sent_s for record in answered)
    count = len(answered)
    values = (
        count / span_s,
        outputs / span_s,
        math.fsum(latencies_ms) / count,
        _nearest_rank(latencies_ms, 0.99),
        _nearest_rank(latencies_ms, 0.90),
        inputs / count,
        outputs / count,
        0,
        span_s * 1e3,
        count,
    )
    return dict(zip(FIELDS, values, strict=True))


def _tokens(counts: Sequence[int | None], of: str) -> int:
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        raise InvalidMeasurement(
            f"Upstream's table needs the {of} tokens of every answer, but {len(counts) - len(known)} answers "
            "have no known number of them."
        )
    return sum(known)


def _nearest_rank(ordered: Sequence[float], share: float) -> float:
    return ordered[math.ceil(len(ordered) * share) - 1]


def format_table(fields: Mapping[str, float]) -> str:
    """Return upstream's table as text, without its constant for requests in flight."""
    rows = [(_IN_TABLE.get(name, name), f"{fields[name]:.2f}") for name in FIELDS if name != IN_FLIGHT]
    left = max(len(name) for name, _ in rows) + 2
    right = max(len(value) for _, value in [*rows, ("", "Value")]) + 2
    line = f"+{'-' * left}+{'-' * right}+"
    body = [f"|{name:^{left}}|{value:^{right}}|" for name, value in rows]
    return "\n".join([line, f"|{'Stat':^{left}}|{'Value':^{right}}|", line, *body, line])


def append_csv(path: Path, fields: Mapping[str, float]) -> None:
    """Append a row to a file as ``--op-stats-csv`` does; a new or empty file gets a header first."""
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=FIELDS)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow({name: fields[name] for name in FIELDS})


def check_reference(fields: Mapping[str, float], path: Path, key: str, tolerance: Tolerance) -> list[str]:
    """Compare with an entry of a file for ``--check-perf-json``; return a sentence for each difference.

    As upstream does, count differences in both directions, better and worse. Raises RunNotFound if the file
    cannot be read, or has no such entry.
    """
    entry = _entry(path, key)
    unknown = sorted(entry.keys() - fields.keys())
    if unknown:
        raise RunNotFound(
            f"Entry {key!r} of {path} has the unknown field {unknown[0]!r}.\n    choices: {', '.join(FIELDS)}"
        )
    return [
        f"{name} is {fields[name]:.2f}, but {expected:g} in {path} ({key}): more than {tolerance} off."
        for name, expected in entry.items()
        if tolerance.exceeded(expected, fields[name])
    ]


def _entry(path: Path, key: str) -> dict[str, float]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunNotFound(f"{path} holds no reference figures: {error}") from None
    entry = entries.get(key) if isinstance(entries, dict) else None
    if not isinstance(entry, dict) or not entry:
        known = ", ".join(map(str, entries)) if isinstance(entries, dict) else ""
        raise RunNotFound(f"{path} has no reference figures for {key!r}.\n    choices: {known or 'none'}")
    if not all(isinstance(value, int | float) for value in entry.values()):
        raise RunNotFound(f"Entry {key!r} of {path} has a value that is not a number.")
    return entry
