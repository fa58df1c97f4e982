"""What has changed from one measurement to another, and whether that is more than chance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from trtllm_hpc.bench.comparison.apart import settings_apart, surroundings_apart
from trtllm_hpc.bench.comparison.estimates import Difference, Estimate, difference, of_passes
from trtllm_hpc.bench.comparison.resampling import BLOCKS, LEAST_REQUESTS, OnePass
from trtllm_hpc.bench.comparison.rows import Comparison, Row
from trtllm_hpc.bench.comparison.tolerance import Tolerance
from trtllm_hpc.bench.judgement.slo import parse_slo
from trtllm_hpc.bench.metrics import METRICS, Metric, NoValue, PerRequest, Sample
from trtllm_hpc.bench.records import RequestRecord
from trtllm_hpc.bench.statistics import value_of
from trtllm_hpc.bench.summary import LevelResult, Measurement, Pass
from trtllm_hpc.errors import InvalidMeasurement

STATISTICS = ("mean", "p50", "p99")
"""Compared of each distribution; more rows are more chances of a false alarm."""
_FROM_SEND = {"ttft_from_send_ms", "latency_from_send_ms"}
"""Their counterparts from schedule tell the same, and more."""


@dataclass(frozen=True)
class Side:
    """One of two measurements. Without its records nothing is known of the spread of a single pass."""

    name: str
    """As the person calls it."""
    measurement: Measurement
    records: Sequence[RequestRecord] = ()


def compare(a: Side, b: Side, tolerance: Tolerance = Tolerance()) -> Comparison:  # noqa: B008 - frozen
    """Compare the levels of load that both have, figure by figure.

    Where a level has several passes, the passes are compared by Welch's
    t-test; of a single pass its own stretches tell the spread, see
    :mod:`trtllm_hpc.bench.comparison.resampling`, if it has requests enough.
    What has no known spread is shown, and is no regression. P-values of all rows together are
    adjusted so that of the differences called significant no more than 5 %
    are false on average (Benjamini and Hochberg 1995).

    Raises:
        InvalidMeasurement: they have no level of load in common.
    """
    pairs = _shared(a.measurement, b.measurement)
    if not pairs:
        raise InvalidMeasurement(
            f"{a.name} and {b.name} have no level of load in common: {_labels(a.measurement)} against "
            f"{_labels(b.measurement)}.",
            hint="trtllm-hpc bench RUN with the same rates or concurrencies",
        )
    levels = [(_Level(a, place_a), _Level(b, place_b)) for place_a, place_b in pairs]
    rows = _adjusted([row for of_a, of_b in levels for row in _rows(of_a, of_b, tolerance)])
    return Comparison(
        a=a.name,
        b=b.name,
        rows=rows,
        apart=settings_apart(a.measurement, b.measurement),
        surroundings=surroundings_apart(a.measurement, b.measurement),
        notes=[*_notes(a, b, levels), *_undecided(rows, tolerance)],
        invalid=[*_invalid(a), *_invalid(b)],
    )


def _labels(measurement: Measurement) -> str:
    return ", ".join(result.level.label for result in measurement.levels) or "none"


def _shared(a: Measurement, b: Measurement) -> list[tuple[int, int]]:
    """Places of the levels that both have, by their labels."""
    places = _places(b)
    return [(place, places[label]) for label, place in _places(a).items() if label in places]


def _places(measurement: Measurement) -> dict[str, int]:
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
    def doubt(self) -> str | None:
        """What of its spread is unknown, and why, in a sentence; ``None`` where there are several passes."""
        if len(self.result.passes) > 1:
            return None
        if self._one_pass is None:
            return "has one pass and no records: the spread of its figures is unknown."
        if not self._one_pass.tells_spread:
            return (
                f"has one pass with fewer than {LEAST_REQUESTS} measured requests: the spread of its figures "
                "is unknown."
            )
        return (
            f"has one pass: its spread is that of {BLOCKS} stretches of its window. How one run of the "
            "server differs from the next is not in it; measure with --repeats 5 to know."
        )

    def estimates(self, metric: Metric) -> dict[str | None, Estimate]:
        """The metric by each of its statistics; empty if there is no such figure."""
        statistics: Sequence[str | None] = STATISTICS if isinstance(metric, PerRequest) else (None,)
        figures = [one.metrics[metric.key] for one in self.result.passes if metric.key in one.metrics]
        if not figures or len(figures) < len(self.result.passes):
            return {}
        if len(figures) == 1 and self._one_pass is not None:
            try:
                return self._one_pass.estimates(metric, statistics)
            except NoValue:
                return {}
        return {name: of_passes([value_of(figure, name) for figure in figures]) for name in statistics}

    @cached_property
    def _one_pass(self) -> OnePass | None:
        one = self.result.passes[0]
        records = [record for record in self._side.records if self._belongs(record, one)]
        if not records:
            return None
        slo = self._side.measurement.settings.get("slo")
        return OnePass(Sample(records, one.window, self.result.level, parse_slo(slo) if slo else None))

    def _belongs(self, record: RequestRecord, one: Pass) -> bool:
        return record.level == self._place and record.repeat == one.repeat


def _rows(a: _Level, b: _Level, tolerance: Tolerance) -> Iterator[Row]:
    for metric in METRICS:
        if metric.better is None or metric.key in _FROM_SEND:
            continue
        of_a, of_b = a.estimates(metric), b.estimates(metric)
        for statistic in of_a:
            if statistic in of_b:
                yield _row(
                    a.result.level.label, metric, statistic, of_a[statistic], of_b[statistic], tolerance
                )


def _row(
    level: str, metric: Metric, statistic: str | None, a: Estimate, b: Estimate, tolerance: Tolerance
) -> Row:
    better = None if a.value == b.value else (b.value < a.value) == (metric.better == "lower")
    row = Row(
        level=level,
        key=metric.key,
        label=metric.label,
        unit=metric.unit,
        statistic=statistic,
        a=a.value,
        b=b.value,
        better=better,
        beyond=tolerance.exceeded(a.value, b.value),
    )
    found: Difference | None = difference(a, b)
    return row if found is None else replace(row, low=found.low, high=found.high, p_value=found.p_value)


def _adjusted(rows: list[Row]) -> list[Row]:
    """The rows with p-values for all of them together; those that are the same to the bit test nothing."""
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
    yield from _searches(a, b)
    for place, side in enumerate((a, b)):
        compared = [pair[place] for pair in levels]
        yield from _doubts(side, compared)
        labels = {level.result.level.label for level in compared}
        alone = [label for label in _places(side.measurement) if label not in labels]
        if alone:
            yield f"Only {side.name} has the levels {', '.join(alone)}: not compared."


def _doubts(side: Side, levels: Sequence[_Level]) -> Iterator[str]:
    """What is not known of the spread, each once; by the level where not all have the same doubt."""
    doubts: dict[str | None, list[str]] = {}
    for level in levels:
        doubts.setdefault(level.doubt, []).append(level.result.level.label)
    for doubt, labels in doubts.items():
        if doubt is not None:
            where = "" if len(doubts) == 1 else f" at {', '.join(labels)}"
            yield f"{side.name}{where} {doubt}"


def _undecided(rows: Sequence[Row], tolerance: Tolerance) -> Iterator[str]:
    """How many differences are no regression only because nothing tells whether they are chance."""
    undecided = [row for row in rows if row.undecided]
    if undecided:
        worse = sum(row.better is False for row in undecided)
        yield (
            f"{len(undecided)} of {len(rows)} figures differ by more than {tolerance}, {worse} of them for "
            "the worse, and their spread is unknown: they decide nothing. Measure both with --repeats 5."
        )


def _searches(a: Side, b: Side) -> Iterator[str]:
    """What both searches have found, if both have searched."""
    first, second = a.measurement.search, b.measurement.search
    if first is not None and second is not None:
        rates = [
            "none" if it.max_rate_per_s is None else f"{it.max_rate_per_s:g}/s" for it in (first, second)
        ]
        yield f"Highest rate that holds {first.slo}: {rates[0]}; {second.slo}: {rates[1]}."


def _invalid(side: Side) -> list[str]:
    verdict = side.measurement.verdict
    return (
        [] if verdict.valid else [f"The figures of {side.name} may not be used: {' '.join(verdict.findings)}"]
    )
