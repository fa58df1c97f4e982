"""Compare two measurements: what changed, and whether by more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from trtllm_hpc.bench.analysis import bootstrap
from trtllm_hpc.bench.analysis.diff import environment_diff, settings_diff, workload_diff
from trtllm_hpc.bench.analysis.slo import parse_slo
from trtllm_hpc.bench.analysis.statistics import Estimate, mean_of_passes, value_of, welch_test
from trtllm_hpc.bench.metrics import METRICS, Metric, NoValue, PerRequest, Sample
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.results import LevelResult, Measurement
from trtllm_hpc.errors import ExitCode, InvalidMeasurement, TrtllmHpcError

STATISTICS = ("mean", "p50", "p99")
"""The statistics of a distribution that are compared; more rows would mean more false alarms."""
_FROM_SEND = {"ttft_from_send_ms", "latency_from_send_ms"}
"""Not compared: the same metrics from the schedule include what these show."""
SIGNIFICANCE = 0.05
"""A difference is significant if its adjusted p-value is below this."""
_MAX_ROWS_NAMED = 5


class Worse(TrtllmHpcError):
    """The second measurement is worse than the first, beyond the tolerance."""

    exit_code = ExitCode.MEASUREMENT


class DifferentWorkloads(TrtllmHpcError):
    """The two measurements had different workloads, so neither can be called worse."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True)
class Tolerance:
    """How far two figures may differ: a share of the first plus a number, as in ``numpy.isclose``.

    Upstream's ``--check-perf-rtol`` and ``--check-perf-atol`` are these two.
    """

    relative: float = 0.05
    absolute: float = 0.0
    """In the unit of each figure. Upstream's 50 hides a latency that rises from 10 to 60 ms."""

    def __str__(self) -> str:
        relative = f"{self.relative * 100:.4g} %"
        return f"{self.absolute:g} plus {relative}" if self.absolute else relative

    def exceeded(self, before: float, after: float) -> bool:
        """Return whether ``after`` differs from ``before`` by more than the tolerance."""
        return abs(after - before) > self.absolute + self.relative * abs(before)


UPSTREAM_TOLERANCE = Tolerance(relative=0.05, absolute=50.0)
"""The defaults of ``benchmark_core_model.py``."""


@dataclass(frozen=True)
class Side:
    """One of the two measurements. Without records, the spread of a single pass is unknown."""

    name: str
    """As the user named it."""
    measurement: Measurement
    records: Sequence[RequestRecord] = ()


@dataclass(frozen=True)
class Row:
    """One figure at one level of load, in both measurements."""

    level: str
    key: str
    label: str
    unit: str
    statistic: str | None
    """``None`` for a single number."""
    a: float
    b: float
    better: bool | None
    """Whether b is better than a; ``None`` if they are equal."""
    beyond: bool
    """Whether the difference exceeds the tolerance."""
    low: float | None = None
    """The 95 % confidence interval of b - a begins here and ends at ``high``; ``None`` if the spread is
    unknown."""
    high: float | None = None
    p_value: float | None = None
    """Adjusted for the number of rows."""

    @property
    def change(self) -> float | None:
        """The relative change from a to b; ``None`` if a is 0."""
        return self.b / self.a - 1 if self.a else None

    @property
    def significant(self) -> bool | None:
        """Whether the difference is more than chance; ``None`` if the spread is unknown."""
        return None if self.p_value is None else self.p_value < SIGNIFICANCE

    @property
    def regressed(self) -> bool:
        """Whether b is worse beyond the tolerance, and significantly so."""
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
    b: str
    rows: list[Row]
    workload: list[str]
    """Differences between the workloads, a line each."""
    judged: bool
    """Whether b can be called better or worse: the workloads are the same, or the user allows others."""
    settings: list[str]
    """Other settings that differ and may influence the figures."""
    environment: list[str]
    """What else differed, such as the engine: often what the comparison is about."""
    notes: list[str]
    """What a reader of the rows must know."""
    invalid: list[str]
    """Why figures of either measurement may not be used."""

    @property
    def regressed(self) -> list[Row]:
        """The rows that are worse, largest change first."""
        return sorted(
            (row for row in self.rows if row.regressed),
            key=lambda row: float("inf") if row.change is None else abs(row.change),
            reverse=True,
        )

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON types."""
        rows = [
            {**asdict(row), "change": row.change, "significant": row.significant, "regressed": row.regressed}
            for row in self.rows
        ]
        return {**asdict(self), "rows": rows, "worse": bool(self.regressed) if self.judged else None}


def compare(
    a: Side,
    b: Side,
    tolerance: Tolerance = Tolerance(),
    *,
    allow_different_workload: bool = False,
) -> Comparison:
    """Compare every figure at the levels of load that both measurements have.

    Levels with several passes are compared with Welch's t-test over the passes. The
    spread of a single pass is estimated from its own requests, see
    :mod:`trtllm_hpc.bench.analysis.bootstrap`. A figure with unknown spread is shown, but
    is never a regression. P-values are adjusted over all rows, so that on average at most
    5 % of the differences called significant are false (Benjamini and Hochberg 1995).

    Raises:
        InvalidMeasurement: they have no level of load in common.
    """
    places_a, places_b = _places(a.measurement), _places(b.measurement)
    common = [label for label in places_a if label in places_b]
    if not common:
        raise InvalidMeasurement(
            f"{a.name} and {b.name} have no level of load in common: {', '.join(places_a) or 'none'} and "
            f"{', '.join(places_b) or 'none'}.",
            hint="trtllm-hpc bench RUN with the same rates or concurrencies",
        )
    levels = [(_Level(a, places_a[label]), _Level(b, places_b[label])) for label in common]
    workload = workload_diff(a.measurement, b.measurement)
    rows = _adjusted([row for of_a, of_b in levels for row in _rows(of_a, of_b, tolerance)])
    return Comparison(
        a=a.name,
        b=b.name,
        rows=rows,
        workload=workload,
        judged=allow_different_workload or not workload,
        settings=settings_diff(a.measurement, b.measurement),
        environment=environment_diff(a.measurement, b.measurement),
        notes=[*_notes(a, b, levels), *_undecided(rows, tolerance)],
        invalid=[
            f"The figures of {side.name} may not be used: {' '.join(side.measurement.verdict.findings)}"
            for side in (a, b)
            if not side.measurement.verdict.valid
        ],
    )


def raise_if_worse(comparison: Comparison, tolerance: Tolerance) -> None:
    """Raise if the second measurement is worse than the first, or if it cannot be judged.

    Raises:
        InvalidMeasurement: the figures of either may not be used.
        DifferentWorkloads: they had different workloads, which was not allowed.
        Worse: with the figures that are worse, and by how much.
    """
    if comparison.invalid:
        raise InvalidMeasurement(" ".join(comparison.invalid))
    if not comparison.judged:
        raise DifferentWorkloads(
            f"{comparison.a} and {comparison.b} had different workloads, so neither can be called worse: "
            f"{'; '.join(comparison.workload)}.",
            hint="measure both with the same workload, or add --allow-different-workload",
        )
    worse = comparison.regressed
    if worse:
        more = f"; and {len(worse) - _MAX_ROWS_NAMED} more" if len(worse) > _MAX_ROWS_NAMED else ""
        raise Worse(
            f"{comparison.b} is worse than {comparison.a} by more than {tolerance} in {len(worse)} of "
            f"{len(comparison.rows)} figures: {'; '.join(map(str, worse[:_MAX_ROWS_NAMED]))}{more}."
        )


def _places(measurement: Measurement) -> dict[str, int]:
    """Return the index of each level by its label."""
    return {result.level.label: place for place, result in enumerate(measurement.levels)}


class _Level:
    """One level of load of one measurement."""

    def __init__(self, side: Side, place: int) -> None:
        self._side = side
        self._place = place

    @property
    def result(self) -> LevelResult:
        return self._side.measurement.levels[self._place]

    @property
    def label(self) -> str:
        return self.result.level.label

    @property
    def spread_note(self) -> str | None:
        """What is unknown about the spread of the figures; ``None`` if there are several passes."""
        if len(self.result.passes) > 1:
            return None
        if self._single_pass is None:
            return "has one pass and no records: the spread of its figures is unknown."
        if not bootstrap.has_enough_requests(self._single_pass):
            return (
                f"has one pass with fewer than {bootstrap.MIN_REQUESTS} measured requests: the spread of its "
                "figures is unknown."
            )
        return (
            f"has one pass: its spread is estimated from {bootstrap.BLOCKS} parts of its window, which does "
            "not show how one run of the server differs from the next. Measure with --repeats 5."
        )

    def estimates(self, metric: Metric) -> dict[str | None, Estimate]:
        """Return the metric by each statistic; empty if a pass has no such figure."""
        statistics: Sequence[str | None] = STATISTICS if isinstance(metric, PerRequest) else (None,)
        figures = [one.metrics[metric.key] for one in self.result.passes if metric.key in one.metrics]
        if not figures or len(figures) < len(self.result.passes):
            return {}
        if len(figures) == 1 and self._single_pass is not None:
            try:
                return bootstrap.estimates(self._single_pass, metric, statistics)
            except NoValue:
                return {}
        return {name: mean_of_passes([value_of(figure, name) for figure in figures]) for name in statistics}

    @cached_property
    def _single_pass(self) -> Sample | None:
        """The sample of the first pass; ``None`` if its records are missing."""
        one = self.result.passes[0]
        records = [it for it in self._side.records if (it.level, it.repeat) == (self._place, one.repeat)]
        if not records:
            return None
        slo = self._side.measurement.settings.get("slo")
        return Sample(records, one.window, self.result.level, parse_slo(slo) if slo else None)


def _rows(a: _Level, b: _Level, tolerance: Tolerance) -> Iterator[Row]:
    for metric in METRICS:
        if metric.better is None or metric.key in _FROM_SEND:
            continue
        of_a, of_b = a.estimates(metric), b.estimates(metric)
        for statistic in of_a:
            if statistic in of_b:
                yield _row(a.label, metric, statistic, (of_a[statistic], of_b[statistic]), tolerance)


def _row(
    level: str, metric: Metric, statistic: str | None, pair: tuple[Estimate, Estimate], tolerance: Tolerance
) -> Row:
    a, b = pair
    row = Row(
        level=level,
        key=metric.key,
        label=metric.label,
        unit=metric.unit,
        statistic=statistic,
        a=a.value,
        b=b.value,
        better=None if a.value == b.value else (b.value < a.value) == (metric.better == "lower"),
        beyond=tolerance.exceeded(a.value, b.value),
    )
    found = welch_test(a, b)
    return row if found is None else replace(row, low=found.low, high=found.high, p_value=found.p_value)


def _adjusted(rows: list[Row]) -> list[Row]:
    """Return the rows with p-values adjusted over all of them; rows with equal figures test nothing."""
    tested = [row.p_value for row in rows if row.p_value is not None and row.better is not None]
    if not tested:
        return rows
    from scipy import stats

    adjusted = iter(stats.false_discovery_control(tested))
    return [
        row if row.p_value is None or row.better is None else replace(row, p_value=float(next(adjusted)))
        for row in rows
    ]


def _notes(a: Side, b: Side, levels: Sequence[tuple[_Level, _Level]]) -> Iterator[str]:
    yield from _search_results(a, b)
    for place, side in enumerate((a, b)):
        compared = [pair[place] for pair in levels]
        yield from _spread_notes(side, compared)
        labels = {level.label for level in compared}
        unpaired = [label for label in _places(side.measurement) if label not in labels]
        if unpaired:
            yield f"Only {side.name} has the levels {', '.join(unpaired)}: not compared."


def _spread_notes(side: Side, levels: Sequence[_Level]) -> Iterator[str]:
    """Yield each note on unknown spread once, with the levels unless it applies to all of them."""
    notes: dict[str | None, list[str]] = {}
    for level in levels:
        notes.setdefault(level.spread_note, []).append(level.label)
    for note, labels in notes.items():
        if note is not None:
            where = "" if len(notes) == 1 else f" at {', '.join(labels)}"
            yield f"{side.name}{where} {note}"


def _undecided(rows: Sequence[Row], tolerance: Tolerance) -> Iterator[str]:
    undecided = [row for row in rows if row.undecided]
    if undecided:
        worse = sum(row.better is False for row in undecided)
        yield (
            f"{len(undecided)} of {len(rows)} figures differ by more than {tolerance}, {worse} of them for "
            "the worse, but their spread is unknown: they decide nothing. Measure both with --repeats 5."
        )


def _search_results(a: Side, b: Side) -> Iterator[str]:
    first, second = a.measurement.search, b.measurement.search
    if first is not None and second is not None:
        rates = [
            "none" if it.max_rate_per_s is None else f"{it.max_rate_per_s:g}/s" for it in (first, second)
        ]
        yield f"Highest rate within {first.slo}: {rates[0]}; within {second.slo}: {rates[1]}."
