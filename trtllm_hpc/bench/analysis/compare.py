"""Compare two measurements: differences, and whether they are statistically significant."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from statistics import fmean
from typing import Any, ClassVar

from trtllm_hpc.bench.analysis.intervals import value_of, welch_test
from trtllm_hpc.bench.metrics import METRICS, PerRequest
from trtllm_hpc.bench.results import LevelResult, MeasurementSummary
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, TrtllmHpcError

STATISTICS = ("mean", "p50", "p99")
"""Compared statistics of a distribution; more rows would cause more false alarms."""
_FROM_SEND = {"ttft_from_send_ms", "latency_from_send_ms"}
"""Metrics that are not compared, because the same metrics from the schedule include them."""
TOLERANCE = 0.05
"""Default tolerance, as a share of the first measurement's figure."""
SIGNIFICANCE = 0.05
"""A difference is significant if its adjusted p-value is below this."""
_MAX_ROWS_NAMED = 5
_WORKLOAD = ("workload.*", "max_tokens", "exact_output", "arrival", "burstiness", "extra_body.*", "headers.*")
"""Settings that determine the requests and their times."""
_REQUESTS = ("workload.*", "max_tokens")
"""Settings of ``_WORKLOAD`` that do not matter if both files of requests are equal to the byte."""
_IGNORED = (
    # the location of the tokenizer
    "workload.tokenizer",
    # the certainty of the figures
    "repeats",
    "processes",
    "max_error_share",
    "max_failures_in_a_row",
    "max_late_share",
    "min_requests",
    "min_window_seconds",
    "find_max",
    # levels of load, which are compared one by one
    "rate_per_second",
    "rates_per_second*",
    "concurrency",
    "concurrencies*",
)
_ENVIRONMENT = (
    *("server.cluster", "server.container", "server.image", "server.world_size"),
    *("server.ranks.*.gpu_models*", "server.ranks.*.mpi_library"),
    *("engine.backend", "engine.model", "engine.tensorrt_llm"),
    *("engine.key", "engine.layout", "engine.versions.*"),
    *("client.same_host_as_server", "client.cpu", "client.cpus", "client.python", "client.packages.*"),
)
"""Parts of the provenance that may explain a difference; others, such as job IDs, always differ."""
_MAX_LENGTH = 60


class Worse(TrtllmHpcError, exit_code=ExitCode.MEASUREMENT):
    """The second measurement is worse than the first by more than the tolerance."""


class DifferentWorkloads(TrtllmHpcError, exit_code=ExitCode.USAGE):
    """The measurements have different workloads, so they cannot be judged."""


@dataclass(frozen=True)
class Side:
    """One of the two measurements."""

    name: str
    """The user's name of the measurement."""
    measurement: MeasurementSummary

    @property
    def levels(self) -> dict[str, LevelResult]:
        """The levels by their labels."""
        return {result.level.label: result for result in self.measurement.levels}


@dataclass(frozen=True)
class ComparedFigure:
    """One figure at one level of load, in both measurements."""

    level: str
    """Level of load, e.g. ``8/s``."""
    key: str
    """Key of the metric, e.g. ``ttft_ms``."""
    label: str
    """Name of the metric in tables."""
    unit: str
    statistic: str | None
    """``mean``, ``p50``, ``p99``...; ``None`` for a single number."""
    a: float
    """Mean over the passes of the first measurement."""
    b: float
    """Mean over the passes of the second measurement."""
    better: bool | None
    """Whether b is better than a; ``None`` if they are equal."""
    beyond: bool
    """Whether the difference exceeds the tolerance."""
    low: float | None = None
    """Lower end of the 95 % confidence interval of b - a; ``None`` if the spread is unknown."""
    high: float | None = None
    """Upper end of the interval."""
    p_value: float | None = None
    """p-value of the difference, adjusted for the number of rows; ``None`` if the spread is unknown."""

    PRINTED: ClassVar[tuple[str, ...]] = ("change", "significant", "regressed")
    """Properties that JSON contains, too."""

    @property
    def change(self) -> float | None:
        """The relative change from a to b; ``None`` if a is 0."""
        return self.b / self.a - 1 if self.a else None

    @property
    def significant(self) -> bool | None:
        """Whether the difference is statistically significant; ``None`` if the spread is unknown."""
        return None if self.p_value is None else self.p_value < SIGNIFICANCE

    @property
    def regressed(self) -> bool:
        """Whether b is significantly worse, by more than the tolerance."""
        return self.beyond and self.better is False and self.significant is True

    @property
    def undecided(self) -> bool:
        """Whether the difference exceeds the tolerance but may be chance, because the spread is unknown."""
        return self.beyond and self.significant is None

    def __str__(self) -> str:
        name = self.label if self.statistic is None else f"{self.label} ({self.statistic})"
        change = "" if self.change is None else f", {self.change:+.1%}"
        return f"{name} at {self.level}: {self.a:.4g} to {self.b:.4g} {self.unit}{change}"


@dataclass(frozen=True)
class Comparison:
    """Two measurements side by side."""

    a: str
    """The user's name of the first measurement."""
    b: str
    """The user's name of the second measurement."""
    rows: list[ComparedFigure]
    """All figures at all levels of load that both measurements have."""
    workload: list[str]
    """Differences between the workloads, one per line."""
    judged: bool
    """Whether b is judged as better or worse: the workloads are the same, or the user allows differences."""
    settings: list[str]
    """Differences between other settings that may influence the figures."""
    environment: list[str]
    """Other differences, such as the engine: often the subject of the comparison."""
    notes: list[str]
    """Notes for readers of the rows."""
    invalid: list[str]
    """Reasons why figures of either measurement are invalid."""

    PRINTED: ClassVar[tuple[str, ...]] = ("worse",)
    """Properties that JSON contains, too."""

    @property
    def regressed(self) -> list[ComparedFigure]:
        """Rows in which b is worse, largest change first."""
        return sorted(
            (row for row in self.rows if row.regressed),
            key=lambda row: float("inf") if row.change is None else abs(row.change),
            reverse=True,
        )

    @property
    def worse(self) -> bool | None:
        """Whether b is worse than a in any figure; ``None`` if it is not judged."""
        return bool(self.regressed) if self.judged else None


def compare(
    a: Side, b: Side, tolerance: float = TOLERANCE, *, allow_different_workload: bool = False
) -> Comparison:
    """Compare every figure at the levels of load that both measurements have.

    ``tolerance`` is the allowed difference, as a share of the first figure.

    Each pass is one observation of Welch's t-test. The spread of a single pass is unknown, so its figures are
    shown but never count as a regression. P-values are adjusted over all rows, so that on average at most 5 %
    of the significant differences are false (Benjamini and Hochberg 1995). Raises InvalidMeasurement if the
    measurements have no common level of load.
    """
    levels_a, levels_b = a.levels, b.levels
    common = [label for label in levels_a if label in levels_b]
    if not common:
        raise InvalidMeasurement(
            f"{a.name} and {b.name} have no level of load in common: {', '.join(levels_a) or 'none'} and "
            f"{', '.join(levels_b) or 'none'}.",
            hint=f"trtllm-hpc bench {b.name.partition(':')[0]}, with the rates or concurrencies of {a.name}",
        )
    of_both = a.measurement, b.measurement
    workload = workload_diff(*of_both)
    rows = [row for label in common for row in _rows(levels_a[label], levels_b[label], tolerance)]
    # Rows with equal figures are not tests, so they do not count in the adjustment.
    tested = {at: row.p_value for at, row in enumerate(rows) if None not in (row.p_value, row.better)}
    if tested:
        from scipy import stats

        adjusted = stats.false_discovery_control(list(tested.values()))
        for place, p_value in zip(tested, adjusted, strict=True):
            rows[place] = replace(rows[place], p_value=float(p_value))
    return Comparison(
        a=a.name,
        b=b.name,
        rows=rows,
        workload=workload,
        judged=allow_different_workload or not workload,
        settings=_diff(*map(_settings, of_both), only=("*",), ignored=(*_IGNORED, *_WORKLOAD)),
        environment=_diff(*(_flat(side.provenance) for side in of_both), only=_ENVIRONMENT),
        notes=list(_notes(a, b, common, rows, tolerance)),
        invalid=[
            f"The figures of {side.name} are invalid: {side.measurement.verdict.reasons}"
            for side in (a, b)
            if not side.measurement.verdict.valid
        ],
    )


def raise_if_worse(comparison: Comparison, tolerance: float = TOLERANCE) -> None:
    """Raise if the second measurement is worse than the first, or if it cannot be judged.

    Raises:
        InvalidMeasurement: the figures of either measurement are invalid.
        DifferentWorkloads: the workloads differ, and the user does not allow that.
        Worse: with the figures that are worse, and by how much.
    """
    if comparison.invalid:
        raise InvalidMeasurement(" ".join(comparison.invalid))
    if not comparison.judged:
        raise DifferentWorkloads(
            f"{comparison.a} and {comparison.b} have different workloads, so neither can be called worse: "
            f"{'; '.join(comparison.workload)}.",
            hint="measure both with the same workload, or add --allow-different-workload",
        )
    worse = comparison.regressed
    if worse:
        more = f"; and {len(worse) - _MAX_ROWS_NAMED} more" if len(worse) > _MAX_ROWS_NAMED else ""
        raise Worse(
            f"{comparison.b} is worse than {comparison.a} by more than {tolerance * 100:.4g} % in "
            f"{len(worse)} of {len(comparison.rows)} figures: "
            f"{'; '.join(map(str, worse[:_MAX_ROWS_NAMED]))}{more}."
        )


def _rows(a: LevelResult, b: LevelResult, tolerance: float) -> Iterator[ComparedFigure]:
    """Yield every figure of a level that all passes of both measurements have."""
    passes = [*a.passes, *b.passes]
    for metric in METRICS:
        is_of_all = all(metric.key in result.metrics for result in passes)
        if metric.better is None or metric.key in _FROM_SEND or not is_of_all:
            continue
        for statistic in STATISTICS if isinstance(metric, PerRequest) else (None,):
            of_a, of_b = (
                [value_of(result.metrics[metric.key], statistic) for result in level.passes]
                for level in (a, b)
            )
            before, after = fmean(of_a), fmean(of_b)
            row = ComparedFigure(
                level=a.level.label,
                key=metric.key,
                label=metric.label,
                unit=metric.unit,
                statistic=statistic,
                a=before,
                b=after,
                better=None if before == after else (after < before) == (metric.better == "lower"),
                beyond=abs(after - before) > tolerance * abs(before),
            )
            difference = welch_test(of_a, of_b)
            yield row if difference is None else replace(row, **difference._asdict())


def _notes(
    a: Side, b: Side, common: Sequence[str], rows: Sequence[ComparedFigure], tolerance: float
) -> Iterator[str]:
    first, second = a.measurement.search, b.measurement.search
    if first is not None and second is not None:
        rates = [
            "none" if search.max_rate_per_s is None else f"{search.max_rate_per_s:g}/s"
            for search in (first, second)
        ]
        yield f"Highest rate within {first.slo}: {rates[0]}; within {second.slo}: {rates[1]}."
    for side in (a, b):
        single = [label for label in common if len(side.levels[label].passes) == 1]
        if single:
            where = "" if len(single) == len(common) else f" at {', '.join(single)}"
            yield f"{side.name}{where} has one pass, so the spread of its figures is unknown."
        unpaired = [label for label in side.levels if label not in common]
        if unpaired:
            yield f"Only {side.name} has the levels {', '.join(unpaired)}, which are not compared."
    undecided = [row for row in rows if row.undecided]
    if undecided:
        worse = sum(row.better is False for row in undecided)
        yield (
            f"{len(undecided)} of {len(rows)} figures differ by more than {tolerance * 100:.4g} %, "
            f"{worse} of them for the worse, but they decide nothing, because their spread is unknown. "
            "Measure both with --repeats 5."
        )


# Differences other than in figures ---------------------------------------------------------------------


def workload_diff(a: MeasurementSummary, b: MeasurementSummary) -> list[str]:
    """Return the differences between the workloads, one per line; empty if the figures are comparable."""
    digests = [side.provenance.get("workload", {}).get("sha256") for side in (a, b)]
    same_requests = digests[0] is not None and digests[0] == digests[1]
    ignored = (*_IGNORED, *_REQUESTS) if same_requests else _IGNORED
    lines = _diff(_settings(a), _settings(b), only=_WORKLOAD, ignored=ignored)
    # Equal settings with a fixed number of requests must give equal requests.
    has_fixed_requests = a.settings.get("duration_seconds") is None and not a.settings.get("find_max")
    if a.settings == b.settings and has_fixed_requests and None not in digests and not same_requests:
        lines.append("the requests differ, although the settings are the same")
    return lines


def _settings(measurement: MeasurementSummary) -> dict[str, str]:
    served = {
        "model": measurement.model,
        "protocol": measurement.protocol,
        "streaming": measurement.streaming,
        # A tokenizer's and the server's count may differ for the same answers.
        "output_tokens_counted_by": measurement.tokens.get("output_by"),
    }
    return _flat({**measurement.settings, **served})


def _diff(
    a: dict[str, str], b: dict[str, str], *, only: tuple[str, ...], ignored: tuple[str, ...] = ()
) -> list[str]:
    """Return a line for each name that matches ``only`` and whose values differ."""

    def matches(name: str, patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    lines = []
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name) and matches(name, only) and not matches(name, ignored):
            texts = (side.get(name, "none") for side in (a, b))
            short = (text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 3]}..." for text in texts)
            lines.append(f"{name}: {' against '.join(short)}")
    return lines


def _flat(plain: Any, name: str = "") -> dict[str, str]:
    """Return the values in nested mappings and lists as JSON, by dotted name."""
    if isinstance(plain, dict):
        items = [(str(key), value) for key, value in plain.items()]
    elif isinstance(plain, list) and any(isinstance(value, dict | list) for value in plain):
        items = [(str(place), value) for place, value in enumerate(plain)]
    else:
        return {name: json.dumps(plain, ensure_ascii=False)}
    flat: dict[str, str] = {}
    for key, value in items:
        flat |= _flat(value, f"{name}.{key}" if name else key)
    return flat
